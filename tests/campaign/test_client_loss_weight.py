"""With a budget a client computes η(N) itself, whatever the server put into the offer, and gives up in time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jsam.campaign.client.client_ledger import ClientLedger
from jsam.campaign.client.policy import Policy
from jsam.campaign.refusal import Refused
from jsam.campaign.sandboxed_check import check_loss_weight_apart
from jsam.campaign.verification import Status
from jsam.errors import InputError
from jsam.mechanism.budget.budget_cache import BudgetCache
from jsam.mechanism.budget.loss_weight import loss_weight_for_budget
from jsam.mechanism.priors import parse_prior
from jsam.mechanism.registry import mechanism_named
from tests.campaign.offers import offer, public_inputs

BUDGET = 10.0


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def right() -> float:
    """What the budget gives for three clients."""
    return loss_weight_for_budget(
        mechanism_named("jsam", loss_weight=1.0),
        BUDGET,
        prior=parse_prior("uniform:0,1"),
        num_clients=3,
        cache=BudgetCache(None),
    ).loss_weight


def test_the_right_loss_weight_is_accepted(tmp_path: Path, right: float) -> None:
    ClientLedger(tmp_path / "books").accept(offer(public=public_inputs(budget=BUDGET, loss_weight=right)))


def test_another_loss_weight_is_refused_unless_the_policy_takes_it_on_trust(tmp_path: Path, right: float) -> None:
    terms = offer(public=public_inputs(budget=BUDGET, loss_weight=right * 1.001))
    with pytest.raises(Refused, match="invalid-terms: the offer does not hold: loss weight"):
        ClientLedger(tmp_path / "books").accept(terms)
    ClientLedger(tmp_path / "trusting", Policy(check_loss_weight=False)).accept(terms)


def test_the_loss_weight_of_another_number_of_clients_is_refused(tmp_path: Path, right: float) -> None:
    terms = offer(public=public_inputs(budget=BUDGET, loss_weight=right, num_clients=4))
    with pytest.raises(Refused, match="loss weight"):
        ClientLedger(tmp_path / "books").accept(terms)


def test_it_is_computed_once_for_an_offer(tmp_path: Path, right: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeats, of a yes as of a no, cost nothing."""
    ledger, calls = ClientLedger(tmp_path / "books"), []

    def counted(terms: Any) -> Any:
        calls.append(terms)
        return check_loss_weight_apart(terms)

    monkeypatch.setattr("jsam.campaign.client.client_ledger.check_loss_weight_apart", counted)
    for weight in (right * 1.1, right):
        terms = offer(public=public_inputs(budget=BUDGET, loss_weight=weight))
        for _ in range(3):
            if weight == right:
                ledger.accept(terms)
            else:
                with pytest.raises(Refused, match="loss weight"):
                    ledger.accept(terms)
    assert len(calls) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"prior": "empirical:data.npz"},  # a file of the client's
        {"num_clients": 2**50},  # all of its memory
        {"budget_probability": 1 - 1e-9},
    ],
)
def test_what_cannot_be_checked_is_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    terms = offer(public=public_inputs(budget=BUDGET, **changes))
    assert check_loss_weight_apart(terms).status is Status.NOT_CHECKED
    with pytest.raises(Refused, match="invalid-terms: the loss weight of this budget cannot be checked here"):
        ClientLedger(tmp_path / "books").accept(terms)


def test_a_prior_that_takes_for_ever_is_given_up() -> None:
    terms = offer(public=public_inputs(budget=BUDGET, prior="studentized_range:3,10"))
    found = check_loss_weight_apart(terms, seconds=2.0)
    assert found.status is Status.NOT_CHECKED
    assert "2 s" in found.message


def test_a_cap_on_selection_below_what_the_mechanism_draws_is_refused_on_both_sides() -> None:
    """usbm draws each of three clients with probability 1/3, so no plan keeps a cap of 0.1, whatever η is."""
    public = public_inputs(mechanism="usbm", budget=BUDGET, loss_weight=1.0, max_selection_prob=0.1)
    check = check_loss_weight_apart(offer(public=public))
    assert check.status is Status.VIOLATED
    assert "cannot be computed" in check.message
    with pytest.raises(InputError, match=r"max_selection_prob"):
        public.rules.contract(public.rules.market([0.2, 0.4, 0.6]))
