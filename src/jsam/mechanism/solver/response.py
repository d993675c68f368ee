"""How the optimum changes as one client's report moves and the others' stay: the ground of exact payments.

Only one client's place in the order changes, so nothing is sorted or summed again: prefix sums of the moved order are
read off those of the truthful one. Which profiles can win at all is narrowed down for whole blocks of clients.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from jsam.mechanism._arrays import FloatArray, IntArray
from jsam.mechanism.solver.allocation import CHUNK, Rule, budgets, minimise, probs_at
from jsam.mechanism.solver.closed_form import evaluate
from jsam.mechanism.solver.profiles import two_thirds

# A bound that rounding could break is not a bound.
SLACK = 1 + 1e-12


@dataclass(frozen=True, kw_only=True, eq=False)
class Ordered:
    """A market's virtual costs in rising order, with prefix sums."""

    order: IntArray  # rank -> client
    v: FloatArray
    w: FloatArray
    weight_sums: FloatArray
    cost_sums: FloatArray
    tie_keys: IntArray
    ties: IntArray  # rank -> place in the tie order

    @classmethod
    def of(cls, v: FloatArray, tie_order: IntArray | None = None) -> Ordered:
        N = len(v)
        tie_order = np.arange(N) if tie_order is None else tie_order
        places = np.argsort(v[tie_order], kind="stable")
        order = tie_order[places]
        ordered = v[order]
        w = two_thirds(ordered)
        level = np.concatenate([[0], np.cumsum(ordered[1:] > ordered[:-1])])
        return cls(
            order=order,
            v=ordered,
            w=w,
            weight_sums=np.concatenate([[0.0], np.cumsum(w)]),
            cost_sums=np.concatenate([[0.0], np.cumsum(ordered)]),
            tie_keys=level * N + places,
            ties=places,
        )

    def place(self, rank: IntArray, v: FloatArray) -> IntArray:
        """Where the client of `rank` stands among all once its virtual cost is v."""
        left = np.searchsorted(self.v, v, side="left")
        right = np.searchsorted(self.v, v, side="right")
        # Among equals the tie order decides, as it does in the allocation.
        N = len(self.v)
        level = self.tie_keys[np.minimum(left, N - 1)] // N
        keyed = np.searchsorted(self.tie_keys, level * N + self.ties[rank], side="left")
        place = np.where(right > left, keyed, left)
        return np.asarray(np.where(v > self.v[rank], place - 1, np.where(v == self.v[rank], rank, place)))


class OneMoved:
    """Rows that equal the truthful order but for one client each, moved to another virtual cost."""

    def __init__(self, base: Ordered, rank: IntArray, v: FloatArray) -> None:
        self._base = base
        self._rank = rank[:, None]
        self._v = v[:, None]
        self._w = two_thirds(v)[:, None]
        self.place = base.place(rank, v)
        self._place = self.place[:, None]

    def take(self, rows: IntArray) -> OneMoved:
        taken = copy.copy(self)
        taken._rank, taken._v, taken._w = self._rank[rows], self._v[rows], self._w[rows]
        taken.place, taken._place = self.place[rows], self._place[rows]
        return taken

    def _sum(self, sums: FloatArray, own: FloatArray, moved: FloatArray, count: IntArray) -> FloatArray:
        inside = self._place < count
        others = count - inside
        passed = others > self._rank
        total = sums[others + passed]
        # An infinite cost is not subtracted: inf − inf is not a number. Another infinite one then stays in the sum.
        mine = own[self._rank]
        total -= np.where(passed & np.isfinite(mine), mine, 0.0)
        total += np.where(inside, moved, 0.0)
        return total

    def weight_sum(self, count: IntArray) -> FloatArray:
        return self._sum(self._base.weight_sums, self._base.w, self._w, count)

    def cost_sum(self, count: IntArray) -> FloatArray:
        return self._sum(self._base.cost_sums, self._base.v, self._v, count)

    def cost_at(self, rank: IntArray) -> FloatArray:
        others = rank - (self._place < rank)
        v = self._base.v[np.minimum(others + (others >= self._rank), len(self._base.v) - 1)]
        return np.where(rank == self._place, self._v, v)


@dataclass(frozen=True, kw_only=True)
class Block:
    """Clients (by rank) with the profiles that can be optimal for any of them."""

    ranks: IntArray
    which: IntArray


@dataclass(frozen=True, kw_only=True)
class Curves:
    """G and its slope ε = dG/dv (envelope theorem). Between equal phases (profile, block, caps) ε is smooth."""

    objective: FloatArray
    epsilon: FloatArray
    profile: IntArray
    phase: FloatArray


@dataclass(frozen=True, kw_only=True, eq=False)
class OwnReport:
    """The minimal objective and a client's own ε as functions of its virtual cost, the others' fixed."""

    rule: Rule
    base: Ordered

    def curve(self, block: Block, ranks: IntArray, v: FloatArray) -> Curves:
        """Objective, own ε and phase for pairs (rank, v)."""
        G, eps, phase = (np.empty(len(ranks)) for _ in range(3))
        profile = np.empty(len(ranks), dtype=np.int64)
        step = max(1, CHUNK // max(len(block.which), 1))
        for start in range(0, len(ranks), step):
            part = slice(start, start + step)
            moved = OneMoved(self.base, ranks[part], v[part])
            best = minimise(self.rule, moved, len(moved.place), block.which)
            p = probs_at(self.rule, best, moved.place)
            G[part] = best.objective
            eps[part] = budgets(p, v[part], best.scale, self.rule.weights.max_epsilon)
            profile[part] = best.profile
            phase[part] = 2.0 * best.profile + p
            if best.capped is not None:
                # A client that reaches the cap on ε makes a kink in everybody's.
                phase[part] += 2.0 * len(self.rule.profiles) * best.capped
        return Curves(objective=G, epsilon=eps, profile=profile, phase=phase)

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

    def everything(self, ranks: IntArray) -> Block:
        """A block without any narrowing."""
        return Block(ranks=ranks, which=np.arange(len(self.rule.profiles)))

    def blocks(self, ranks: IntArray, low: FloatArray, high: FloatArray, leaf: int) -> Iterator[Block]:
        """Split clients into blocks of at most `leaf`, each with what can win while its v runs from low to high.

        A row's sorted costs rise with the moved client's v and fall with the cost of the client that was taken out.
        So the block's extremes bound every profile on all of it, and a profile whose best is worse than another's
        worst cannot win.
        """
        yield from self._split(ranks, low, high, leaf, np.arange(len(self.rule.profiles)))

    def _split(self, ranks: IntArray, low: FloatArray, high: FloatArray, leaf: int, which: IntArray) -> Iterator[Block]:
        cheapest = OneMoved(self.base, ranks[-1:], low.min(keepdims=True))
        dearest = OneMoved(self.base, ranks[:1], high.max(keepdims=True))
        if len(which) > 1:
            least = evaluate(self.rule.profiles, which, cheapest, self.rule.weights).objective[0]
            most = evaluate(self.rule.profiles, which, dearest, self.rule.weights).objective[0].min()
            which = which[least <= most * SLACK]
        if len(ranks) <= leaf:
            yield Block(ranks=ranks, which=which)
            return
        # The cheapest client takes all spare mass: alone, it does not widen its neighbours' bounds.
        half = 1 if ranks[0] == 0 < ranks[1] else len(ranks) // 2
        for part in (slice(None, half), slice(half, None)):
            yield from self._split(ranks[part], low[part], high[part], leaf, which)

    def narrowed(self, block: Block, low: FloatArray, high: FloatArray) -> Block:
        """Drop profiles that no client of the block can want between low and high.

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
        left, right = (
            evaluate(self.rule.profiles, block.which, OneMoved(self.base, block.ranks, x), self.rule.weights).objective
            for x in (low, high)
        )
        keep = (left <= ((G - slope * (middle - a)) * SLACK)[:, None]) | (
            right <= ((G + slope * (b - middle)) * SLACK)[:, None]
        )
        return Block(ranks=block.ranks, which=block.which[keep.any(axis=0)])
