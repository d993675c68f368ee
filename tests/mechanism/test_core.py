"""Unequal data: a search of the uncertain clients alone is exact, and what rounding of sizes loses is bounded."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

import jsam
from jsam.mechanism._arrays import BoolArray, FloatArray, IntArray
from jsam.mechanism.contract_files import contract_from_dict, storable
from jsam.mechanism.families import EvenJSAM
from jsam.mechanism.families.base import RangeMechanism
from jsam.mechanism.solver import counted
from jsam.mechanism.solver.core import core_of
from jsam.mechanism.solver.counted import CappedEvenStage, EvenStage, ReceiverStage, Sizes, Stage, even_range
from jsam.mechanism.weights import Weights
from tests.oracles import best_even, best_receiver

UNIFORM = scipy.stats.uniform(0, 1)
KINDS = ["even", "tangent", "receiver", "cap", "lots", "lots tangent"]


def drawn_stage(rng: np.random.Generator, kind: str, clients: int) -> tuple[Stage, FloatArray, BoolArray]:
    v = rng.uniform(0.01, 2, clients)
    weights = Weights(
        loss_weight=float(10 ** rng.uniform(-1, 2)),
        noise_weight=float(10 ** rng.uniform(-1, 1.5)),
        bias_weight=float(10 ** rng.uniform(-1.5, 0.5)),
        max_epsilon=float(np.exp(rng.uniform(-2, 2))) if "tangent" in kind else None,
        max_selection_prob=0.5 if kind == "cap" else None,
    )
    samples = rng.integers(3, 60, clients)
    samples[0] = 5  # the largest client stays below half of all data
    # By lots noise counts differently for each client, and some hold less than a unit.
    by_lots = kind.startswith("lots")
    sizes = Sizes(samples=samples, unit=7 if by_lots else 1, weights=weights, lot=20.0 if by_lots else None)
    if "tangent" in kind:
        return CappedEvenStage(sizes=sizes, tangent=float(10 ** rng.uniform(-3, 1))), v, even_range(sizes)
    if kind == "receiver":
        everything = np.ones(sizes.total + 1, dtype=bool)
        return ReceiverStage(sizes=sizes, skipped=0, v=float(v[0])), v, everything
    return EvenStage(sizes=sizes), v, even_range(sizes)


def every_selection(stage: Stage, members: IntArray, v: FloatArray) -> tuple[IntArray, FloatArray]:
    """Units and weights of all subsets of some clients."""
    subsets = (np.arange(2 ** len(members))[:, None] >> np.arange(len(members))) & 1
    return subsets @ stage.sizes.units[members], subsets @ stage.weight(v, stage.sizes.noise)[members]


def least(stage: Stage, units: IntArray, weights: FloatArray, allowed: BoolArray) -> float:
    some = allowed[units]
    return float(stage.value(units[some], weights[some])[0].min(initial=np.inf))


@pytest.mark.parametrize("kind", KINDS)
def test_no_selection_that_matters_is_left_out(kind: str) -> None:
    """Against all subsets: the best of all, the best without each client, and beside it at eight higher prices."""
    rng = np.random.default_rng(KINDS.index(kind))
    certain = 0
    for _ in range(60):
        stage, v, allowed = drawn_stage(rng, kind, int(rng.integers(2, 12)))
        members = np.setdiff1d(np.flatnonzero(stage.sizes.units), [stage.skipped])
        if not allowed[every_selection(stage, members, v)[0]].any():
            continue
        still, moving = (core_of(stage, v, allowed, moving=moving) for moving in (False, True))
        certain += len(members) - len(moving.free)
        assert least(stage, *still.whole, allowed) == pytest.approx(
            least(stage, *every_selection(stage, members, v), allowed), rel=1e-12
        )
        for client, units, weights in moving.alternatives(members):
            others = np.setdiff1d(members, [client])
            all_units, all_weights = every_selection(stage, others, v)
            without = least(stage, all_units, all_weights, allowed)
            assert least(stage, units, weights, allowed) == pytest.approx(without, rel=1e-12)
            size = int(stage.sizes.units[client])
            for price in np.linspace(v[client], 3 * v.max(), 8):
                own = float(stage.weight(np.array([price]), stage.sizes.noise[client])[0])
                beside = least(stage, all_units + size, all_weights + own, allowed)
                if beside < without:
                    assert least(stage, units + size, weights + own, allowed) == pytest.approx(beside, rel=1e-12)
    assert certain > 0


def test_thousands_of_clients_leave_few_uncertain() -> None:
    rng = np.random.default_rng(0)
    sizes = Sizes(samples=rng.integers(100, 1100, 3000), unit=100, weights=Weights(loss_weight=50.0))
    core = core_of(EvenStage(sizes=sizes), rng.uniform(0, 2, 3000), even_range(sizes))
    assert len(core.free) < 60


@pytest.mark.parametrize("kind", ["even", "capped", "paper"])
def test_rounding_loses_no_more_than_the_contract_says(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small markets on a coarse grid, against the best of all subsets with the sizes as they are."""
    monkeypatch.setattr(counted, "CLIENTS_TIMES_UNITS", 1)
    monkeypatch.setattr(counted, "UNITS_EACH", 3)
    rng = np.random.default_rng(11)
    lost = 0.0
    for _ in range(12):
        market = jsam.Market(
            sensitivities=rng.uniform(0.01, 1, 6), prior=UNIFORM, samples=rng.integers(20, 400, 6).tolist()
        )
        eta = float(10 ** rng.uniform(-1, 2))
        mechanism: RangeMechanism
        if kind == "paper":
            mechanism, best = jsam.JSAM(loss_weight=eta), best_receiver
        else:
            mechanism, best = EvenJSAM(loss_weight=eta, max_epsilon=2.0 if kind == "capped" else None), best_even
        contract = jsam.plan(market, mechanism)
        assert market.data_shares is not None
        assert contract.rounding_bound is not None
        exact = best(market.virtual_costs, market.data_shares, contract.weights, lambda p: True)
        assert contract.objective <= exact + contract.rounding_bound + 1e-12 * exact
        lost = max(lost, contract.objective / exact - 1)
        assert contract_from_dict(storable(contract)).rounding_bound == contract.rounding_bound
    assert lost > 1e-6


def test_caps_hold_for_the_sizes_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counted, "CLIENTS_TIMES_UNITS", 1)
    monkeypatch.setattr(counted, "UNITS_EACH", 4)
    rng = np.random.default_rng(12)
    for _ in range(20):
        market = jsam.Market(
            sensitivities=rng.uniform(0.01, 1, 8), prior=UNIFORM, samples=rng.integers(20, 400, 8).tolist()
        )
        assert market.data_shares is not None
        cap = float(rng.uniform(market.data_shares.max() * 1.3, 1))
        for mechanism in (
            EvenJSAM(loss_weight=1.0, max_selection_prob=cap),
            jsam.JSAM(loss_weight=1.0, max_selection_prob=cap),
        ):
            p = jsam.plan(market, mechanism, payments=False).selection_probs
            assert p.max() <= cap * (1 + 1e-12)
            assert p.sum() == pytest.approx(1, rel=1e-12)


def test_sizes_that_fit_are_not_rounded_and_say_nothing() -> None:
    rng = np.random.default_rng(13)
    market = jsam.Market(sensitivities=rng.random(50), prior=UNIFORM, samples=rng.integers(100, 900, 50).tolist())
    contract = jsam.plan(market, EvenJSAM(loss_weight=5.0), payments=False)
    assert contract.rounding_bound is None
    assert "rounding_bound" not in contract.as_dict()


def test_a_thousand_clients_are_rounded_and_lose_less_than_a_thousandth() -> None:
    rng = np.random.default_rng(14)
    samples = np.maximum(1, np.rint(600 * rng.lognormal(0, 1, 1000))).astype(int).tolist()
    market = jsam.Market(sensitivities=rng.random(1000), prior=UNIFORM, samples=samples)
    for mechanism in (
        EvenJSAM(loss_weight=20.0),
        EvenJSAM(loss_weight=20.0, max_epsilon=5.0),
        jsam.JSAM(loss_weight=20.0),
    ):
        contract = jsam.plan(market, mechanism, payments=False)
        assert contract.rounding_bound is not None
        assert contract.rounding_bound <= 1e-3 * contract.objective
