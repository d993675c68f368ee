"""Buying many draws and using few: what is paid for the ε that was in fact spent never falls below the price."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import require

if not TYPE_CHECKING:
    require("flwr", extra="flower")

from jsam.campaign.client.client_ledger import ClientLedger
from jsam.campaign.refusal import Reason
from jsam.campaign.terms import PAID_BY_DRAWS, Terms
from jsam.privacy import spent_epsilons
from tests.campaign.books import MODEL, ask, noisy, refused
from tests.campaign.offers import forged, offer, public_inputs
from tests.redteam.hostile_server import HostileServer

FLOOR = 0.3


def test_a_server_that_buys_many_draws_and_uses_one_pays_no_less_a_unit_of_epsilon(tmp_path: Path) -> None:
    """Eight campaigns of 1,000 draws at exactly the floor of the policy, each closed after its first draw."""
    policy = f"max_epsilon = 5.0\nmin_payment_per_epsilon = {FLOOR}\ntotal_epsilon = 20.0\n"
    server = HostileServer(tmp_path, policy=policy)
    for number in range(8):
        terms = server.agreed(
            campaign=f"c{number}", rounds=1000, per_round=1, epsilon=5.0, draws=1000, payment=5.0 * FLOOR
        )
        assert "refused" not in server.ask(terms, 0)[0]
        assert "refused" not in server.close(terms.campaign)
    entries = server.ledger.statement()
    assert len(entries) == 8
    for entry in entries:
        assert entry.epsilon_spent > 0.05
        assert FLOOR * entry.epsilon_spent <= entry.payment < 0.1 * entry.payment_agreed


def _terms(epsilon: float, delta: float, draws: int, adjacency: str) -> Terms:
    return offer(
        epsilon=epsilon,
        delta=delta,
        participations=draws,
        adjacency=adjacency,
        payment=0.7,
        public=public_inputs(rounds=draws, per_round=draws),
    )


@settings(max_examples=150, deadline=None)
@given(
    epsilon=st.floats(-4, 4).map(lambda exponent: 10**exponent),
    delta=st.floats(-13, -0.5).map(lambda exponent: 10**exponent),
    draws=st.floats(0, 6).map(lambda exponent: int(10**exponent)),
    share=st.floats(0, 1),
    adjacency=st.sampled_from(["add-remove", "replace"]),
)
def test_due_is_never_below_the_share_of_epsilon_never_above_the_whole_and_grows_with_every_draw(
    epsilon: float, delta: float, draws: int, share: float, adjacency: str
) -> None:
    terms = _terms(epsilon, delta, draws, adjacency)
    used = max(1, round(share * draws))
    spent = spent_epsilons([terms.release(0, used)], delta)[terms.client]
    due = terms.payment_for(used)
    assert due >= terms.payment * (spent / terms.epsilon) * (1 - 1e-12)
    assert due >= terms.payment * (used / draws) * (1 - 1e-12)
    assert terms.payment_for(used - 1) <= due <= terms.payment
    assert terms.payment_for(0) == 0.0
    assert terms.payment_for(draws) == terms.payment_for(draws + 1) == terms.payment


def test_the_property_finds_the_rule_that_paid_by_draws() -> None:
    terms = _terms(5.0, 1e-5, 1000, "add-remove")
    broken = forged(terms, drop_out_rule=PAID_BY_DRAWS)
    spent = spent_epsilons([terms.release(0, 1)], terms.delta)[terms.client]
    assert broken.payment_for(1) < 0.1 * terms.payment * spent / terms.epsilon


def test_the_rule_is_part_of_the_terms_and_the_old_one_is_declined_and_still_read(tmp_path: Path) -> None:
    """Campaigns that were agreed on under it are settled by it."""
    old = forged(offer(), drop_out_rule=PAID_BY_DRAWS)
    assert old.hash != offer().hash
    assert Terms.from_json(old.to_json()) == old
    assert dataclasses.replace(offer(), drop_out_rule=PAID_BY_DRAWS).digest != offer().hash
    assert old.payment_for(1) == pytest.approx(0.8 / 5)
    ledger = ClientLedger(tmp_path)
    assert refused(lambda: ledger.accept(old)) is Reason.INVALID_TERMS


def test_the_statement_has_what_was_spent_and_bought_and_what_is_due_and_agreed(tmp_path: Path) -> None:
    ledger = ClientLedger(tmp_path)
    ledger.accept(offer())
    ledger.answer(ask(offer(), 0), noisy, model=MODEL)
    stated = ledger.statement()[0].as_dict()
    assert stated["payment"] / stated["epsilon_spent"] >= stated["payment_agreed"] / stated["epsilon_bought"]
    assert 0 < stated["payment"] < stated["payment_agreed"]
    assert stated["drop_out_rule"] == "paid-by-epsilon-spent"
