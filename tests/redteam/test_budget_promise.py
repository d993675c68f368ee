"""What a budget promises holds on fresh markets, whatever the seed; a mean without a margin does not keep it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.stats

import jsam
from benchmarks.budgets import FreshMarkets
from jsam.mechanism.budget.budget_cache import BudgetCache
from jsam.mechanism.budget.loss_weight import loss_weight_for_budget

RULE = jsam.JSAM(loss_weight=1.0)
BETA = scipy.stats.beta(2, 5)
NOTHING_KEPT = BudgetCache(None)
# A check on fresh markets has an error of its own; so many standard errors of it are borne.
BORNE = 3.0


def bought(budget: float, prior: Any, clients: int, **options: Any) -> Any:
    return loss_weight_for_budget(RULE, budget, prior=prior, num_clients=clients, cache=NOTHING_KEPT, **options)


@pytest.fixture(scope="module")
def fresh() -> dict[tuple[str, int], FreshMarkets]:
    return {
        (name, clients): FreshMarkets(RULE, prior, clients, markets=markets, seed=99)
        for name, prior in (("uniform", scipy.stats.uniform(0, 1)), ("beta", BETA))
        for clients, markets in ((2, 100_000), (10, 4_000))
    }


def overspent(found: Any, markets: FreshMarkets) -> float:
    """By how many standard errors of the check the mean cost of fresh markets is above the budget."""
    costs = markets.costs(found.loss_weight)
    return float((costs.mean() - found.budget) / (costs.std(ddof=1) / math.sqrt(len(costs))))


@pytest.mark.parametrize("name", ["uniform", "beta"])
@pytest.mark.parametrize(("clients", "budget"), [(2, 0.5), (10, 2.5)])
def test_the_mean_cost_of_fresh_markets_keeps_to_the_budget_and_nearly_uses_it(
    name: str, clients: int, budget: float, fresh: dict[tuple[str, int], FreshMarkets]
) -> None:
    prior = BETA if name == "beta" else scipy.stats.uniform(0, 1)
    for seed in range(2):
        found = bought(budget, prior, clients, seed=seed)
        assert found.expected_cost_bound <= budget * (1 + 1e-6)
        assert found.expected_cost > 0.99 * budget
        assert overspent(found, fresh[name, clients]) < BORNE


def test_a_mean_without_a_margin_is_caught(fresh: dict[tuple[str, int], FreshMarkets]) -> None:
    """As it was before: the loss weight at which the mean over 2,000 plain draws is the budget."""
    markets, odd = fresh["uniform", 2], 0
    for seed in range(12):
        plain = FreshMarkets(RULE, scipy.stats.uniform(0, 1), 2, markets=2_000, seed=seed)
        low, high = 0.05, 2.0
        for _ in range(30):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if plain.costs(middle).mean() <= 0.5 else (low, middle)
        costs = markets.costs(low)
        odd += bool((costs.mean() - 0.5) / (costs.std(ddof=1) / math.sqrt(len(costs))) > BORNE)
    assert odd >= 1


@pytest.mark.parametrize("probability", [0.5, 0.95])
def test_fresh_markets_keep_to_the_budget_as_often_as_asked(
    probability: float, fresh: dict[tuple[str, int], FreshMarkets]
) -> None:
    for clients, budget in ((2, 0.5), (10, 2.5)):
        found = bought(budget, scipy.stats.uniform(0, 1), clients, probability=probability)
        assert found.probability_bound >= probability - 1e-9
        totals = fresh["uniform", clients].payments(found.loss_weight, 4_000)
        share = float((totals <= budget).mean())
        assert share > probability - BORNE * math.sqrt(share * (1 - share) / len(totals))
        # And no more is left unspent than the number of drawn markets demands.
        assert share < probability + 6 * math.sqrt(probability * (1 - probability) / found.payment_draws)


def test_the_loss_weight_of_a_probability_has_no_steps() -> None:
    """With 1,000 clients Σπ hardly varies: steps of 2% gave the same loss weight for 0.5 and for 0.95."""
    often, mostly = (
        bought(250.0, scipy.stats.uniform(0, 1), 1_000, probability=probability).loss_weight
        for probability in (0.5, 0.95)
    )
    assert 1.005 < often / mostly < 1.1
    # And it follows the budget, however little that moves.
    found = [
        bought(budget, scipy.stats.uniform(0, 1), 3, probability=0.9).loss_weight for budget in (1.0, 1.001, 1.002)
    ]
    ratios = [found[1] / found[0], found[2] / found[1]]
    assert all(1.0005 < ratio < 1.005 for ratio in ratios)


def test_a_heavy_tail_is_looked_into() -> None:
    """USBM pays for the whole tail: few plain draws reach there, and their mean is too low most of the time."""
    prior = scipy.stats.expon(scale=0.5)
    rule = jsam.USBM(loss_weight=1.0)
    found = [
        loss_weight_for_budget(rule, 1.0, prior=prior, num_clients=1, seed=seed, cache=NOTHING_KEPT)
        for seed in range(2)
    ]
    # E[√v] for one client, by integration: B = √(η v) is all that one client costs.
    mean_root, _ = scipy.integrate.quad(
        lambda c: math.sqrt(c + 0.5 * math.expm1(2 * c)) * 2 * math.exp(-2 * c), 0, 40, limit=200
    )
    for plan in found:
        true = math.sqrt(plan.loss_weight) * mean_root
        assert 0.99 < true <= 1.0


def test_the_plan_says_how_sure_it_is() -> None:
    found = bought(2.0, scipy.stats.uniform(0, 1), 6)
    assert found.confidence == 0.999
    assert 0 < found.expected_cost_error < 0.01
    assert found.expected_cost < found.expected_cost_bound <= 2.0 * (1 + 1e-6)
    assert np.isfinite(found.probability_bound)
    assert set(found.as_dict()) >= {"expected_cost_bound", "confidence", "probability_seen", "probability_bound"}
