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
from jsam.mechanism.solver.core import Core, core_of
from jsam.mechanism.solver.counted import CappedEvenStage, ReceiverStage, Sizes, Stage, even_range, receiver_range
from jsam.mechanism.solver.knapsack import without_each
from jsam.mechanism.solver.response import Answers, Block, Curves
from jsam.mechanism.solver.stages import (
    Candidates,
    best_selection,
    even_candidates,
    least_of_all,
    receiver_candidates,
    that_matter,
)

CHUNK_OF_FEW = 1 << 14  # reports × ways: beyond it fewer reports together are quicker
ROUNDS = 5  # of cutting pieces of data, for the bound on what rounding loses
SLACK = 1 + 1e-12
APART = 1e-9  # relative: far more than rounding, far less than what payments are checked to


def told_apart(num_clients: int, *, ironed: bool, tie_order: IntArray | None) -> FloatArray:
    """Factors by which virtual costs are multiplied, so that no two clients tie where priors are ironed.

    All reports of an ironed stretch have one virtual cost. Of clients who hold equally much, too, the planner and the
    payments must then keep the same ones. A factor of each client's own, in the order that the market fixes for ties,
    sees to that, and ε still falls with the report.
    """
    factors = np.ones(num_clients)
    if ironed:
        first = np.arange(num_clients) if tie_order is None else tie_order
        factors[first] += APART * np.arange(num_clients) / num_clients
    return factors


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

    Clients go by their position. What is asked about virtual costs is answered about `factors` times as much.
    """

    sizes: Sizes
    reported: FloatArray  # virtual costs
    factors: FloatArray  # of each client, by which the planner tells them apart
    receivers: bool  # whether a client may receive what the others leave, as under the paper's loss
    allowed: BoolArray  # which numbers of units may be kept

    @cached_property
    def v(self) -> FloatArray:
        """Virtual costs as the planner tells them apart."""
        return np.asarray(self.reported * self.factors)

    @cached_property
    def candidates(self) -> Candidates:
        """Stages in which the best selection may lie."""
        every = receiver_candidates if self.receivers else even_candidates
        return every(self.sizes, self.v, self.allowed)

    @cached_property
    def stages(self) -> Sequence[Stage]:
        """All stages that can matter when a client raises its report."""
        return that_matter(self.candidates, self.v, self.allowed).stages

    @cached_property
    def cores(self) -> list[Core]:
        """Of each stage, whose selection is uncertain."""
        return [core_of(stage, self.v, self.allowed) for stage in self.stages]

    @property
    def order(self) -> IntArray:
        return np.arange(len(self.sizes))

    def allocate(self) -> Allocation:
        """The best selection, with its selection probabilities and budgets."""
        best = best_selection(self.candidates, self.v, self.allowed)
        stage, kept_units = best.stage, best.units
        kept = best.core.members(kept_units)
        p, eps = np.zeros(len(self.sizes)), np.zeros(len(self.sizes))
        at, total = np.array([kept_units]), np.array([best.core.weights[kept].sum()])
        _, slope = stage.value(at, total)
        M = self.sizes.samples
        p[kept] = M[kept] / (M[kept].sum() if stage.skipped < 0 else M.sum())
        eps[kept] = slope[0] * stage.slope(self.v[kept], self.sizes.noise[kept])
        if isinstance(stage, ReceiverStage):
            r = stage.skipped
            p[r], eps[r] = (M.sum() - M[kept].sum()) / M.sum(), stage.received(at, total, self.v[[r]])[1][0]
        return Allocation(selection_probs=p, epsilons=eps, objective=best.objective, runner_up=None)

    def least_unrounded(self) -> float | None:
        """What the objective is at least for the sizes as they are; None where they were not rounded.

        By lots it is None too, as the contract counts the noise in another way.
        """
        if not self.sizes.rounded or self.sizes.lot is not None:
            return None
        exact = self.sizes.exact
        every, allowed = (receiver_candidates, receiver_range) if self.receivers else (even_candidates, even_range)
        return least_of_all(every(exact, self.v, allowed(exact), ROUNDS))

    def _useful(self, stage: Stage, units: IntArray, weights: FloatArray) -> tuple[IntArray, FloatArray]:
        """Numbers of units that may be kept; where F falls with U, only those that no larger one beats."""
        good = self.allowed[units]
        units, weights = units[good], weights[good]
        if not stage.falls_with_units or len(units) == 0:
            return units, weights
        later = np.minimum.accumulate(weights[::-1])[::-1]
        better = weights < np.append(later[1:], np.inf)
        return units[better], weights[better]

    def _client(
        self, client: int, others: Sequence[tuple[IntArray, FloatArray]], table: FloatArray | None
    ) -> OneClient:
        """What the selections of all others say of one client; the table is there if it may receive itself."""
        size, own, noise = int(self.sizes.units[client]), float(self.v[client]), float(self.sizes.noise[client])
        most = self.sizes.total + 1
        dropped, ways = np.inf, []
        for number, (stage, (units, weights)) in enumerate(zip(self.stages, others, strict=True)):
            if stage.skipped == client:
                continue
            without, beside = self._useful(stage, units, weights), self._useful(stage, units + size, weights)
            if len(without[0]):
                dropped = min(dropped, float(stage.value(*without)[0].min()))
            if size == 0:
                continue  # who holds less than a unit is never kept
            numbers = beside[0] + number * most
            ways.append(Way(stage=stage, units=beside[0], others=beside[1], numbers=numbers, noise=noise))
        if table is not None:
            stage = ReceiverStage(sizes=self.sizes, skipped=client, v=own)
            reachable = np.flatnonzero(np.isfinite(table))
            units, weights = self._useful(stage, reachable, table[reachable])
            numbers = units + len(self.stages) * most
            ways.append(Way(stage=stage, units=units, others=weights, numbers=numbers, noise=noise, receives=True))
        useful = [way.some(way.at(np.array([own]))[0][0] <= dropped * SLACK) for way in ways if len(way.units)]
        ranks, merged = np.array([client]), _merged([way for way in useful if len(way.units)])
        return OneClient(ranks=ranks, which=ranks, ways=merged, dropped=dropped)

    def everything(self, ranks: IntArray) -> OneClient:
        """What can happen to one client, whose position `ranks` repeats."""
        return next(self._clients(ranks[:1]))

    def _clients(self, clients: IntArray) -> Iterator[OneClient]:
        receiving = np.intersect1d([stage.skipped for stage in self.stages], clients)
        weights = self.stages[0].weight(self.v, self.sizes.noise)
        tables = without_each(self.sizes.units, [weights], [-1], receiving) if len(receiving) else iter(())
        for several in zip(*(core.alternatives(clients) for core in self.cores), strict=True):
            client = several[0][0]
            table = next(tables)[1][0] if client in receiving else None
            yield self._client(client, [(units, weights) for _, units, weights in several], table)

    def split(self, ranks: IntArray, low: FloatArray, high: FloatArray, leaf: int) -> Iterator[OneClient]:
        """One block for each client, or some for a client that `ranks` repeats, with the ways that can win."""
        low, high = low * self.factors[ranks], high * self.factors[ranks]
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
        factor = float(self.factors[block.ranks[0]])
        return block.between(float(low.min()) * factor, float(high.max()) * factor)

    def curve(self, block: OneClient, ranks: IntArray, v: FloatArray) -> Curves:
        """Objective, own ε and phase of the block's client at each v."""
        v = v * self.factors[block.ranks[0]]
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
