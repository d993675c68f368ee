"""How much the minimal objective rises as each of very many clients leaves, without subtracting two optima.

With N clients alike a rent is about 1/N of the objective, so the difference of two optima has lost log10 N digits.
Here every objective is counted from that of a single profile. Between neighbouring profiles, and as one client leaves,
d and S change by little, and these changes are known to all their digits. So is the change of the objective
(docs/theory.md, "For all clients at once").
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from jsam.mechanism._arrays import BoolArray, Columns, FloatArray, IntArray
from jsam.mechanism.solver.allocation import CHUNK, SLACK, Rule
from jsam.mechanism.solver.closed_form import Origin, evaluate
from jsam.mechanism.solver.profiles import Profiles, two_thirds
from jsam.mechanism.solver.rows import MovedRows, SortedRows

EPS = np.finfo(np.float64).eps
# Blocks of clients are cut until so few profiles can win in them, or until they are so small.
FEW_PROFILES, SMALL_BLOCK = 4, 256
# Relative to a change of the objective: far more than its rounding, far less than what tells profiles apart.
LOOSE = 1e-9


@dataclass(frozen=True, kw_only=True)
class _Near(Columns):
    """Profiles as differences from the one that all is counted from; arrays of (profiles,) or (blocks, profiles)."""

    ends: IntArray
    steps: FloatArray  # falls of p^(2/3) at the ends
    bias: FloatArray  # change of d
    sums: FloatArray  # change of S, the clients as they are
    doubt: FloatArray  # how far rounding can move that

    @property
    def count(self) -> int:
        return len(self.bias)


def rises(rule: Rule, base: SortedRows, ranks: IntArray, top: float) -> tuple[FloatArray, FloatArray]:
    """By how much the minimal objective of one market rises as each client moves to the virtual cost `top`.

    `ranks` rise, nobody's virtual cost is above `top`, and there is no cap on ε. Beside each rise stands a bound on
    its rounding error.
    """
    every = np.arange(len(rule.profiles))
    now = evaluate(rule.profiles, every, base, rule.weights).objective[0]
    departures = _Departures(rule, base, int(now.argmin()), top)
    lowest = departures.objective_changes(departures.near(np.flatnonzero(now <= now.min() * SLACK))).min()
    del now
    rise, bound = np.empty(len(ranks)), np.empty(len(ranks))
    # The cheapest client takes all spare mass: its neighbours' bounds are apart from its own.
    cheapest = int(ranks[0] == 0)
    for part in (slice(0, cheapest), slice(cheapest, None)):
        if len(ranks[part]) == 0:
            continue
        near = departures.near(_possible(rule, base, ranks[part], top))
        for some, few in departures.blocks(ranks[part], near):
            at = slice(part.start + some.start, part.start + some.stop)
            rise[at], bound[at] = departures.least(ranks[at], few)
    return np.maximum(rise - lowest, 0.0), bound


def _possible(rule: Rule, base: SortedRows, ranks: IntArray, top: float) -> IntArray:
    """Profiles that can be the best once some client of a block is at `top`: moving a dearer one raises S by less."""
    every = np.arange(len(rule.profiles))

    def with_moved(rank: IntArray) -> FloatArray:
        moved = MovedRows(base, np.zeros_like(rank), rank, np.full(len(rank), top))
        return np.asarray(evaluate(rule.profiles, every, moved, rule.weights).objective[0])

    most = with_moved(ranks[:1]).min()
    return np.flatnonzero(with_moved(ranks[-1:]) <= most * SLACK)


class _Departures:
    """Clients of one market, each moved to the virtual cost `top` while the others stay."""

    def __init__(self, rule: Rule, base: SortedRows, reference: int, top: float) -> None:
        self._rule, self._reference = rule, reference
        v = base.v[0]
        self._w = two_thirds(v)
        self._top = float(two_thirds(np.array([top]))[0])
        # Whoever is moved stands behind all that are cheaper; among equals the order changes no sum.
        self._place = int(np.searchsorted(v, top)) - 1
        profiles, weights = rule.profiles, rule.weights
        # Summed in pairs, so that rounding does not add up as it does along prefix sums.
        self._prefix = np.array([self._w[:end].sum() for end in profiles.ends[reference].tolist()])
        self._origin = Origin(
            bias=float(weights.bias_weight * profiles.bias[reference]),
            sums=float(profiles.weight_steps[reference] @ self._prefix),
            loss_weight=weights.loss_weight,
            noise_weight=weights.noise_weight,
        )

    def near(self, which: IntArray) -> _Near:
        """These profiles counted from the reference."""
        profiles, own = self._rule.profiles, self._reference
        levels = _level_changes(profiles, which, own)
        steps, ends = profiles.weight_steps[which].T, profiles.ends[which].T
        sums, doubt = np.zeros(len(which)), np.zeros(len(which))
        for j, end in enumerate(profiles.ends[own].tolist()):
            after = levels[j + 1] if j + 1 < len(levels) else np.zeros(len(which))
            between, error = self._weights_between(end, ends[j])
            sums += (levels[j] - after) * self._prefix[j] + steps[j] * between
            doubt += 8 * EPS * (np.abs(levels[j]) + np.abs(after)) * self._prefix[j] + np.abs(steps[j]) * error
        bias = self._rule.weights.bias_weight * (profiles.bias[which] - profiles.bias[own])
        return _Near(ends=ends, steps=steps, bias=bias, sums=sums, doubt=doubt)

    def _weights_between(self, start: int, stops: IntArray) -> tuple[FloatArray, FloatArray]:
        """Σ w over the ranks from `start` up to each stop, negative where it lies before; and how far it is off."""
        low, high = min(start, int(stops.min())), max(start, int(stops.max()))
        ahead = np.cumsum(self._w[start:high])
        behind = -np.cumsum(self._w[low:start][::-1])[::-1]
        between = np.concatenate([behind, [0.0], ahead])[stops - low]
        return between, (np.abs(stops - start) + 2) * EPS * np.abs(between)

    def objective_changes(self, near: _Near) -> FloatArray:
        """The objective of each profile with all clients as they are, counted from the reference."""
        return self._origin.change(near.bias, near.sums)[0]

    def _sums(self, ranks: IntArray, near: _Near) -> FloatArray:
        """The change of S from the reference where each client (rows) is moved, for each profile (columns)."""
        total = np.broadcast_to(near.sums, (len(ranks), near.count))
        own = self._w[ranks][:, None]
        for ends, steps in zip(near.ends, near.steps, strict=True):
            inside = self._inside(ranks, ends)
            if inside.any():
                total = total + np.where(inside, steps * (self._successors(ends) - own), 0.0)
        return total

    def _inside(self, ranks: IntArray, ends: IntArray) -> BoolArray:
        return np.asarray(ends > ranks[:, None])

    def _successors(self, ends: IntArray) -> FloatArray:
        """The weight that comes into the ranks before each end as a client before it moves to the top."""
        return np.where(ends > self._place, self._top, self._w[np.minimum(ends, len(self._w) - 1)])

    def least(self, ranks: IntArray, near: _Near) -> tuple[FloatArray, FloatArray]:
        """The least objective over these profiles with each client moved, from the reference, and its rounding."""
        values, bounds = np.empty(len(ranks)), np.empty(len(ranks))
        step = max(1, CHUNK // near.count)
        for start in range(0, len(ranks), step):
            part = slice(start, start + step)
            sums = self._sums(ranks[part], near)
            changes, slopes = self._origin.change(near.bias, sums)
            best = changes.argmin(axis=1)
            at = np.arange(len(best)), best
            values[part] = changes[at]
            moved = np.zeros(len(best))
            for ends, steps in zip(near.ends[:, best], near.steps[:, best], strict=True):
                whole = np.abs(steps) * (self._successors(ends) + self._w[ranks[part]])
                moved += np.where(ends > ranks[part], whole, 0.0)
            doubt = near.doubt[best] + 8 * EPS * (np.abs(near.sums[best]) + moved)
            bounds[part] = 2 * slopes[at] * doubt + self._origin.rounding(near.bias[best], sums[at])
        return values, bounds

    def blocks(self, ranks: IntArray, near: _Near, start: int = 0) -> Iterator[tuple[slice, _Near]]:
        """Cut the clients into blocks, each with the profiles that can be the best for any of it."""
        if near.count > FEW_PROFILES and len(ranks) > 1:
            near = self._narrowed(ranks, near)
        if near.count <= FEW_PROFILES or len(ranks) <= SMALL_BLOCK:
            yield slice(start, start + len(ranks)), near
            return
        half = len(ranks) // 2
        yield from self.blocks(ranks[:half], near, start)
        yield from self.blocks(ranks[half:], near, start + half)

    def _narrowed(self, ranks: IntArray, near: _Near) -> _Near:
        """Drop profiles that are the best for no client between the first and the last of `ranks`.

        The dearer a client is, the less the objective rises as it leaves. And S falls along a straight line as the
        weight w of the client that leaves grows, as long as no block of the profile ends among these ranks. Then the
        profile's value is concave in w: it lies above its chord, and the best one's lies below its tangent.
        """
        three = ranks[[0, len(ranks) // 2, -1]]
        values, slopes = self._origin.change(near.bias, self._sums(three, near))
        best = int(values[1].argmin())
        loose = LOOSE * np.abs(values[:, best]).max()
        keep = values[2] <= values[0].min() + loose
        straight = ~((near.ends > three[0]) & (near.ends <= three[2])).any(axis=0)
        if straight[best]:
            w = self._w[three]
            tilt = slopes[1, best] * near.steps[:, best][near.ends[:, best] > three[1]].sum()
            first, last = values[1, best] + tilt * (w[1] - w[0]), values[1, best] + tilt * (w[1] - w[2])
            keep &= ~straight | (values[0] <= first + loose) | (values[2] <= last + loose)
        return near.some(keep)


def _level_changes(profiles: Profiles, which: IntArray, reference: int) -> FloatArray:
    """p^(2/3) of the profiles less that of the reference, block by block, to all digits."""
    p, q = profiles.levels[which].T, profiles.levels[reference][:, None]
    a, b = np.cbrt(p), np.cbrt(q)
    with np.errstate(divide="ignore", invalid="ignore"):
        roots = (p - q) / (a * a + a * b + b * b)
    return np.where(p == q, 0.0, roots * (a + b))
