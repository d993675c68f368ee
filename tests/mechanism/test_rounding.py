"""The bound on what rounded sizes cost, against all subsets by their true sizes, which share no code with it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import scipy.stats

import jsam
from jsam.mechanism.families.base import RangeMechanism
from jsam.mechanism.rounding import rounding_of
from tests.oracles import best_even, best_receiver

UNIFORM = scipy.stats.uniform(0, 1)


def anything(p: Any) -> bool:
    return True


def market(rng: np.random.Generator, clients: int, most: int) -> jsam.Market:
    samples = rng.integers(most // 50, most, clients).tolist()
    return jsam.Market(sensitivities=rng.random(clients), prior=UNIFORM, samples=samples)


def chosen(rng: np.random.Generator) -> dict[str, float]:
    return {"loss_weight": float(10 ** rng.uniform(0, 2)), "bias_weight": float(10 ** rng.uniform(-1.5, 0.3))}


@pytest.mark.parametrize("cap", [None, 1.0])
def test_no_selection_is_better_by_more_than_the_bound_says(cap: float | None) -> None:
    rng = np.random.default_rng(1)
    for _ in range(15):
        some = market(rng, 6, 10_000_000)
        mechanism = jsam.EvenJSAM(**chosen(rng), max_epsilon=cap)
        contract = jsam.plan(some, mechanism, payments=False)
        rounding = rounding_of(mechanism, some, contract)
        assert rounding is not None
        assert rounding.records_per_unit > 1
        assert some.data_shares is not None
        least = best_even(some.virtual_costs, some.data_shares, contract.weights, anything)
        assert contract.objective <= least * (1 + rounding.loss) * (1 + 1e-9)


def test_the_papers_loss_has_a_bound_too() -> None:
    rng = np.random.default_rng(2)
    for _ in range(10):
        some, mechanism = market(rng, 5, 10_000_000), jsam.JSAM(**chosen(rng))
        contract = jsam.plan(some, mechanism, payments=False)
        rounding = rounding_of(mechanism, some, contract)
        assert rounding is not None
        assert some.data_shares is not None
        least = best_receiver(some.virtual_costs, some.data_shares, contract.weights, anything)
        assert contract.objective <= least * (1 + rounding.loss) * (1 + 1e-9)


def test_with_many_clients_the_bound_is_small_and_a_worse_plan_has_a_larger_one() -> None:
    rng = np.random.default_rng(3)
    some = market(rng, 200, 20_000)
    mechanism = jsam.EvenJSAM(loss_weight=30.0, bias_weight=0.3)
    contract = jsam.plan(some, mechanism, payments=False)
    rounding = rounding_of(mechanism, some, contract)
    assert rounding is not None
    assert rounding.loss < 1e-3
    worse = dataclasses.replace(contract, epsilons=contract.epsilons * 1.3)
    dearer = rounding_of(mechanism, some, worse)
    assert dearer is not None
    assert dearer.loss == pytest.approx(worse.objective / contract.objective * (1 + rounding.loss) - 1)
    assert dearer.loss > 0.01


@pytest.mark.parametrize(
    ("mechanism", "samples"),
    [
        (jsam.EvenJSAM(loss_weight=5.0), [30, 40, 50]),  # exact: there is nothing to round
        (jsam.EvenJSAM(loss_weight=5.0), [3_000_000, 4_000_000, 5_000_000]),  # a common unit is exact too
        (jsam.EvenJSAM(loss_weight=5.0), None),
        (jsam.USBM(loss_weight=5.0), [3_000_001, 4_000_003, 5_000_007]),  # selects by no sizes
        (jsam.EvenJSAM(loss_weight=5.0, min_clients=2), [3_000_001, 4_000_003, 5_000_007]),
    ],
)
def test_where_nothing_is_rounded_or_nothing_can_be_said_nothing_is_said(
    mechanism: RangeMechanism, samples: list[int] | None
) -> None:
    some = jsam.Market(sensitivities=np.array([0.2, 0.3, 0.4]), prior=UNIFORM, samples=samples)
    assert rounding_of(mechanism, some, jsam.plan(some, mechanism, payments=False)) is None
