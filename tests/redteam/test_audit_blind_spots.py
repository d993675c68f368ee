"""Mechanisms that cheat where few reports, clients or markets go: the audit finds each of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.stats

import jsam
from jsam.mechanism.audit import audit
from jsam.mechanism.audit.choice import FEWEST, audited_clients
from tests.mechanism import broken

UNIT = scipy.stats.uniform(0, 1)
HONEST = jsam.JSAM(loss_weight=1.0)


def drawn(count: int, prior: Any = UNIT, seed: int = 0) -> jsam.Market:
    return jsam.Market(sensitivities=prior.rvs(size=count, random_state=seed), prior=prior)


def violated(market: jsam.Market, mechanism: Any, **options: Any) -> set[str]:
    return {violation.check for violation in audit(market, mechanism, **options).violations}


@pytest.mark.parametrize(("count", "start"), [(5, 0.0123), (5, 0.6137), (100, 0.3)])
def test_a_rule_of_its_own_on_a_stretch_of_a_thousandth(count: int, start: float) -> None:
    """ε that is raised by half on an interval of width 1e-3 is seen to rise."""
    usbm = jsam.USBM(loss_weight=1.0)  # which sells at every report
    assert "monotonicity" in violated(drawn(count), broken.BuysMoreInAGap(honest=usbm, start=start))
    assert not violated(drawn(count), usbm)


@pytest.mark.parametrize(
    ("count", "kind", "rank"), [(1000, broken.FavoursOneRank, 41), (300, broken.BuysMoreAtOneRank, 77)]
)
def test_one_client_of_many_who_is_treated_differently(count: int, kind: Any, rank: int) -> None:
    """A market of 300 or 1,000 is sampled; whoever stands out among its neighbours is in the sample, and is found."""
    market = drawn(count)
    honest = jsam.JSAM(loss_weight=5.0)
    spoiled = kind(honest=honest, rank=rank)
    assert jsam.plan(market, honest, payments=False).num_selected > rank + 1
    different = int(np.argsort(market.sensitivities)[rank])
    # The first of a sample are chosen by what the contract looks like, the rest at random.
    sample = audited_clients(market, spoiled.plan(market), None, np.random.default_rng(0))
    assert different in sample[:FEWEST]
    assert not audit(market, spoiled, grid=2, clients=[different]).ok
    assert audit(market, honest, grid=2, clients=[different]).ok


@pytest.mark.parametrize("prior", [UNIT, scipy.stats.expon(), scipy.stats.beta(2, 5)])
def test_payments_beyond_the_last_ten_millionth_of_the_prior(prior: Any) -> None:
    """Nobody honest reports there, but a liar may."""
    usbm = jsam.USBM(loss_weight=1.0)
    assert "truthfulness" in violated(drawn(6, prior), broken.PaysTheFarTail(honest=usbm), grid=8, clients=[2])
    assert not violated(drawn(6, prior), usbm, grid=8)


def test_a_plan_that_pays_round_numbers_behind_an_honest_answer() -> None:
    """`respond` is compared with whole plans at round reports, too."""
    assert "consistency" in violated(drawn(20), broken.LikesRoundNumbers(honest=HONEST), grid=8)


@pytest.mark.parametrize("count", [7, 40, 130])
def test_a_worse_mechanism_under_a_better_name(count: int) -> None:
    """Beyond the markets that are searched thoroughly, simple selections still show that a contract is not the best."""
    market = jsam.Market(sensitivities=(np.arange(count) + 0.5) / count, prior=UNIT)
    spoiled = broken.CallsItselfJsam(honest=jsam.USBM(loss_weight=1.0))
    assert "objective" in violated(market, spoiled, grid=4, clients=[0])
    cap = {"max_selection_prob": 2.5 / count}
    for mechanism in (HONEST, jsam.JSAM(loss_weight=1.0, **cap), jsam.JSAM(loss_weight=1.0, max_epsilon=0.5)):
        assert not violated(market, mechanism, grid=4, clients=[0])


def test_a_false_budget_stated_by_the_contract_or_asked_of_it() -> None:
    """The expected cost of drawn markets is twice the budget that is stated."""
    market = drawn(10)
    eta = jsam.JSAM(loss_weight=3.0)
    plans = [jsam.plan(drawn(10, seed=i), eta, payments=False).expected_cost for i in range(1, 200)]
    fair = float(np.mean(plans))
    false = broken.StatesAFalseBudget(honest=eta, budget=fair / 2)
    assert violated(market, false, grid=4, clients=[0]) == {"budget"}
    assert violated(market, eta, grid=4, clients=[0], budget=fair / 2) == {"budget"}
    assert not violated(market, eta, grid=4, clients=[0], budget=1.05 * fair)
    assert violated(market, eta, grid=4, clients=[0], budget=fair, budget_probability=0.9) == {"budget"}
    assert not violated(market, eta, grid=4, clients=[0], budget=2 * fair, budget_probability=0.9)


def test_a_false_error_bound() -> None:
    """Half a millionth of a payment is within the auditor's tolerance, but not within a stated error of 0."""
    assert violated(drawn(5), broken.StatesAFalseError(honest=HONEST), grid=2, clients=[0]) == {"payments"}
    assert not violated(drawn(5), HONEST, grid=8)
