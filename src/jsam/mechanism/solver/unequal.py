"""The best selection of clients with unequal data, and how it changes as one client's report moves.

`UnequalReport` answers what `response.OwnReport` answers for equal data, so payments are computed by the same code. For
a client k the tables of all others tell what the best is without k, and with k at any virtual cost v: the least of
F(U, W₋ₖ[U − M_k] + w(v)) over U. Every number of units is one way to be kept; those that cannot be the best between two
virtual costs are dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from jsam.mechanism._arrays import BoolArray, FloatArray, IntArray
from jsam.mechanism.solver.allocation import Allocation
from jsam.mechanism.solver.counted import (
    CappedEvenStage,
    ReceiverStage,
    Sizes,
    Stage,
    best_selection,
    even_stages,
    even_tangents,
    receiver_stages,
)
from jsam.mechanism.solver.knapsack import selection, without_each
from jsam.mechanism.solver.response import Answers, Block, Curves

CHUNK_OF_FEW = 1 << 14  # reports × ways: beyond it fewer reports together are quicker
SLACK = 1 + 1e-12


@dataclass(frozen=True, kw_only=True, eq=False)
class Way:
    """Ways to keep a client: numbers of units in one stage, with the least weight of the others kept beside it."""

    stage: Stage
    units: IntArray
    others: FloatArray
    numbers: IntArray  # one for each way, which it keeps when others are dropped
    noise: float  # how much the client's noise counts
    receives: bool = False

    def at(self, v: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Objective and own ε at each v (rows) for each way (columns)."""
        v = v[:, None]
        if self.receives:
            assert isinstance(self.stage, ReceiverStage)
            return self.stage.received(self.units, self.others, v)
        G, slope = self.stage.value(self.units, self.others + self.stage.weight(v, self.noise))
        return G, slope * self.stage.slope(v, self.noise)

    def some(self, which: BoolArray) -> Way:
        return replace(
            self,
            stage=self.stage.some(which),
            units=self.units[which],
            others=self.others[which],
            numbers=self.numbers[which],
        )


@dataclass(frozen=True, kw_only=True)
class OneClient(Block):
    """A single client, which `ranks` may repeat: the ways in which it can be kept, and the best without it."""

    ways: tuple[Way, ...]
    dropped: float

    def between(self, low: float, high: float) -> OneClient:
        """The ways that can be the best somewhere between two virtual costs: a way's value rises with v."""
        ends = np.array([low, high])
        values = [way.at(ends)[0] for way in self.ways]
        most = min([self.dropped, *(float(at[1].min()) for at in values)]) * SLACK
        kept = [way.some(at[0] <= most) for way, at in zip(self.ways, values, strict=True)]
        return replace(self, ways=tuple(way for way in kept if len(way.units)))


@dataclass(frozen=True, kw_only=True, eq=False)
class UnequalReport(Answers):
    """The minimal objective and a client's own ε as functions of its virtual cost, the others' fixed.

    Clients go by their position; `v` are their virtual costs as the planner tells them apart.
    """

    sizes: Sizes
    v: FloatArray
    receivers: bool  # whether a client may receive what the others leave, as under the paper's loss
    allowed: BoolArray  # which numbers of units may be kept

    @cached_property
    def candidates(self) -> tuple[Sequence[Stage], FloatArray]:
        """Stages in which the best selection may lie, with lower bounds on what each can give."""
        if not self.receivers:
            return even_tangents(self.sizes, self.v)
        stages = receiver_stages(self.sizes, self.v)
        return stages, np.zeros(len(stages))

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """All stages that can matter when a client raises its report."""
        if not self.receivers:
            return even_stages(self.sizes, self.v, self.allowed)
        return receiver_stages(self.sizes, self.v)

    @property
    def order(self) -> IntArray:
        return np.arange(len(self.sizes))

    def allocate(self) -> Allocation:
        """The best selection, with its selection probabilities and budgets."""
        stages, bounds = self.candidates
        best = best_selection(stages, bounds, self.v, self.allowed)
        stage, kept_units = best.stage, best.units
        weights = stage.weight(self.v, self.sizes.noise)
        if stage.skipped >= 0:
            weights[stage.skipped] = np.inf
        kept = selection(self.sizes.units, weights, kept_units)
        p, eps = np.zeros(len(self.sizes)), np.zeros(len(self.sizes))
        at, total = np.array([kept_units]), np.array([weights[kept].sum()])
        _, slope = stage.value(at, total)
        p[kept] = self.sizes.units[kept] / (kept_units if stage.skipped < 0 else self.sizes.total)
        eps[kept] = slope[0] * stage.slope(self.v[kept], self.sizes.noise[kept])
        if isinstance(stage, ReceiverStage):
            r = stage.skipped
            p[r], eps[r] = stage.probability(at)[0], stage.received(at, total, self.v[[r]])[1][0]
        return Allocation(selection_probs=p, epsilons=eps, objective=best.objective, runner_up=None)

    def _reachable(self, stage: Stage, table: FloatArray) -> IntArray:
        """Numbers of units in a table that may be kept; where F falls with U, only those that no larger one beats."""
        good = np.isfinite(table) & self.allowed_in(stage)
        units = np.flatnonzero(good)
        if not stage.falls_with_units or len(units) == 0:
            return units
        later = np.minimum.accumulate(table[units][::-1])[::-1]
        return units[table[units] < np.append(later[1:], np.inf)]

    def allowed_in(self, stage: Stage) -> BoolArray:
        """`allowed` speaks of all that is kept; a table of a stage leaves its receiver out."""
        if stage.skipped < 0:
            return self.allowed
        others = self.sizes.total - int(self.sizes.units[stage.skipped])
        return self.allowed & (np.arange(len(self.allowed)) <= others)

    def _client(self, client: int, tables: Sequence[FloatArray]) -> OneClient:
        """What the tables of all others say of one client; the last table has nobody skipped if clients may receive."""
        size, own = int(self.sizes.units[client]), float(self.v[client])
        stages = [*self.stages, *([ReceiverStage(sizes=self.sizes, skipped=client, v=own)] if self.receivers else [])]
        dropped, ways = np.inf, []
        for number, (stage, table) in enumerate(zip(stages, tables, strict=True)):
            receives = number == len(self.stages)
            if stage.skipped == client and not receives:
                continue
            beside = table
            if not receives:
                without = self._reachable(stage, table)
                if len(without):
                    dropped = min(dropped, float(stage.value(without, table[without])[0].min()))
                beside = np.full(len(table), np.inf)
                beside[size:] = table[: len(table) - size]
            units = self._reachable(stage, beside)
            numbers = units + number * len(table)
            counted = float(self.sizes.noise[client])
            ways.append(
                Way(
                    stage=stage,
                    units=units,
                    others=beside[units],
                    numbers=numbers,
                    noise=counted,
                    receives=receives,
                )
            )
        ranks = np.array([client])
        useful = [way.some(way.at(np.array([own]))[0][0] <= dropped * SLACK) for way in ways]
        ranks, merged = np.array([client]), _merged([way for way in useful if len(way.units)])
        return OneClient(ranks=ranks, which=ranks, ways=merged, dropped=dropped)

    def _sets(self) -> tuple[list[FloatArray], list[int]]:
        """Weights and skipped clients of each table."""
        weights = [stage.weight(self.v, self.sizes.noise) for stage in self.stages]
        skipped = [stage.skipped for stage in self.stages]
        if self.receivers:
            weights.append(self.stages[0].weight(self.v, self.sizes.noise))
            skipped.append(-1)
        return weights, skipped

    def everything(self, ranks: IntArray) -> OneClient:
        """What can happen to one client, whose position `ranks` repeats."""
        return next(self._clients(ranks[:1]))

    def _clients(self, clients: IntArray) -> Iterator[OneClient]:
        for client, tables in without_each(self.sizes.units, *self._sets(), clients):
            yield self._client(client, tables)

    def split(self, ranks: IntArray, low: FloatArray, high: FloatArray, leaf: int) -> Iterator[OneClient]:
        """One block for each client, or some for a client that `ranks` repeats, with the ways that can win."""
        if len(ranks) > 1 and ranks[0] == ranks[1]:
            everything = self.everything(ranks)
            for start in range(0, len(ranks), leaf):
                part = slice(start, start + leaf)
                block = everything.between(float(low[part].min()), float(high[part].max()))
                yield replace(block, ranks=ranks[part])
            return
        for block, start, end in zip(self._clients(ranks), low.tolist(), high.tolist(), strict=True):
            yield block.between(start, end)

    def narrowed(self, block: OneClient, low: FloatArray, high: FloatArray) -> OneClient:
        return block.between(float(low.min()), float(high.max()))

    def curve(self, block: OneClient, ranks: IntArray, v: FloatArray) -> Curves:
        """Objective, own ε and phase of the block's client at each v."""
        G, eps, phase = np.full(len(v), block.dropped), np.zeros(len(v)), np.full(len(v), -1.0)

        def fill(at: IntArray, near: OneClient) -> None:
            """Reports in rising order of v: the fewer there are together, the fewer ways can win."""
            ways = sum(len(way.units) for way in near.ways)
            if len(at) > 1 and len(at) * ways > CHUNK_OF_FEW:
                near = near.between(float(v[at[0]]), float(v[at[-1]]))
                fill(at[: len(at) // 2], near)
                fill(at[len(at) // 2 :], near)
                return
            rows = np.arange(len(at))
            for way in near.ways:
                values, own = way.at(v[at])
                best = values.argmin(axis=1)
                better = values[rows, best] < G[at]
                G[at[better]] = values[rows, best][better]
                eps[at[better]] = own[rows, best][better]
                phase[at[better]] = way.numbers[best][better]

        fill(np.argsort(v), block)
        profile = phase.astype(np.int64)
        E = self.sizes.weights.max_epsilon
        if E is not None:
            phase += 0.5 * (eps >= E)  # where the client itself reaches the cap, its curve has a kink
        return Curves(objective=G, epsilon=eps, profile=profile, phase=phase)


def _merged(ways: Sequence[Way]) -> tuple[Way, ...]:
    """Ways of stages that differ in their tangent alone are one, since numpy is slow with many short arrays."""
    if len(ways) < 2 or not isinstance(ways[0].stage, CappedEvenStage):
        return tuple(ways)
    tangents = [np.broadcast_to(getattr(way.stage, "tangent"), way.units.shape) for way in ways]  # noqa: B009
    return (
        Way(
            stage=replace(ways[0].stage, tangent=np.concatenate(tangents)),
            units=np.concatenate([way.units for way in ways]),
            others=np.concatenate([way.others for way in ways]),
            numbers=np.concatenate([way.numbers for way in ways]),
            noise=ways[0].noise,
        ),
    )
