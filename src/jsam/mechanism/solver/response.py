"""How the optimum changes as one client's report moves and the others' stay: the ground of exact payments.

Which profiles can win at all is narrowed down for whole blocks of clients.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jsam.mechanism._arrays import Columns, FloatArray, IntArray
from jsam.mechanism.solver.allocation import (
    CHUNK,
    FIRST_TRIES,
    SLACK,
    Allocation,
    Rule,
    allocate,
    budgets,
    minimise,
    probs_at,
)
from jsam.mechanism.solver.closed_form import evaluate
from jsam.mechanism.solver.differences import rises
from jsam.mechanism.solver.profiles import two_thirds
from jsam.mechanism.solver.rows import MovedRows, SortedRows
from jsam.mechanism.weights import Weights

# So many pairs of a client and a profile are evaluated without a look at which profiles can win; for fewer clients than
# that it is not worth looking.
TOGETHER, WORTH_CUTTING = 1 << 14, 8


@dataclass(frozen=True, kw_only=True)
class Block:
    """Clients (by rank) with the profiles that can be optimal for any of them."""

    ranks: IntArray
    which: IntArray


@dataclass(frozen=True, kw_only=True)
class Curves(Columns):
    """G and its slope ε = dG/dv (envelope theorem). Between equal phases (profile, block, caps) ε is smooth."""

    objective: FloatArray
    epsilon: FloatArray
    profile: IntArray
    phase: FloatArray


def curves(
    rule: Rule, base: SortedRows, which: IntArray, row: IntArray, rank: IntArray, v: FloatArray, step: int
) -> Curves:
    """Objective, own ε and phase of the client of `rank` in `row` at virtual cost v, `step` of them at once."""
    G, eps, phase = (np.empty(len(rank)) for _ in range(3))
    profile = np.empty(len(rank), dtype=np.int64)
    for start in range(0, len(rank), step):
        part = slice(start, start + step)
        moved = MovedRows(base, row[part], rank[part], v[part])
        best = minimise(rule, moved, len(moved.place), which)
        p = probs_at(rule, best, moved.place)
        G[part] = best.objective
        eps[part] = budgets(p, v[part], best.scale, rule.weights.max_epsilon)
        profile[part] = best.profile
        phase[part] = 2.0 * best.profile + p
        if best.capped is not None:
            # A client that reaches the cap on ε makes a kink in everybody's.
            phase[part] += 2.0 * len(rule.profiles) * best.capped
    return Curves(objective=G, epsilon=eps, profile=profile, phase=phase)


class Answers(ABC):
    """The minimal objective and a client's own ε as functions of its virtual cost, the others' fixed."""

    @property
    @abstractmethod
    def order(self) -> IntArray:
        """Rank -> client."""

    @abstractmethod
    def allocate(self) -> Allocation:
        """The best contract for the reports as they are."""

    @abstractmethod
    def curve(self, block: Any, ranks: IntArray, v: FloatArray) -> Curves:
        """Objective, own ε and phase for pairs (rank, v)."""

    @abstractmethod
    def everything(self, ranks: IntArray) -> Block:
        """A block without any narrowing."""

    @abstractmethod
    def split(self, ranks: IntArray, low: FloatArray, high: FloatArray, leaf: int) -> Iterator[Block]:
        """Clients in blocks of at most `leaf`, each with what can win while its v runs from low to high."""

    @abstractmethod
    def narrowed(self, block: Any, low: FloatArray, high: FloatArray) -> Block:
        """Drop what no client of the block can want between low and high."""

    def least_unrounded(self) -> float | None:
        """A lower bound on the objective without rounding of public sizes; None where nothing was rounded."""
        return None

    def rises(self, ranks: IntArray, v: FloatArray, top: float) -> tuple[FloatArray, FloatArray] | None:
        """How much the objective rises as each client goes from v to `top`, to all digits, with a bound on its error.

        None where there is no such way.
        """
        return None

    def blocks(
        self,
        ranks: IntArray,
        low: FloatArray,
        high: FloatArray,
        leaf: int,
        progress: Callable[[int], None] | None = None,
    ) -> Iterator[tuple[slice, Block]]:
        """The blocks of `split`, each with its place among the ranks; `progress` hears how many clients are done."""
        done = 0
        for block in self.split(ranks, low, high, leaf):
            size = len(block.ranks)
            yield slice(done, done + size), block
            done += size
            if progress is not None:
                progress(size)

    def last_kept(self, block: Block, ranks: IntArray, kept: FloatArray, dropped: FloatArray) -> FloatArray:
        """The largest v at which each client still sells something, between one at which it does and one where not.

        It halves the doubles between the two and looks at ε alone, so G may be so large that it does not feel the
        client at all. Positive doubles are in the order of their bits read as integers.
        """
        low, high = (np.array(v, dtype=np.float64).view(np.int64) for v in (kept, dropped))
        while np.any(high - low > 1):
            middle = low + (high - low) // 2
            sells = self.curve(block, ranks, middle.view(np.float64)).epsilon > 0
            low, high = np.where(sells, middle, low), np.where(sells, high, middle)
        return low.view(np.float64)


@dataclass(frozen=True, kw_only=True, eq=False)
class OwnReport(Answers):
    """The minimal objective and a client's own ε as functions of its virtual cost, the others' fixed."""

    rule: Rule
    base: SortedRows  # a single market

    @property
    def order(self) -> IntArray:
        return np.asarray(self.base.order[0])

    def allocate(self) -> Allocation:
        return allocate(self.rule, self.base)

    def curve(self, block: Block, ranks: IntArray, v: FloatArray) -> Curves:
        parts: list[tuple[IntArray, Curves]] = []

        def fill(at: IntArray, which: IntArray) -> None:
            """Pairs in rising order of v: the nearer they are to each other, the fewer profiles can win."""
            if len(at) >= WORTH_CUTTING and len(at) * len(which) > TOGETHER:
                enough = TOGETHER // len(at)
                which = self._winners(which, ranks[at].max(), v[at[0]], ranks[at].min(), v[at[-1]], enough)
                if len(at) * len(which) > TOGETHER:
                    fill(at[: len(at) // 2], which)
                    fill(at[len(at) // 2 :], which)
                    return
            step = max(1, CHUNK // max(len(which), 1))
            rows = np.zeros(len(at), dtype=np.int64)
            parts.append((at, curves(self.rule, self.base, which, rows, ranks[at], v[at], step)))

        fill(np.argsort(v, kind="stable"), block.which)
        places = np.empty(len(v), dtype=np.int64)
        places[np.concatenate([at for at, _ in parts])] = np.arange(len(v))
        whole = parts[0][1]
        for _, more in parts[1:]:
            whole = whole.joined(more)
        return whole.some(places)

    def _winners(
        self, which: IntArray, dearest: int, low: float, cheapest: int, high: float, enough: int = 0
    ) -> IntArray:
        """Which profiles can be the best for clients between two ranks whose v is between two numbers.

        Where `enough` or fewer are left they are not looked at more closely.

        A row's sorted costs rise with the moved client's v and fall with the cost of the client that was taken out. So
        the extremes bound every profile, and one whose best is worse than another's worst cannot win.
        """
        at_best = np.array([dearest]), np.array([low])
        at_worst = np.array([cheapest]), np.array([high])
        if self.rule.weights.max_epsilon is not None and len(which) > FIRST_TRIES:
            # Lifting the cap on ε can only help, and is quicker: what loses to a few without it is out.
            free = replace(self.rule.weights, max_epsilon=None)
            few = np.argpartition(self._values(which, *at_worst, free)[0], FIRST_TRIES)[:FIRST_TRIES]
            most = self._values(which[few], *at_worst)[0].min()
            which = which[self._values(which, *at_best, free)[0] <= most * SLACK]
            if len(which) <= enough:
                return which
        least = self._values(which, *at_best)[0]
        most = self._values(which, *at_worst)[0].min()
        return np.asarray(which[least <= most * SLACK])

    def rises(self, ranks: IntArray, v: FloatArray, top: float) -> tuple[FloatArray, FloatArray] | None:
        as_reported = bool(np.all(np.diff(ranks) > 0)) and np.array_equal(v, self.base.v[0][ranks])
        if self.rule.weights.max_epsilon is not None or not as_reported:
            return None
        return rises(self.rule, self.base, ranks, top)

    def _values(self, which: IntArray, ranks: IntArray, v: FloatArray, weights: Weights | None = None) -> FloatArray:
        """The objective of each profile with the clients of `ranks` moved to v, a row for each."""
        moved = MovedRows(self.base, np.zeros_like(ranks), ranks, v)
        return evaluate(self.rule.profiles, which, moved, weights or self.rule.weights).objective

    def everything(self, ranks: IntArray) -> Block:
        return Block(ranks=ranks, which=np.arange(len(self.rule.profiles)))

    def split(self, ranks: IntArray, low: FloatArray, high: FloatArray, leaf: int) -> Iterator[Block]:
        """What can win, by bounds on whole blocks."""
        yield from self._split(ranks, low, high, leaf, np.arange(len(self.rule.profiles)))

    def _split(self, ranks: IntArray, low: FloatArray, high: FloatArray, leaf: int, which: IntArray) -> Iterator[Block]:
        if len(which) > 1:
            which = self._winners(which, ranks[-1], low.min(), ranks[0], high.max())
        if len(ranks) <= leaf:
            yield Block(ranks=ranks, which=which)
            return
        # The cheapest client takes all spare mass: alone, it does not widen its neighbours' bounds.
        half = 1 if ranks[0] == 0 < ranks[1] else len(ranks) // 2
        for part in (slice(None, half), slice(half, None)):
            yield from self._split(ranks[part], low[part], high[part], leaf, which)

    def narrowed(self, block: Block, low: FloatArray, high: FloatArray) -> Block:
        """Drop profiles by their chords.

        Without a cap on ε every profile's value is concave in w = v^(2/3). So it lies above its chord, and the best
        profile's lies below its tangent: a chord that is nowhere under the tangent belongs to a loser.
        """
        if len(block.which) <= 2 or self.rule.weights.max_epsilon is not None:
            return block
        a, b = two_thirds(low), two_thirds(high)
        middle = (a + b) / 2
        v = middle * np.sqrt(middle)
        at = self.curve(block, block.ranks, v)
        G, slope = at.objective, at.epsilon * 1.5 * np.sqrt(middle)
        left, right = (self._values(block.which, block.ranks, x) for x in (low, high))
        keep = (left <= ((G - slope * (middle - a)) * SLACK)[:, None]) | (
            right <= ((G + slope * (b - middle)) * SLACK)[:, None]
        )
        return Block(ranks=block.ranks, which=block.which[keep.any(axis=0)])
