"""Fairness reports say what the contract's numbers say, and a cap's price is what it adds to the objective."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import scipy.stats

import jsam
from jsam.errors import InputError
from jsam.mechanism.fairness import CAPS, Fairness, cap_prices, gini
from jsam.mechanism.registry import mechanism_named

UNIFORM = scipy.stats.uniform(0, 1)


def market(clients: int, *, seed: int = 0, unequal: bool = False) -> jsam.Market:
    rng = np.random.default_rng(seed)
    samples = rng.integers(5, 60, clients).tolist() if unequal else None
    return jsam.Market(sensitivities=rng.random(clients), prior=UNIFORM, samples=samples)


@pytest.mark.parametrize("seed", range(5))
def test_gini_is_half_the_mean_difference_over_the_mean(seed: int) -> None:
    amounts = np.random.default_rng(seed).pareto(1.5, 30)
    by_pairs = np.mean([abs(a - b) for a, b in itertools.product(amounts, amounts)]) / 2 / amounts.mean()
    assert gini(amounts) == pytest.approx(by_pairs)


def test_gini_at_its_ends() -> None:
    assert gini(np.full(7, 0.3)) == 0
    assert gini(np.array([])) == 0
    assert gini(np.zeros(3)) == 0
    assert gini(np.eye(50)[3]) == pytest.approx(1 - 1 / 50)


def test_even_shares_are_even_and_the_papers_are_not() -> None:
    some = market(40)
    even = Fairness.of(jsam.plan(some, jsam.EvenJSAM(loss_weight=20.0, bias_weight=0.5)))
    paper = Fairness.of(jsam.plan(some, jsam.JSAM(loss_weight=2.0)))
    assert even.gini_kept == 0
    assert even.draws_ratio == 1
    assert even.gini_all == pytest.approx(1 - even.num_selected / 40)
    assert paper.draws_ratio > 2
    assert paper.gini_kept > 0.1


def test_money_is_counted_client_by_client() -> None:
    contract = jsam.plan(market(12), jsam.EvenJSAM(loss_weight=20.0))
    found = Fairness.of(contract)
    assert contract.payments is not None
    bought = [k for k in range(12) if contract.epsilons[k] > 0]
    prices = sorted(contract.payments[k] / contract.epsilons[k] for k in bought)
    assert found.payment_per_epsilon_min == pytest.approx(prices[0])
    assert found.payment_per_epsilon_max == pytest.approx(prices[-1])
    assert found.payment_per_epsilon_median == pytest.approx(np.median(prices))
    rent = sum(contract.payments[k] - contract.sensitivities[k] * contract.epsilons[k] for k in bought)
    assert found.rent_share == pytest.approx(rent / sum(contract.payments))
    assert found.largest_epsilon == max(contract.epsilons)
    informed = Fairness.of(jsam.plan(market(12), mechanism_named("jsam-ci", loss_weight=20.0)))
    assert informed.rent_share == pytest.approx(0, abs=1e-12)


def test_without_payments_nothing_is_said_of_money() -> None:
    found = Fairness.of(jsam.plan(market(12), jsam.EvenJSAM(loss_weight=20.0), payments=False))
    assert found.rent_share is None
    assert found.payment_per_epsilon_median is None
    assert found.num_selected > 0


def test_with_unequal_data_even_shares_are_even_per_record() -> None:
    found = Fairness.of(jsam.plan(market(12, unequal=True), jsam.EvenJSAM(loss_weight=20.0)))
    assert found.draws_ratio > 1.5
    assert found.draws_ratio_per_record == pytest.approx(1)


@pytest.mark.parametrize("name", ["jsam", "jsam-even", "usbm"])
@pytest.mark.parametrize("unequal", [False, True])
def test_a_cap_costs_what_it_adds_to_the_objective_and_never_less_than_nothing(name: str, unequal: bool) -> None:
    """Each plan without a cap is made here once more, by name and number."""
    some = market(10, seed=3, unequal=unequal)
    caps = {"max_selection_prob": 0.4, "max_epsilon": 1.0, "min_clients": 6, "min_selection_prob": 0.01}
    if name == "jsam" and unequal:
        del caps["max_epsilon"]
    if name == "jsam" and not unequal:
        caps = {"max_epsilon": 1.0, "min_clients": 6}
    weights = {"loss_weight": 8.0, "bias_weight": 0.4}
    mechanism = mechanism_named(name, **weights, **caps)
    contract = jsam.plan(some, mechanism)
    prices = list(cap_prices(mechanism, some, contract))
    assert [entry.without for entry in prices] == [
        *(cap for cap in CAPS if cap in caps),
        " ".join(cap for cap in CAPS if cap in caps),
    ]
    for entry in prices:
        left = {cap: value for cap, value in caps.items() if cap not in entry.without.split()}
        free = jsam.plan(some, mechanism_named(name, **weights, **left), payments=False)
        assert entry.loss_bound == free.loss_bound
        assert entry.price == contract.objective - free.objective
        # The tangents of a cap on ε with unequal data stand 3e-4 above the root at most.
        assert entry.price >= -3e-4 * contract.objective
    assert max(entry.price for entry in prices) > 0 or name == "usbm"


def test_without_caps_nothing_has_a_price_and_without_a_loss_weight_nothing_can() -> None:
    some, free = market(10), jsam.EvenJSAM(loss_weight=8.0)
    assert list(cap_prices(free, some, jsam.plan(some, free))) == []
    spender = mechanism_named("fairquery", loss_weight=1.0, budget=2.0, max_epsilon=1.0)
    with pytest.raises(InputError, match="fairquery has no loss weight"):
        list(cap_prices(spender, some, jsam.plan(some, spender)))


def test_a_report_is_plain_numbers() -> None:
    found = Fairness.of(jsam.plan(market(5), jsam.EvenJSAM(loss_weight=8.0)))
    assert found.as_dict() == dataclasses.asdict(found)
    assert all(isinstance(value, int | float) for value in found.as_dict().values())
