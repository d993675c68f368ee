"""Which stages of clients with unequal data can matter, and the best selection over all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from jsam.mechanism._arrays import BoolArray, FloatArray
from jsam.mechanism.solver.core import Core, core_of, without_each_greedily
from jsam.mechanism.solver.counted import (
    SLACK,
    TANGENT_STEP,
    CappedEvenStage,
    EvenStage,
    ReceiverStage,
    Sizes,
    Stage,
    lower_bound,
)

ROUGHLY = 6  # tangents go in groups: bounds on all of a group tell where to look closer


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """Stages in which the best selection may lie, each with a lower bound on what it can give."""

    stages: Sequence[Stage]
    bounds: FloatArray

    def below(self, value: float) -> Candidates:
        """Those that can give so little."""
        some = np.flatnonzero(self.bounds <= value * (1 + SLACK))
        return Candidates(stages=[self.stages[i] for i in some.tolist()], bounds=self.bounds[some])


@dataclass(frozen=True, kw_only=True)
class Best:
    """The best selection of all stages: its objective, its stage, and the units that it holds among the core's."""

    objective: float
    stage: Stage
    core: Core
    units: int


def best_selection(candidates: Candidates, v: FloatArray, allowed: BoolArray) -> Best:
    """The best over all stages; one whose lower bound is above what was found need not be looked at."""
    best: Best | None = None
    for i in np.argsort(candidates.bounds, kind="stable").tolist():
        if best is not None and candidates.bounds[i] > best.objective * (1 + SLACK):
            break
        stage = candidates.stages[i]
        core = core_of(stage, v, allowed, moving=False)
        units, weights = core.whole
        units, weights = units[allowed[units]], weights[allowed[units]]
        if len(units) == 0:
            continue
        G, _ = stage.value(units, weights)
        if best is None or G.min() < best.objective:
            best = Best(objective=float(G.min()), stage=stage, core=core, units=int(units[G.argmin()]))
    assert best is not None
    return best


def even_candidates(sizes: Sizes, v: FloatArray, allowed: BoolArray, rounds: int = 0) -> Candidates:
    """The stages of even shares; under a cap on ε there is one for each tangent."""
    if sizes.weights.max_epsilon is None:
        return _bounded([EvenStage(sizes=sizes)], v, allowed, rounds)
    tangents = _tangents_within(sizes, *_window(sizes, v))
    some = tangents[ROUGHLY // 2 :: ROUGHLY]
    most = float(_without_each(some, v, allowed).max())
    groups = [tangents[i : i + ROUGHLY] for i in range(0, len(tangents), ROUGHLY)]
    near = [
        stage
        for group in groups
        if lower_bound(replace(group[-1], lowest=float(group[0].tangent)), v, allowed) <= most * (1 + SLACK)
        for stage in group
    ]
    return _bounded(near or tangents, v, allowed, rounds)


def receiver_candidates(sizes: Sizes, v: FloatArray, allowed: BoolArray, rounds: int = 0) -> Candidates:
    """A stage for each client that may receive, though another moves its report.

    Without a cap on p a client is never the best receiver if another one has more data and a lower v/u. If only one
    other does, it may become the best once that one's report has moved.
    """
    stages, largest = [], [-1, -1]  # of those before in the order of price
    for r in np.lexsort((-sizes.units, v / sizes.shares)).tolist():
        if sizes.weights.max_selection_prob is not None or sizes.units[r] > largest[0]:
            stages.append(ReceiverStage(sizes=sizes, skipped=r, v=float(v[r])))
            largest = sorted([*largest, int(sizes.units[r])])[1:]
    return _bounded(stages, v, allowed, rounds)


def least_of_all(candidates: Candidates) -> float:
    """A lower bound on the objective over all stages, counted by the loss itself where tangents stand for its root."""
    least = float(candidates.bounds.min())
    tangents = isinstance(candidates.stages[0], CappedEvenStage)
    return least / math.cosh(math.log(TANGENT_STEP) / 2) if tangents else least


def that_matter(candidates: Candidates, v: FloatArray, allowed: BoolArray) -> Candidates:
    """Those that can be the best for these virtual costs, or for whoever of these raises its own or leaves."""
    if len(candidates.stages) == 1:
        return candidates
    receivers = isinstance(candidates.stages[0], ReceiverStage)
    some = candidates.stages[:: 1 if receivers else ROUGHLY]
    return candidates.below(float(_without_each(some, v, allowed).max()))


def _without_each(stages: Sequence[Stage], v: FloatArray, allowed: BoolArray) -> FloatArray:
    """An upper bound on the least objective without each client."""
    most = np.full(len(v), np.inf)
    for stage in stages:
        without = without_each_greedily(stage, v, allowed)
        if stage.skipped >= 0:
            without[stage.skipped] = np.inf
        most = np.minimum(most, without)
    return most


def _bounded(stages: Sequence[Stage], v: FloatArray, allowed: BoolArray, rounds: int) -> Candidates:
    return Candidates(stages=stages, bounds=np.array([lower_bound(stage, v, allowed, rounds) for stage in stages]))


def _window(sizes: Sizes, v: FloatArray) -> tuple[float, float]:
    """Between which tangents the best one lies, whatever selection it has.

    F is at least η t/2, and at least η Q q/(2 N² t E²) from a single client at the cap, whose noise counts q. Both must
    stay below what keeping everybody at some tangent gives.
    """
    w, N = sizes.weights, len(sizes)
    E = w.max_epsilon
    assert E is not None
    eps = np.minimum(np.cbrt(np.median(v) / v) * E, E)
    known = w.loss_weight * np.sqrt(w.noise_weight * (sizes.noise / eps**2).sum()) / N + float(v @ eps)
    single = w.loss_weight * w.noise_weight * float(sizes.noise[sizes.units > 0].min()) / (2 * N**2 * E**2)
    return single / known / TANGENT_STEP, 2 * known / w.loss_weight


def _tangents_within(sizes: Sizes, low: float, high: float) -> list[CappedEvenStage]:
    """Tangents are powers of one number, so the grid does not depend on where it is looked at."""
    step = np.log(TANGENT_STEP)
    powers = np.arange(np.floor(np.log(low) / step), np.ceil(np.log(high) / step) + 1)
    return [CappedEvenStage(sizes=sizes, tangent=float(np.exp(step * power))) for power in powers]
