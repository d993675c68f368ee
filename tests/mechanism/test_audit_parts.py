"""The audit's own tools, each against something known: areas, the search for a better p, and the sums."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats

import jsam
from jsam.mechanism._arrays import FloatArray
from jsam.mechanism.audit.contract_checks import check_accounts, check_feasibility, check_rationality, loss_bound
from jsam.mechanism.audit.misreports import support_for_lies
from jsam.mechanism.audit.payment_integral import Area, Curve, myerson_payment
from jsam.mechanism.audit.search import Problem, least_objective
from jsam.mechanism.weights import Weights
from tests.mechanism.broken import PaysUnderCost
from tests.oracles import brute_force, brute_force_joint, values, values_capped

UNIT = scipy.stats.uniform(0, 1)


def area(curve: Curve, c: float, exact: float, prior: object = UNIT) -> Area:
    return myerson_payment(curve, c, prior, claimed=exact, tolerance=1e-6 * exact)


def staircase(z: FloatArray) -> FloatArray:
    steps = [(3.0, 0.3), (0.5, 0.3 + 1e-5), (1.0, 0.25 + 1e-7), (2.0, 0.9)]
    return np.asarray(sum(size * (z < end) for size, end in steps))


STAIRS = 0.25 * 6.5 + 3.0 * 0.05 + 0.5 * (0.05 + 1e-5) + 1e-7 + 2.0 * 0.65


def test_area_cuts_down_to_every_jump() -> None:
    """Four jumps, two of them close together and one just above the report."""
    found = area(staircase, 0.25, STAIRS)
    assert found.settled
    assert found.payment == pytest.approx(STAIRS, rel=1e-7)
    assert abs(found.payment - STAIRS) <= found.error + 1e-12


@pytest.mark.parametrize("c", [1e-6, 1e-3, 0.3])
def test_area_of_a_steep_curve_with_a_jump(c: float) -> None:
    def falling(z: FloatArray) -> FloatArray:
        return np.where(z < 0.7, z**-1.5, 0.5 * np.exp(-3.0 * z))

    exact = c**-0.5 + 2 * (c**-0.5 - 0.7**-0.5) + 0.5 / 3 * (math.exp(-2.1) - math.exp(-3.0))
    assert area(falling, c, exact).payment == pytest.approx(exact, rel=1e-7)


def test_area_with_an_open_top_ends_at_exclusion_or_in_a_light_tail() -> None:
    def dropped(z: FloatArray) -> FloatArray:
        return np.where(z < 1e5, 1 / z, 0.0)

    exact = 1 + math.log(2e5)
    assert area(dropped, 0.5, exact, scipy.stats.expon()).payment == pytest.approx(exact, rel=1e-7)
    exact = 0.5 * 0.5**-2.0 + 1 / 0.5
    kept = area(lambda z: z**-2.0, 0.5, exact, scipy.stats.expon())
    assert kept.settled
    assert kept.payment == pytest.approx(exact, rel=1e-7)


def test_area_says_when_a_tail_is_too_heavy() -> None:
    assert not area(lambda z: z**-1.0, 0.5, 30.0, scipy.stats.expon()).settled


def test_area_of_somebody_excluded_is_nothing() -> None:
    assert area(np.zeros_like, 0.5, 0.0) == Area(payment=0.0, error=0.0, settled=True)


def test_area_stops_early_on_a_claim_that_is_far_off() -> None:
    calls = []

    def counted(z: FloatArray) -> FloatArray:
        calls.append(len(z))
        return staircase(z)

    right = area(counted, 0.25, STAIRS)
    patient, calls = sum(calls), []
    wrong = area(counted, 0.25, 1.1 * STAIRS)
    assert right.settled
    assert wrong.settled
    assert abs(wrong.payment - 1.1 * STAIRS) > 0.05 * STAIRS
    assert sum(calls) < patient / 2


def test_search_agrees_with_the_oracles_on_values_and_minima() -> None:
    """Seven decades of v, five of η and Q, with caps on p, on ε, and on both."""
    rng = np.random.default_rng(3)
    for i in range(12):
        n = int(rng.integers(2, 6))
        v = 10.0 ** rng.uniform(-4.0, 3.0, n)
        eta, Q, zeta = (float(x) for x in 10.0 ** rng.uniform([-2.0, -2.0, -1.0], [3.0, 3.0, 1.0]))
        cap_p = float(rng.uniform(1 / n, 1.0)) if i % 2 else 1.0
        best, _, eps = brute_force(v, eta=eta, Q=Q, zeta=zeta, max_selection_prob=cap_p)
        cap_eps = math.inf
        if i % 3 == 2:
            cap_eps = float(eps.max() * rng.uniform(0.2, 1.0))
            best, _, _ = brute_force_joint(
                v, eta=eta, Q=Q, zeta=zeta, max_selection_prob=cap_p, max_epsilon=cap_eps, starts=10
            )
        problem = Problem(
            virtual_costs=v,
            weights=Weights(
                loss_weight=eta,
                noise_weight=Q,
                bias_weight=zeta,
                max_selection_prob=cap_p,
                max_epsilon=cap_eps if math.isfinite(cap_eps) else None,
            ),
        )
        found, p = least_objective(problem)
        assert found == pytest.approx(best, rel=1e-7)
        assert p.sum() == pytest.approx(1, abs=1e-12)
        assert p.max() <= cap_p * (1 + 1e-12)
        rows = rng.dirichlet(np.full(n, 0.5), size=4)
        same = (
            values(rows, v, eta=eta, Q=Q, zeta=zeta)
            if math.isinf(cap_eps)
            else values_capped(rows, v, eta=eta, Q=Q, zeta=zeta, max_epsilon=cap_eps)
        )
        assert problem.values(rows) == pytest.approx(same, rel=1e-12)


def test_lies_reach_the_ends_of_the_support_where_they_are_proper() -> None:
    assert support_for_lies(scipy.stats.uniform(0.5, 1.5), 1.0) == (0.5, 2.0)
    low, high = support_for_lies(scipy.stats.beta(2, 5), 0.3)
    assert 0 < low < 1e-3
    assert 0.8 < high < 1
    assert support_for_lies(scipy.stats.lognorm(s=0.5), 1e6)[1] == 1e6


def test_loss_bound_by_hand() -> None:
    """p = (¾, ¼), ε = (1, ½), Q = 4, ζ = 2: d = 2·½ and Σ p²/ε² = 9/16 + 1/4."""
    by_hand = 1 + math.sqrt(1 + 4 * 13 / 16)
    assert loss_bound(np.array([0.75, 0.25]), np.array([1.0, 0.5]), 4.0, 2.0) == pytest.approx(by_hand, rel=1e-15)
    assert loss_bound(np.array([1.0, 0.0]), np.array([1.0, 0.0]), 4.0, 0.0) == 2.0
    assert loss_bound(np.array([0.5, 0.5]), np.array([1.0, 0.0]), 4.0, 0.0) == math.inf


def test_an_infinite_virtual_cost_where_nothing_is_bought_is_fine() -> None:
    """beta(2, 5) has no density at 1: a client who reports it costs infinitely much and is dropped."""
    market = jsam.Market(sensitivities=np.array([0.1, 0.2, 1.0]), prior=scipy.stats.beta(2, 5))
    contract = jsam.plan(market, jsam.JSAM(loss_weight=1.0))
    assert math.isinf(contract.virtual_costs[2])
    for check in (check_feasibility(contract), check_accounts(market, contract), check_rationality(contract)[0]):
        assert check.status == "passed", check.message


def test_the_loss_of_the_worst_off_is_told_in_numbers() -> None:
    market = jsam.Market(sensitivities=np.array([0.2, 0.4]), prior=UNIT, ids=["low", "high"])
    contract = PaysUnderCost(honest=jsam.JSAM(loss_weight=9.0)).plan(market)
    check, lowest = check_rationality(contract)
    assert lowest < 0
    assert check.status == "violated"
    assert check.value == pytest.approx(0.01, rel=1e-9)
    assert "by taking part truthfully" in check.message
