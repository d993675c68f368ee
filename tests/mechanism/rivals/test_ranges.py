"""VCG, the menu and power-of-choice: what each minimises and pays, from definitions, and what the audit finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import scipy.stats

import jsam
from jsam.errors import InputError
from jsam.mechanism._arrays import FloatArray
from jsam.mechanism.audit import audit
from jsam.mechanism.budget.budget_cache import BudgetCache
from jsam.mechanism.families.rivals.menu import Menu
from jsam.mechanism.families.rivals.power_of_choice import PowerOfChoice
from jsam.mechanism.families.rivals.vcg import VCG
from jsam.mechanism.registry import description_of, mechanism_named
from tests.mechanism.rivals.markets import PRIORS, largest_gain, market_of, random_market
from tests.oracles import brute_force, objective

NAMES = ("vcg", "menu-3", "power-of-choice-2")

minimize: Any = scipy.optimize.minimize


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("name", NAMES)
def test_they_are_truthful_and_rational(name: str, prior: str) -> None:
    assert description_of(name).truthful
    for seed in range(8):
        market, rng = random_market(prior, seed, most=25)
        mechanism = mechanism_named(name, loss_weight=float(10 ** rng.uniform(-0.5, 1.5)))
        assert largest_gain(market, mechanism, clients=2, count=5, seed=seed) <= 1e-6
        contract = mechanism.plan(market)
        assert contract.payments is not None
        assert np.all(contract.payments >= market.sensitivities * contract.epsilons * (1 - 1e-9))
    for seed in range(2):
        market, _ = random_market(prior, seed, most=12)
        for caps in ({}, {"max_epsilon": 0.5}):
            report = audit(market, mechanism_named(name, loss_weight=5.0, **caps), grid=8, clients=[0, 1, 2])
            assert report.ok, report.violations
            assert report.worst_relative_gain <= 1e-6


# VCG


def least(c: FloatArray, eta: float) -> float:
    """The least η · loss + Σ c ε over all selection probabilities, without the planner."""
    return float(brute_force(c, eta=eta, Q=1.0, zeta=1.0)[0])


@pytest.mark.parametrize("seed", range(5))
def test_vcg_pays_what_the_others_lose_without_a_client(seed: int) -> None:
    """Clarke's payments: c ε + (their least objective without k) − (the least with k), where k can be dropped."""
    rng = np.random.default_rng(seed)
    c = np.sort(rng.uniform(0, 0.2, 3))
    prior = scipy.stats.uniform(0, 1)
    contract = VCG(loss_weight=0.5).plan(market_of(c.tolist(), prior))
    assert contract.payments is not None
    known = jsam.JSAMCI(loss_weight=0.5).plan(market_of(c.tolist(), prior))
    assert contract.epsilons == pytest.approx(known.epsilons, rel=1e-12), "the efficient selection"
    with_all = known.objective
    assert with_all == pytest.approx(least(c, 0.5), rel=1e-6)
    for k in range(3):
        dearest, absent = (np.where(np.arange(3) == k, z, c) for z in (1.0, 1e9))
        rent = least(dearest, 0.5) - with_all
        assert contract.payments[k] == pytest.approx(c[k] * contract.epsilons[k] + rent, rel=1e-5)
        if contract.epsilons[k] > 0 and VCG(loss_weight=0.5).plan(market_of(dearest.tolist(), prior)).epsilons[k] == 0:
            assert least(absent, 0.5) == pytest.approx(least(dearest, 0.5), rel=1e-6), "so it is Clarke's pivot"


def test_under_a_uniform_prior_vcg_is_jsam_with_half_the_loss_weight() -> None:
    market, _ = random_market("uniform", 5)
    vcg, own = VCG(loss_weight=2.0).plan(market), jsam.JSAM(loss_weight=4.0).plan(market)
    assert vcg.epsilons == pytest.approx(own.epsilons, rel=1e-12)
    assert vcg.payments == pytest.approx(own.payments, rel=1e-9)


def test_vcg_costs_more_than_jsam_for_the_same_loss() -> None:
    """Efficiency has its price: at the loss bound that VCG reaches JSAM is expected to pay less."""
    market = market_of(np.linspace(0.01, 0.99, 40).tolist(), scipy.stats.beta(2, 5))
    vcg = VCG(loss_weight=3.0).plan(market)
    etas = np.geomspace(1, 300, 60)
    plans = [jsam.JSAM(loss_weight=float(eta)).plan(market, payments=False) for eta in etas]
    assert min(plan.expected_cost for plan in plans if plan.loss_bound <= vcg.loss_bound) < vcg.expected_cost


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("name", NAMES)
def test_a_budget_is_what_is_due_on_average(name: str, prior: str, tmp_path: Path) -> None:
    N, budget = 20, 4.0
    mechanism = mechanism_named(name, loss_weight=1.0)
    bought = jsam.loss_weight_for_budget(
        mechanism, budget, prior=PRIORS[prior], num_clients=N, cache=BudgetCache(tmp_path)
    )
    assert 0.97 * budget <= bought.expected_cost <= bought.expected_cost_bound <= budget * (1 + 1e-9)
    rng = np.random.default_rng(0)
    settled = mechanism.with_loss_weight(bought.loss_weight)
    due = np.array(
        [
            settled.plan(
                jsam.Market(sensitivities=PRIORS[prior].rvs(N, random_state=rng), prior=PRIORS[prior])
            ).payments.sum()  # type: ignore[union-attr]
            for _ in range(60)
        ]
    )
    error = due.std(ddof=1) / np.sqrt(len(due))
    assert abs(due.mean() - bought.expected_cost) <= 4 * (error + bought.expected_cost_error)


# A menu of K contracts


def test_all_of_a_type_get_the_same_item_and_neighbours_are_indifferent() -> None:
    K = 4
    market = market_of(np.linspace(0.01, 0.99, 21).tolist())
    contract = Menu(num_types=K, loss_weight=5.0).plan(market)
    assert contract.payments is not None
    types = np.minimum((market.sensitivities * K).astype(int), K - 1)
    items: list[tuple[float, float]] = []
    for j in range(K):
        eps, paid = contract.epsilons[types == j], contract.payments[types == j]
        assert np.ptp(eps) <= 1e-12
        assert np.ptp(paid) <= 1e-6
        items.append((float(eps[0]), float(paid[0])))
    ends = [(j + 1) / K for j in range(K)]
    # The menu as one client of the dearest type faces it: others' choices stay, so its items are those it could pick.
    dearest = int(np.argmax(market.sensitivities))
    faced = Menu(num_types=K, loss_weight=5.0).respond(market, dearest, np.array([end - 0.1 for end in ends]))
    assert np.all(np.diff(faced.epsilons) < 0)
    assert faced.payments[-1] == pytest.approx(1.0 * faced.epsilons[-1], rel=1e-6), "the dearest report gains nothing"
    for j in range(K - 1):
        worth = [faced.payments[i] - ends[j] * faced.epsilons[i] for i in (j, j + 1)]
        assert worth[0] == pytest.approx(worth[1], rel=1e-5), "indifferent between its own item and the next"


@pytest.mark.parametrize("seed", range(4))
def test_a_menu_is_the_best_among_those_that_types_pick_truthfully(seed: int) -> None:
    """A search over the items of all types; each payment is the least under which nobody leaves or picks another.

    How many are of which type is known here, so a type pays in the mean of Σ v ε over its stretch.
    """
    K, eta = 3, 4.0
    rng = np.random.default_rng(seed)
    market = market_of(rng.uniform(0, 1, 6).tolist())
    contract = Menu(num_types=K, loss_weight=eta).plan(market)
    ends = np.arange(K + 1) / K
    mean_cost = (ends[1:] ** 2 - ends[:-1] ** 2) * K  # H(q) = q² under U(0, 1)
    types = np.minimum((market.sensitivities * K).astype(int), K - 1)

    def value(logs: FloatArray) -> float:
        eps = np.exp(logs)[types]
        return objective(np.full(6, 1 / 6), eps, mean_cost[types], eta=eta, Q=1.0, zeta=1.0)

    present = np.unique(types)
    options = {"xatol": 1e-10, "fatol": 1e-13, "maxiter": 4000}
    best = np.exp(minimize(value, np.zeros(K), method="Nelder-Mead", options=options).x)
    assert contract.epsilons == pytest.approx(best[types], rel=1e-4)
    assert len(present) >= 2


def test_many_types_are_usbm() -> None:
    market, _ = random_market("uniform", 3)
    fine = Menu(num_types=4000, loss_weight=5.0).plan(market)
    usbm = jsam.USBM(loss_weight=5.0).plan(market)
    assert fine.epsilons == pytest.approx(usbm.epsilons, rel=2e-3)
    assert fine.payments == pytest.approx(usbm.payments, rel=2e-3)
    costs = [Menu(num_types=K, loss_weight=5.0).plan(market).objective for K in (1, 2, 8, 4000)]
    assert costs[-1] < costs[0], "more types, a better trade"


def test_an_irregular_prior_pools_types() -> None:
    """Two humps: the mean virtual cost falls from one type to the next, and a menu must not."""
    humps = jsam.parse_prior("uniform:0,1")
    histogram = scipy.stats.rv_histogram((np.array([0.9, 0.01, 0.09]), np.array([0.0, 0.3, 0.6, 1.0])), density=False)
    for prior in (humps, histogram):
        market = jsam.Market(sensitivities=np.linspace(0.05, 0.95, 8), prior=prior)
        mechanism = Menu(num_types=12, loss_weight=5.0)
        assert np.all(np.diff(mechanism.plan(market).epsilons) <= 0)
        assert audit(market, mechanism, grid=8, clients=[0, 4, 7]).ok


@pytest.mark.parametrize(
    ("name", "message"),
    [("menu-0", "at least 1"), ("power-of-choice-0", "1 to 3 are"), ("power-of-choice-4", "1 to 3 are")],
)
def test_sizes_that_cannot_be(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        mechanism_named(name, loss_weight=1.0).plan(market_of([0.1, 0.2, 0.3]))


def test_a_menu_needs_a_dearest_report() -> None:
    market = market_of([0.1, 0.2, 0.3], scipy.stats.lognorm(s=0.5, scale=0.3))
    with pytest.raises(InputError, match="no dearest report"):
        Menu(num_types=3, loss_weight=1.0).plan(market)


# Power-of-choice


def test_power_of_choice_prices_the_worst_number_of_draws() -> None:
    """Noise for T draws where T M/N are expected: as USBM with a noise weight N/M times as large."""
    market, _ = random_market("uniform", 1)
    N = market.num_clients
    for M in (1, 2, N):
        contract = PowerOfChoice(num_selected=M, loss_weight=5.0, noise_weight=2.0).plan(market)
        usbm = jsam.USBM(loss_weight=5.0, noise_weight=2.0 * N / M).plan(market)
        assert contract.mechanism == f"power-of-choice-{M}"
        assert contract.selection_probs == pytest.approx(1 / N)
        assert contract.epsilons.tolist() == usbm.epsilons.tolist()
        assert contract.payments is not None
        assert usbm.payments is not None
        assert contract.payments.tolist() == usbm.payments.tolist()
        assert contract.loss_bound == pytest.approx(usbm.loss_bound)
        assert contract.noise_weight == pytest.approx(2.0 * N / M)
