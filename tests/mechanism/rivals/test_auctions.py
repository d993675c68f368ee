"""Auctions within a budget: each against its rule in plain words, against what it claims, and against the audit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.optimize
import scipy.stats

import jsam
from jsam.errors import InputError
from jsam.mechanism.audit import audit
from jsam.mechanism.families import RangeMechanism
from jsam.mechanism.families.rivals.all_in import aggregation_weights
from jsam.mechanism.families.rivals.posted_price import PostedPrice
from jsam.mechanism.families.rivals.spending import USUAL_EPSILON, SpendsBudget, WholeEpsilon
from jsam.mechanism.registry import description_of, mechanism_named
from tests.mechanism.rivals.markets import PRIORS, auctions, largest_gain, market_of
from tests.oracles import rivals as oracle

TRUTHFUL = ("fairquery", "proportional-share", "csra", "posted-price")
NOT_CLAIMED = ("all-in", "pay-as-bid")
AUCTIONS = (*TRUTHFUL, *NOT_CLAIMED)

minimize: Any = scipy.optimize.minimize  # its stubs know nothing of lambdas


def by_the_rule(market: jsam.Market, mechanism: RangeMechanism, name: str) -> oracle.Sold:
    c = market.sensitivities.tolist()
    assert isinstance(mechanism, SpendsBudget)
    budget = mechanism.budget
    if name == "fairquery":
        return oracle.fairquery(c, budget)
    assert isinstance(mechanism, WholeEpsilon)
    whole = mechanism.supplies(market).tolist()
    if name == "proportional-share":
        return oracle.proportional_share(c, whole, budget, 1.0)
    if name == "posted-price":
        assert isinstance(mechanism, PostedPrice)
        order = list(range(len(c))) if market.tie_order is None else market.tie_order.tolist()
        price = mechanism.posted(market)
        in_order = oracle.posted_price([c[i] for i in order], [whole[i] for i in order], budget, price)
        places = np.argsort(order)
        return np.array(in_order[0])[places].tolist(), np.array(in_order[1])[places].tolist()
    sold: oracle.Sold = getattr(oracle, name.replace("-", "_"))(c, whole, budget)
    return sold


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("name", AUCTIONS)
def test_contracts_follow_the_rule_and_the_budget(name: str, prior: str) -> None:
    for market, mechanism in auctions(name, prior, 60):
        contract = mechanism.plan(market)
        eps, paid = by_the_rule(market, mechanism, name)
        assert contract.payments is not None
        assert contract.epsilons == pytest.approx(eps, rel=1e-12)
        assert contract.payments == pytest.approx(paid, rel=1e-9)
        assert isinstance(mechanism, SpendsBudget)
        budget = mechanism.budget
        assert contract.total_payment is not None
        assert contract.total_payment <= budget * (1 + 1e-12)
        assert contract.budget == budget
        assert np.all(contract.payments >= market.sensitivities * contract.epsilons * (1 - 1e-12)), "rational"
        sells = contract.epsilons > 0
        assert contract.selection_probs[sells] == pytest.approx(1 / sells.sum())
        assert contract.selection_probs[~sells].sum() == 0


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("name", TRUTHFUL)
def test_those_that_claim_it_are_truthful(name: str, prior: str) -> None:
    assert description_of(name).truthful
    for i, (market, mechanism) in enumerate(auctions(name, prior, 20)):
        assert largest_gain(market, mechanism, seed=i) <= 1e-6
    for i, (market, mechanism) in enumerate(auctions(name, prior, 4)):
        report = audit(market, mechanism, grid=8, clients=range(min(6, market.num_clients)), seed=i)
        assert report.ok, report.violations
        assert report.worst_relative_gain <= 1e-6


@pytest.mark.parametrize("prior", PRIORS)
def test_under_pay_as_bid_the_audit_finds_the_gain(prior: str) -> None:
    assert not description_of("pay-as-bid").truthful
    for i, (market, mechanism) in enumerate(auctions("pay-as-bid", prior, 4)):
        cheapest = int(np.argmin(market.sensitivities))
        report = audit(market, mechanism, grid=8, clients=[cheapest], seed=i)
        assert report.ok, "it claims no truthfulness, and the rest holds"
        assert report.worst_relative_gain > 0.05
        assert not audit(market, mechanism, grid=8, clients=[cheapest], strict=True).ok


def test_under_all_in_the_audit_finds_losers_who_gain() -> None:
    """Two who ask between B/(k+1) and B/k: the dearer one undercuts the other and is paid more than it asks."""
    market = market_of([0.1, 0.36, 0.42, 0.9])
    mechanism = mechanism_named("all-in", budget=1.0, whole_epsilon=1.0)
    assert mechanism.plan(market).epsilons.tolist() == [1.0, 1.0, 0.0, 0.0]
    report = audit(market, mechanism, grid=16)
    assert report.ok
    assert report.worst_client == "2"
    assert report.worst_gain == pytest.approx(0.5 - 0.42)
    assert not audit(market, mechanism, grid=16, strict=True).ok
    assert not description_of("all-in").truthful
    gains = [
        largest_gain(market, mechanism, clients=6, count=5) for market, mechanism in auctions("all-in", "uniform", 40)
    ]
    assert 1 <= sum(gain > 1e-3 for gain in gains) <= 20, "in some markets, not in most"


@pytest.mark.parametrize(("budget", "sellers"), [(1.0, 60), (3.0, 79), (10.0, 91)])
def test_how_many_sell_under_fairquery(budget: float, sellers: int) -> None:
    kept = [
        mechanism_named("fairquery", budget=budget)
        .plan(jsam.Market(sensitivities=np.random.default_rng(seed).uniform(0, 1, 100), prior=PRIORS["uniform"]))
        .num_selected
        for seed in range(100)
    ]
    assert np.mean(kept) == pytest.approx(sellers, abs=1.5)


def test_fairquery_under_a_cap_on_epsilon() -> None:
    for market, free in auctions("fairquery", "uniform", 20, most=20):
        cap = 1.5 / market.num_clients
        capped = mechanism_named("fairquery", budget=100.0, max_epsilon=cap)
        contract = capped.plan(market)
        assert contract.epsilons.max() <= cap * (1 + 1e-12)
        assert 0 < contract.num_selected <= market.num_clients - 1 / cap + 1e-9
        assert largest_gain(market, capped, clients=2) <= 1e-6
        assert free.plan(market).num_selected >= 1


def test_a_posted_price_comes_from_the_prior_alone() -> None:
    mechanism = mechanism_named("posted-price", budget=4.0, whole_epsilon=2.0)
    assert isinstance(mechanism, PostedPrice)
    prices = {
        mechanism.posted(jsam.Market(sensitivities=np.random.default_rng(s).uniform(0, 1, 50), prior=PRIORS["uniform"]))
        for s in range(5)
    }
    assert len(prices) == 1
    price = prices.pop()
    assert 50 * price * price * 2.0 == pytest.approx(4.0)  # N F(r) r ε = B
    rich = mechanism_named("posted-price", budget=1e6)
    assert isinstance(rich, PostedPrice)
    assert rich.posted(market_of([0.5] * 3)) == 1.0


def test_clients_of_several_priors_are_paid_no_more_than_each_could_ask() -> None:
    priors = [scipy.stats.uniform(0, 0.3), scipy.stats.uniform(0, 1), scipy.stats.uniform(0, 1)]
    market = market_of([0.1, 0.2, 0.9], priors)
    for name in TRUTHFUL:
        mechanism = mechanism_named(name, budget=1.5)
        if name != "fairquery":
            mechanism = mechanism_named(name, budget=1.5, whole_epsilon=1.0)
        contract = mechanism.plan(market)
        assert contract.payments is not None
        assert contract.payments[0] <= 0.3 * contract.epsilons[0] * (1 + 1e-12)
        assert audit(market, mechanism, grid=8).ok


def test_a_whole_epsilon_is_public() -> None:
    """One for all unless said otherwise, and never from the reports."""
    market = market_of([0.01, 0.02, 0.03])
    assert mechanism_named("csra", budget=1.0).plan(market).epsilons.max() == USUAL_EPSILON
    assert mechanism_named("csra", budget=1.0, max_epsilon=2.0).plan(market).epsilons.max() == 2.0
    own = mechanism_named("csra", budget=1.0, whole_epsilon=[1.0, 2.0, 3.0]).plan(market)
    assert own.epsilons.tolist() == [1.0, 2.0, 0.0]
    with pytest.raises(InputError, match=r"whole_epsilon is 3\.0"):
        mechanism_named("csra", budget=1.0, whole_epsilon=3.0, max_epsilon=2.0)
    with pytest.raises(InputError, match="3 numbers, one for each client"):
        mechanism_named("csra", budget=1.0, whole_epsilon=[1.0, 2.0]).plan(market)


def error_of(w: np.ndarray, eps: np.ndarray, num_clients: int, noise_weight: float, bias_weight: float) -> float:
    distance = np.abs(w - 1 / num_clients).sum() + (num_clients - len(w)) / num_clients
    return float((bias_weight * distance) ** 2 + noise_weight * ((w / eps) ** 2).sum())


@pytest.mark.parametrize("seed", range(30))
def test_aggregation_weights_are_the_least_error(seed: int) -> None:
    rng = np.random.default_rng(seed)
    k = int(rng.integers(2, 8))
    N = k + int(rng.integers(0, 6))
    eps, noise, bias = 10 ** rng.uniform(-1, 1, k), 10 ** rng.uniform(-3, 1), 10 ** rng.uniform(-1, 0.5)
    w = aggregation_weights(eps, N, noise, bias)
    assert w.sum() == pytest.approx(1)
    assert w.min() >= 0
    # |w − u| as a sum of two parts makes the problem smooth.
    least = min(
        minimize(
            lambda x: (bias * (x[k:].sum() + (N - k) / N)) ** 2 + noise * ((x[:k] / eps) ** 2).sum(),
            np.concatenate([start, np.abs(start - 1 / N)]),
            method="SLSQP",
            bounds=[(0, None)] * (2 * k),
            constraints=[
                {"type": "eq", "fun": lambda x: x[:k].sum() - 1},
                {"type": "ineq", "fun": lambda x: x[k:] - x[:k] + 1 / N},
                {"type": "ineq", "fun": lambda x: x[k:] + x[:k] - 1 / N},
            ],
            options={"maxiter": 500, "ftol": 1e-14},
        ).fun
        for start in (np.full(k, 1 / k), eps**2 / (eps**2).sum())
    )
    assert error_of(w, eps, N, noise, bias) <= least * (1 + 1e-6) + 1e-12


def test_all_in_weighs_updates_where_sellers_sell_differently() -> None:
    market = market_of([0.1, 0.2, 0.3, 0.9])
    alike = mechanism_named("all-in", budget=2.0, whole_epsilon=1.0).plan(market)
    assert alike.update_weights is None
    mechanism = mechanism_named("all-in", budget=3.0, whole_epsilon=[1.0, 0.1, 4.0, 1.0])
    contract = mechanism.plan(market)
    assert contract.update_weights is not None
    w = contract.selection_probs * contract.update_weights
    assert w.sum() == pytest.approx(1)
    assert w[:3] == pytest.approx(aggregation_weights(contract.epsilons[:3], 4, 1.0, 1.0))
    assert 0 < w[1] < w[0] <= w[2] * (1 + 1e-12)
    assert audit(market, mechanism, grid=8).ok


@pytest.mark.parametrize("name", AUCTIONS)
def test_caps_on_p_and_markets_without_a_seller(name: str) -> None:
    market = market_of([0.5, 0.7, 0.9])
    with pytest.raises(InputError, match="keeps to no cap on p"):
        mechanism_named(name, budget=1.0, max_selection_prob=0.5).plan(market)
    nobody = mechanism_named(name, budget=1e-3).plan(market)
    assert nobody.num_selected == 0
    assert nobody.total_payment == 0
    with pytest.raises(InputError, match="buys from nobody"):
        audit(market, mechanism_named(name, budget=1e-3))


@pytest.mark.parametrize("name", AUCTIONS)
def test_equal_reports_are_told_apart_by_the_id(name: str) -> None:
    """Not by the place in the file, and in `respond` as in `plan`."""
    ids = ["a", "b", "c", "d", "e"]
    mechanism = mechanism_named(name, budget=0.6)
    if name != "fairquery":
        mechanism = mechanism_named(name, budget=0.6, whole_epsilon=1.0)
    first = mechanism.plan(market_of([0.3] * 5, ids=ids))
    again = mechanism.plan(market_of([0.3] * 5, ids=ids[::-1]))
    assert dict(zip(ids, first.epsilons, strict=True)) == dict(zip(ids[::-1], again.epsilons, strict=True))
    market = market_of([0.3] * 5, ids=ids)
    for k in range(5):
        assert mechanism.respond(market, k, np.array([0.3])).epsilons[0] == first.epsilons[k]
