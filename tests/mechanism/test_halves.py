"""Two halves, each under a prior learned from the other's reports: nobody moves its own price, and nobody gains by it.

The brute force over lies goes through everything from the reports on: it learns both priors anew for each lie.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats

import jsam
from jsam.errors import InputError, NotSupportedError
from jsam.mechanism._arrays import FloatArray
from jsam.mechanism.families import FSBM, JSAM, USBM, EvenJSAM
from jsam.mechanism.families.base import RangeMechanism
from jsam.mechanism.halves import ByHalves, learned_priors, members_of_halves, plan_by_halves, smooth_prior
from jsam.mechanism.priors import Prior
from jsam.mechanism.rules import Rules

GAIN = 1e-6
MARKETS = 64


def lognormal(reports: FloatArray) -> Prior:
    """A learner that costs nothing: the log-normal with the reports' mean and spread."""
    logs = np.log(reports)
    prior: Prior = scipy.stats.lognorm(s=max(float(logs.std()), 0.1), scale=math.exp(float(logs.mean())))
    return prior


def mechanism(rng: np.random.Generator, number: int) -> RangeMechanism:
    weights = {"loss_weight": float(10 ** rng.uniform(0, 2)), "noise_weight": float(10 ** rng.uniform(-1, 1))}
    made: list[Callable[[], RangeMechanism]] = [
        lambda: EvenJSAM(**weights),
        lambda: EvenJSAM(**weights, max_epsilon=1.0),
        lambda: JSAM(**weights),
        lambda: FSBM(num_selected=4, **weights),
    ]
    return made[number % 4]()


def reports_of(rng: np.random.Generator) -> FloatArray:
    return np.asarray(rng.lognormal(-1.0, 0.8, int(rng.integers(10, 25))))


Planner = Callable[[RangeMechanism, FloatArray, int], jsam.Contract]


def by_halves(some: RangeMechanism, reports: FloatArray, seed: int) -> jsam.Contract:
    return plan_by_halves(some, reports, seed=seed, learn=lognormal)


def as_one_market(some: RangeMechanism, reports: FloatArray, seed: int) -> jsam.Contract:
    """The rule that looks as good and is not: one market over everybody, under the same two learned priors."""
    names = [str(client) for client in range(len(reports))]
    prior = learned_priors(reports, names, seed, lognormal)
    return some.plan(jsam.Market(sensitivities=reports, prior=prior))


def largest_gain(plan: Planner, some: RangeMechanism, reports: FloatArray, client: int, lies: FloatArray) -> float:
    """Over max(truthful payment, lying payment, 1e-9 Σπ)."""
    truth, c = plan(some, reports, 3), reports[client]
    assert truth.payments is not None
    utility, gains = truth.payments[client] - c * truth.epsilons[client], []
    for lie in lies:
        changed = reports.copy()
        changed[client] = lie
        other = plan(some, changed, 3)
        assert other.payments is not None
        most = max(truth.payments[client], other.payments[client], 1e-9 * truth.payments.sum())
        gains.append(float((other.payments[client] - c * other.epsilons[client] - utility) / most))
    return max(gains)


def lies_of(rng: np.random.Generator, c: float) -> FloatArray:
    return np.append(c * np.exp(rng.uniform(-1.5, 1.5, 2)), c * 1.1)


def one_who_may_sell(rng: np.random.Generator, reports: FloatArray) -> int:
    """One of the five cheapest."""
    return int(np.argsort(reports)[rng.integers(5)])


def test_no_lie_gains_though_priors_are_learned_from_the_reports() -> None:
    for number in range(MARKETS):
        rng = np.random.default_rng(number)
        reports = reports_of(rng)
        client = one_who_may_sell(rng, reports)
        lies = lies_of(rng, float(reports[client]))
        assert largest_gain(by_halves, mechanism(rng, number), reports, client, lies) <= GAIN, number


def test_the_search_finds_the_lies_that_pay_where_both_halves_are_one_market() -> None:
    gains = []
    for number in range(16):
        rng = np.random.default_rng(number)
        reports = reports_of(rng)
        client = one_who_may_sell(rng, reports)
        lies = lies_of(rng, float(reports[client]))
        gains.append(largest_gain(as_one_market, mechanism(rng, number), reports, client, lies))
    assert max(gains) > 1e-3


def test_no_lie_gains_with_the_usual_learner() -> None:
    for number in range(2):
        rng = np.random.default_rng(number)
        reports = reports_of(rng)
        lies = lies_of(rng, float(reports[0]))[1:]
        plan: Planner = lambda some, reports, seed: plan_by_halves(some, reports, seed=seed)  # noqa: E731
        assert largest_gain(plan, mechanism(rng, number), reports, 0, lies) <= GAIN


def test_a_report_moves_neither_its_own_prior_nor_the_contract_of_its_neighbours_through_a_prior() -> None:
    rng = np.random.default_rng(4)
    reports = reports_of(rng)
    names = [f"client-{k}" for k in range(len(reports))]
    first, second = members_of_halves(names, 5)
    assert sorted([*first, *second]) == list(range(len(reports)))
    assert abs(len(first) - len(second)) <= 1
    changed = reports.copy()
    changed[first[0]] *= 2
    before, after = (learned_priors(c, names, 5, smooth_prior) for c in (reports, changed))
    assert all(before[k].identity == after[k].identity for k in first)
    assert all(before[k].identity != after[k].identity for k in second)


def test_halves_follow_from_ids_and_seed_and_not_from_the_order_of_the_file() -> None:
    names = [f"client-{k}" for k in range(20)]
    first, _ = members_of_halves(names, 1)
    backwards, _ = members_of_halves(names[::-1], 1)
    assert {names[k] for k in first} == {names[::-1][k] for k in backwards}
    assert set(first) != set(members_of_halves(names, 2)[0])


@pytest.mark.parametrize(
    "whole",
    [EvenJSAM(loss_weight=40.0), USBM(loss_weight=40.0), FSBM(num_selected=4, loss_weight=40.0)],
    ids=lambda whole: whole.name,
)
def test_two_halves_that_are_alike_have_together_the_contract_of_the_whole(whole: RangeMechanism) -> None:
    """Every client stands twice, once in each half, under one prior that is given: nothing is lost by halving then."""
    c, prior = np.random.default_rng(6).random(8), scipy.stats.uniform(0, 1)
    seed = 0
    first, second = members_of_halves([str(k) for k in range(16)], seed)
    twice = np.empty(16)
    twice[first], twice[second] = c, c
    market = jsam.Market(sensitivities=twice, prior=prior)
    one, two = whole.plan(market), ByHalves.of(whole, seed).plan(market)
    assert two.selection_probs.sum() == pytest.approx(1)
    assert two.selection_probs == pytest.approx(one.selection_probs)
    assert two.epsilons == pytest.approx(one.epsilons)
    assert two.objective == pytest.approx(one.objective)


def test_caps_floors_and_sizes_hold_for_the_whole() -> None:
    rng = np.random.default_rng(7)
    reports = rng.uniform(0.1, 1, 20)
    some = EvenJSAM(loss_weight=20.0, max_selection_prob=0.2, min_clients=7, max_epsilon=0.5)
    contract = plan_by_halves(some, reports, samples=rng.integers(50, 60, 20).tolist(), learn=lognormal)
    assert contract.selection_probs.sum() == pytest.approx(1)
    assert contract.selection_probs.max() <= 0.2 * (1 + 1e-9)
    assert contract.num_selected >= 7
    assert contract.epsilons.max() <= 0.5
    assert contract.data_shares is not None


def test_the_audit_accepts_halves_and_respond_is_a_whole_plan() -> None:
    reports = np.random.default_rng(8).uniform(0.1, 1, 10)
    prior = learned_priors(reports, [str(k) for k in range(10)], 0, lognormal)
    market = jsam.Market(sensitivities=reports, prior=prior)
    report = jsam.audit(market, ByHalves.of(EvenJSAM(loss_weight=20.0), 0), grid=8)
    assert report.ok
    assert {check.name: check.status for check in report.checks}["consistency"] == "passed"


def test_a_budget_is_kept_by_each_half_from_its_own_prior() -> None:
    reports = np.random.default_rng(9).uniform(0.1, 1, 12)
    names = [str(k) for k in range(12)]
    rules = Rules(mechanism="jsam-even", prior="halves", budget=2.0)
    market = jsam.Market(sensitivities=reports, prior=learned_priors(reports, names, rules.seed, lognormal))
    mechanism, _ = rules.settled(rules.mechanism_at(1.0), market)
    assert isinstance(mechanism, ByHalves)
    changed = reports.copy()
    mine = int(members_of_halves(names, rules.seed)[0][0])
    changed[mine] *= 1.5
    lie = jsam.Market(sensitivities=changed, prior=learned_priors(changed, names, rules.seed, lognormal))
    other, _ = rules.settled(rules.mechanism_at(1.0), lie)
    assert isinstance(other, ByHalves)
    assert mechanism.found_for is not None
    assert other.found_for is not None
    assert other.found_for[0] == mechanism.found_for[0]
    assert other.found_for[1] != mechanism.found_for[1]
    with pytest.raises(InputError, match="a budget with a probability"):
        replace(rules, budget_probability=0.9).settled(mechanism, market)


def test_what_has_no_halves_is_refused() -> None:
    with pytest.raises(InputError, match="at least 10 clients are needed, there are 9"):
        plan_by_halves(EvenJSAM(loss_weight=1.0), np.linspace(0.1, 1, 9))
    with pytest.raises(NotSupportedError, match="cannot be planned by halves"):
        Rules(mechanism="fairquery", prior="halves", budget=1.0).mechanism_at(1.0)
    with pytest.raises(InputError, match="learned from the reports in a file of clients"):
        Rules(mechanism="jsam-even", prior="halves", loss_weight=1.0).market([0.1, 0.2])
