"""Which selection probabilities a mechanism may choose from, fixed before any report is read.

A profile gives a probability to each *rank*: the client with the lowest virtual cost has rank 0. Probabilities fall
with rank and come in a few blocks of equal level, so a sum over clients is a handful of prefix sums. A mechanism that
takes the exact best of a set of profiles which does not look at the reports can be paid for truthfully
(docs/theory.md, "Why the range may be anything").
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from jsam.mechanism._arrays import FloatArray, IntArray

# Above this many clients the range for capped ε thins out its numbers of receivers; it depends on N alone.
ALL_RECEIVERS_UP_TO = 128
# Under a cap on p the pieces between corners of the curve are cut into equal parts: so many for all N clients together.
# With few clients an inner point can beat both ends of its piece, with many it gains next to nothing.
PARTS = 512
# So many neighbours on the curve share a floor, a quick lower bound on the objective of all of them.
NEIGHBOURS = 16


def two_thirds(x: FloatArray) -> FloatArray:
    """x^(2/3), several times faster than a general power. The root comes first: a square could overflow."""
    root = np.cbrt(x)
    return np.asarray(root * root)


@dataclass(frozen=True, kw_only=True, eq=False)
class Profiles:
    """P profiles of at most b blocks: block j of a profile holds the ranks up to `ends[:, j]` at `levels[:, j]`."""

    num_clients: int
    levels: FloatArray
    ends: IntArray
    bias: FloatArray  # ‖p − u‖₁ as the mechanism counts it
    # What some profiles have at least, at every rank and in bias: whatever beats a floor beats all that stand on it.
    floors: Profiles | None = None
    floor_of: IntArray | None = None  # profile -> its floor, −1 where it has none

    def __len__(self) -> int:
        return len(self.bias)

    def _steps(self, values: FloatArray) -> FloatArray:
        falling = values.copy()
        falling[:, :-1] -= values[:, 1:]
        return falling

    @cached_property
    def weight_steps(self) -> FloatArray:
        """Falls of p^(2/3) from block to block: S = Σ_j step_j · W[end_j] with W the prefix sums of v^(2/3)."""
        return self._steps(two_thirds(self.levels))

    @cached_property
    def square_steps(self) -> FloatArray:
        """Falls of p², for the noise of clients whose ε is capped."""
        return self._steps(self.levels**2)

    @cached_property
    def gather_ends(self) -> IntArray:
        """Block ends for gathering; 0 where the step is 0, so that a prefix sum of infinity is not multiplied by 0."""
        return np.where(self.weight_steps == 0, 0, self.ends)

    @cached_property
    def num_selected(self) -> IntArray:
        return np.asarray(self.ends[:, -1])

    def probs_at(self, profile: IntArray, rank: IntArray) -> FloatArray:
        """Selection probability of a rank (counted from 0) in a profile; arrays broadcast."""
        profile, rank = np.broadcast_arrays(profile, rank)
        p = np.zeros(profile.shape)
        for j in reversed(range(self.levels.shape[1])):
            p = np.where(rank < self.ends[profile, j], self.levels[profile, j], p)
        return p

    def probabilities(self, profile: int) -> FloatArray:
        """All ranks of one profile."""
        return self.probs_at(np.array(profile), np.arange(self.num_clients))

    def joined(self, other: Profiles) -> Profiles:
        """Both sets together: the union of two ranges is a range."""
        width = max(self.levels.shape[1], other.levels.shape[1])

        def padded(p: Profiles) -> tuple[FloatArray, IntArray]:
            extra = width - p.levels.shape[1]
            return np.pad(p.levels, ((0, 0), (0, extra))), np.pad(p.ends, ((0, 0), (0, extra)), mode="edge")

        assert self.floors is None or other.floors is None
        levels, ends = zip(padded(self), padded(other), strict=True)
        floor_of = [np.full(len(p), -1) if p.floor_of is None else p.floor_of for p in (self, other)]
        return Profiles(
            num_clients=self.num_clients,
            levels=np.concatenate(levels),
            ends=np.concatenate(ends),
            bias=np.concatenate([self.bias, other.bias]),
            floors=self.floors or other.floors,
            floor_of=np.concatenate(floor_of),
        )


def equal_probabilities(num_clients: int, num_selected: int) -> Profiles:
    """One profile: the `num_selected` lowest ranks at 1/M each, their bias not counted (USBM, FSBM, BBM)."""
    return Profiles(
        num_clients=num_clients,
        levels=np.array([[1 / num_selected]]),
        ends=np.array([[num_selected]], dtype=np.int64),
        bias=np.zeros(1),
    )


@lru_cache(maxsize=4)
def thresholds(num_clients: int) -> Profiles:
    """N profiles: keep h clients, all at 1/N but the cheapest, which takes what the others leave.

    Some one of these is globally optimal over the whole simplex (docs/theory.md, "The fraction is never needed").
    """
    N = num_clients
    h = np.arange(1, N + 1)
    return Profiles(
        num_clients=N,
        levels=np.stack([(N - h + 1) / N, np.full(N, 1 / N)], axis=1),
        ends=np.stack([np.ones(N, dtype=np.int64), h], axis=1),
        bias=2 * (N - h) / N,
    )


@lru_cache(maxsize=4)
def capped_curve(num_clients: int, max_selection_prob: float) -> Profiles:
    """Points of the curve on which the optimum under a cap on p lies, in order of the mass moved.

    They are the corners of the curve and, with fewer than `PARTS` clients, points at fixed fractions of every piece
    between two corners. The best of them misses the best of the whole curve by less than 1e-6 of the objective
    (docs/theory.md, "A cap on p").
    """
    corners = corner_masses(num_clients, max_selection_prob)
    parts = -(-PARTS // num_clients)
    inner = corners[:-1, None] + np.diff(corners)[:, None] * (np.arange(parts) / parts)
    masses = np.append(inner.ravel(), corners[-1])
    curve = moved_mass(num_clients, max_selection_prob, masses)
    if parts < NEIGHBOURS // 2:
        return curve
    first = np.arange(0, len(masses), NEIGHBOURS)
    last = np.minimum(first + NEIGHBOURS, len(masses)) - 1
    floors = moved_mass(num_clients, max_selection_prob, masses[first], drained_mass=masses[last])
    return replace(curve, floors=floors, floor_of=np.arange(len(masses)) // NEIGHBOURS)


def corner_masses(num_clients: int, max_selection_prob: float) -> FloatArray:
    """Where a receiver has just reached the cap or a client has just been drained, and the two ends of the curve."""
    N, cap = num_clients, max_selection_prob
    up, down = cap - 1 / N, 1 / N
    full = int(np.floor(1 / cap * (1 + 1e-14)))
    most = max(0.0, full * up + max(0.0, 1 - full * cap - down))
    corners = np.concatenate([np.arange(N) * down, np.arange(full + 1) * up, [most]])
    corners = np.sort(corners[(corners >= 0) & (corners <= most * (1 + 1e-13))])
    distinct = np.concatenate([[True], np.diff(corners) > 1e-13])
    return np.asarray(np.minimum(corners[distinct], most))


def moved_mass(
    num_clients: int, max_selection_prob: float, masses: FloatArray, *, drained_mass: FloatArray | None = None
) -> Profiles:
    """Profiles with `masses` moved: the cheapest filled to the cap in order, the dearest drained to 0 in order.

    With more drained than is filled (`drained_mass`) they are what all profiles between the two have at least.
    """
    N, cap = num_clients, max_selection_prob
    up, down = cap - 1 / N, 1 / N
    slack = 1e-12
    filled = np.floor(masses / up + slack).astype(np.int64) if up > 0 else np.zeros(len(masses), dtype=np.int64)
    lost = masses if drained_mass is None else drained_mass
    drained = np.floor(lost / down + slack).astype(np.int64)
    extra = np.clip(masses - filled * up, 0, None)
    short = np.clip(lost - drained * down, 0, None)
    extra[extra < slack * down] = 0
    short[short < slack * down] = 0
    kept = N - drained
    levels = np.stack([np.full(len(masses), cap), down + extra, np.full(len(masses), down), down - short], axis=1)
    last_whole = kept - (short > 0)
    ends = np.stack([filled, np.minimum(filled + (extra > 0), kept), last_whole, kept], axis=1)
    levels[:, 0] = np.where(filled > 0, cap, levels[:, 1])
    ends = np.maximum.accumulate(ends, axis=1)
    # A block of no clients must not carry a level out of order: give it that of its right neighbour.
    for j in (2, 1, 0):
        empty = ends[:, j] == (ends[:, j - 1] if j else 0)
        levels[:, j] = np.where(empty, levels[:, j + 1], levels[:, j])
    return Profiles(num_clients=N, levels=levels, ends=ends, bias=2 * masses)


@lru_cache(maxsize=4)
def equal_receivers(num_clients: int, max_selection_prob: float | None) -> Profiles:
    """h kept, m of them sharing what the dropped ones leave: the range in use when ε is capped."""
    N = num_clients
    if N <= ALL_RECEIVERS_UP_TO:
        receivers = np.arange(1, N + 1)
    else:
        receivers = np.unique(np.round(1.2 ** np.arange(0, np.log(N) / np.log(1.2))).astype(np.int64))
    m, h = np.meshgrid(receivers, np.arange(1, N + 1), indexing="ij")
    # With everybody kept there is nothing to receive: one profile of it is enough.
    useful = (m <= h) & ((h < N) | (m == 1))
    m, h = m[useful], h[useful]
    top = 1 / N + (N - h) / (N * m)
    if max_selection_prob is not None:
        allowed = top <= max_selection_prob * (1 + 1e-12)
        m, h, top = m[allowed], h[allowed], np.minimum(top[allowed], max_selection_prob)
    return Profiles(
        num_clients=N,
        levels=np.stack([top, np.full(len(m), 1 / N)], axis=1),
        ends=np.stack([m, h], axis=1).astype(np.int64),
        bias=2 * (N - h) / N,
    )
