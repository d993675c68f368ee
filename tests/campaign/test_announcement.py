"""An offer must follow the rules that were published before the client reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jsam.campaign.announcement import NEEDED, Announcement
from jsam.campaign.client.client_ledger import ClientLedger
from jsam.campaign.client.policy import Policy
from jsam.campaign.refusal import Reason, Refused
from tests.campaign.offers import offer, public_inputs


def published(**changes: Any) -> str:
    terms = offer()
    values = {
        **terms.public.as_dict(),
        **{name: getattr(terms, name) for name in ("campaign", "delta", "clip_norm", "adjacency")},
        "momentum": 0.9,  # the terms do not speak of it
        **changes,
    }
    for name in ("num_clients", "budget_seed"):
        del values[name]
    return json.dumps(values)


def reason(ledger: ClientLedger, **changes: Any) -> Reason | None:
    try:
        ledger.accept(offer(**changes), published=True)
    except Refused as refusal:
        return refusal.code
    return None


@pytest.fixture
def ledger(tmp_path: Path) -> ClientLedger:
    ledger = ClientLedger(tmp_path)
    ledger.hear(published())
    return ledger


def test_an_offer_by_the_published_rules_is_accepted_for_any_number_of_clients(ledger: ClientLedger) -> None:
    assert reason(ledger) is None
    assert reason(ledger, public=public_inputs(num_clients=2)) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"delta": 1e-6},
        {"clip_norm": 1.0},
        {"adjacency": "replace"},
        {"public": public_inputs(prior="uniform:0,2")},
        {"public": public_inputs(mechanism="usbm")},
        {"public": public_inputs(loss_weight=5.1)},
        {"public": public_inputs(budget=10.0)},
        {"public": public_inputs(max_epsilon=9.0)},
        {"public": public_inputs(rounds=60)},
        {"public": public_inputs(model="other")},
    ],
)
def test_an_offer_by_other_rules_is_refused(ledger: ClientLedger, changes: dict[str, Any]) -> None:
    assert reason(ledger, **changes) is Reason.RULES_CHANGED
    assert ledger.statement() == ()


def test_under_a_budget_the_loss_weight_may_be_any_but_the_budget_may_not(tmp_path: Path) -> None:
    ledger = ClientLedger(tmp_path, Policy(check_loss_weight=False))
    ledger.hear(published(budget=10.0, loss_weight=None, seed=0))
    assert reason(ledger, public=public_inputs(budget=10.0, loss_weight=7.0)) is None
    assert reason(ledger, public=public_inputs(budget=11.0)) is Reason.RULES_CHANGED


def test_a_campaign_that_published_nothing_is_refused_where_it_must(tmp_path: Path) -> None:
    assert reason(ClientLedger(tmp_path)) is Reason.UNKNOWN_CAMPAIGN
    ClientLedger(tmp_path).accept(offer())


def test_the_first_word_stands(ledger: ClientLedger) -> None:
    ledger.hear(published())
    with pytest.raises(Refused, match="rules-changed"):
        ledger.hear(published(prior="uniform:0,2"))
    assert reason(ledger) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "7",
        "[" * 50_000,
        " " * 200_000 + published(),
        published(loss_weight=None),
        published(budget=10.0),
        published(budget=10.0, loss_weight=None),
        published(budget=10.0, loss_weight=None, seed=True),
        published(campaign=3),
        *(json.dumps({key: value for key, value in json.loads(published()).items() if key != name}) for name in NEEDED),
    ],
)
def test_what_does_not_say_the_rules_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="malformed"):
        Announcement.from_json(text)
