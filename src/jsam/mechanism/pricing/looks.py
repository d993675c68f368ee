"""A rising virtual cost for a prior that is known only at the places where one looks.

Nothing can be said about a density between two looks. The distribution function, though, says at every look how much
probability lies below, so the chords of H(q) = q · ppf(q) are exact, and their slopes are the means of v between looks.
Made to rise (their convex minorant), they hold v at each look between the slope before and the one behind; in between
v is a straight line. So v rises whatever the density does where nobody looked, and only optimality is lost there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from jsam.errors import InputError
from jsam.mechanism._arrays import BoolArray, Columns, FloatArray, IntArray
from jsam.mechanism.pricing.pieces import Pieces
from jsam.mechanism.priors import Prior, log_below, log_beyond

QUANTILES, STEPS = 64, 16  # first looks: quantiles, and equal steps between them
MOST_LOOKS = 1 << 13
STRAIGHT = 3e-8  # relative: v may differ by so much from the straight line between two looks
NARROW = 1e-7  # of the probability on the near side: the mass of a narrower interval is known too poorly
ENDS = 1e-9  # relative: how well the ends of an ironed stretch are located
FALL = 1e-9  # relative: a smaller fall is taken for rounding
TAIL = 1e-10  # probability beyond which nobody looks again
NOISE = 1e-13  # relative error of a distribution function

Formula = Callable[[FloatArray], FloatArray]


@dataclass(frozen=True, kw_only=True)
class _Looks(Columns):
    """Reports in rising order with v there, and the probability up to each and beyond each."""

    z: FloatArray
    v: FloatArray
    below: FloatArray
    beyond: FloatArray

    @classmethod
    def at(cls, prior: Prior, formula: Formula, z: FloatArray) -> _Looks:
        with np.errstate(all="ignore"):
            below = np.exp(log_below(prior, z))
            beyond = _beyond(prior, z, below)
        return cls(z=z, v=formula(z), below=below, beyond=beyond)

    @property
    def known(self) -> BoolArray:
        """Where the prior gives numbers; elsewhere it was not seen."""
        return ~(np.isnan(self.v) | np.isnan(self.below) | np.isnan(self.beyond))

    @property
    def settled(self) -> _Looks:
        """The same with probabilities that never fall or never rise, whatever their rounding, and only those looks
        that have some probability since the last.

        Where there is none only the first look counts: H jumps at the next.
        """
        below, beyond = np.maximum.accumulate(self.below), np.minimum.accumulate(self.beyond)
        looks = _Looks(z=self.z, v=self.v, below=below, beyond=beyond)
        return looks.some(np.append(True, looks.masses > 0))

    @property
    def near_side(self) -> FloatArray:
        """The smaller of the probabilities on the two sides of each interval's inner end."""
        return np.minimum(self.below[1:], self.beyond[:-1])

    @property
    def masses(self) -> FloatArray:
        """Probability between looks, from whichever side it is known better."""
        low = np.diff(self.below)
        return np.maximum(np.where(self.below[1:] <= 0.5, low, -np.diff(self.beyond)), 0.0)

    @property
    def noise(self) -> FloatArray:
        """How far off a mass may be. Few distributions know a small probability beyond better than 1 minus the rest."""
        return NOISE * self.near_side + np.where(self.below[1:] <= 0.5, 0.0, 4 * np.finfo(np.float64).eps)

    @property
    def slopes(self) -> FloatArray:
        """Slopes of the chords of H; infinite across a gap."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            slope = self.z[1:] + self.below[:-1] / self.masses * np.diff(self.z)
        return np.where(self.below[:-1] == 0, self.z[1:], np.where(np.isnan(slope), np.inf, slope))


def _beyond(prior: Prior, z: FloatArray, below: FloatArray) -> FloatArray:
    own: Any = prior
    if hasattr(own, "logsf"):
        return np.exp(log_beyond(prior, z))
    if hasattr(own, "sf"):
        return np.asarray(own.sf(z), dtype=np.float64)
    return np.asarray(1 - below)


def looked_at(prior: Prior, formula: Formula, far: float) -> tuple[Pieces, list[tuple[float, float]]]:
    """v from the bottom of the support to `far`, and where its ironed stretches begin and end."""
    looks = _Looks.at(prior, formula, _first(prior, far))
    looks = looks.some(looks.known)
    if looks.masses.sum() > 0:
        looks = _refined(prior, formula, looks).settled
    if not looks.masses.sum() > 0:
        raise InputError("the prior's density and distribution function give no numbers, or no probability anywhere")
    slopes, masses = looks.slopes, looks.masses
    noise = FALL + 2 * looks.noise / masses
    first, level, fell = _pooled(slopes, masses, noise)
    last = np.append(first[1:], len(slopes))
    widths = last - first
    block = np.repeat(np.arange(len(first)), widths)
    before, after = np.append(-np.inf, level[:-1])[block], np.append(level[1:], np.inf)[block]
    alone, flat, own = (widths == 1)[block], fell[block], level[block]
    # v at a look lies between the slopes on its two sides; where only rounding was pooled, between those farther out.
    starts = np.clip(looks.v[:-1], before, np.where(alone, own, after))
    ends = np.clip(looks.v[1:], np.where(alone, own, before), after)
    starts, ends = np.where(flat, own, starts), np.where(flat, own, ends)
    # Where the density has underflowed v has no number of its own, only the mean.
    starts, ends = (np.where(np.isfinite(values), values, own) for values in (starts, ends))
    some = np.isfinite(own)
    count = len(some) if some.all() else int(some.argmin())
    if count == 0:
        raise InputError("the prior's density and distribution function give no finite virtual cost")
    edges, starts, ends = looks.z[: count + 1], starts[:count], ends[:count]
    if edges[-1] < far:  # no probability lies up there, and v stays
        edges, starts, ends = np.append(edges, far), np.append(starts, ends[-1]), np.append(ends, ends[-1])
    stretches = zip(looks.z[first[fell]].tolist(), looks.z[last[fell]].tolist(), strict=True)
    return Pieces.rising(edges, starts, ends), list(stretches)


def _first(prior: Prior, far: float) -> FloatArray:
    """Where to look first: quantiles, dense towards both ends, with equal steps between, and on to the ends.

    Some families find a quantile only by root-finding, which takes milliseconds: few are asked for.
    """
    tail = np.geomspace(1e-10, 1 / QUANTILES, 12)[:-1]
    q = np.concatenate([tail, np.arange(1, QUANTILES) / QUANTILES, 1 - tail[::-1]])
    rungs = np.asarray(prior.ppf(q), dtype=np.float64)
    rungs = np.unique(rungs[np.isfinite(rungs) & (rungs < far)])
    bottom, top = (float(x) for x in prior.support())
    steps = np.arange(STEPS) / STEPS
    inner = (rungs[:-1, None] + np.diff(rungs)[:, None] * steps).ravel()
    halves = 0.5 ** np.arange(1, 48)
    below = bottom + (rungs[0] - bottom) * halves[:24]
    if math.isfinite(top):
        above = top - (top - rungs[-1]) * halves
    else:
        above = np.geomspace(rungs[-1], far, 400) if far > rungs[-1] > 0 else np.zeros(0)
    z = np.unique(np.concatenate([[bottom], below, inner, rungs[-1:], above, [far]]))
    return z[(z >= bottom) & (z <= far)]


def _refined(prior: Prior, formula: Formula, looks: _Looks) -> _Looks:
    """Look between two looks where v is not straight, or where its mean says that something is hidden."""
    straight = np.zeros(0)  # left ends of the intervals that will do
    while len(looks.z) < 2 * MOST_LOOKS:
        a, b, masses = looks.z[:-1], looks.z[1:], looks.masses
        middle = np.where((a > 0) & (b > 4 * a), np.sqrt(a) * np.sqrt(b), a + (b - a) / 2)
        wide = (
            (masses > np.maximum(NARROW * looks.near_side, 1e5 * looks.noise))
            & (looks.near_side > TAIL)
            & (b - a > 1e-13 * b)
        )
        inside, at_end = _flat_parts(looks)
        which = np.flatnonzero(wide & (middle > a) & (middle < b) & ~inside & (at_end | ~np.isin(a, straight)))
        new = _Looks.at(prior, formula, middle[which])
        off = np.where((at_end & (b - a > ENDS * b))[which], np.inf, _off(looks, which, new))
        off = np.where(new.known, off, 0.0)
        straight = np.append(straight, a[which[off <= 1]])
        worst = np.argsort(-off, kind="stable")[: max(MOST_LOOKS - len(looks.z), int(np.isinf(off).sum()))]
        worst = worst[off[worst] > 1]
        if len(worst) == 0:
            break
        looks = looks.joined(new.some(worst))
        looks = looks.some(np.unique(looks.z, return_index=True)[1])
    return looks


def _flat_parts(looks: _Looks) -> tuple[BoolArray, BoolArray]:
    """Intervals well inside an ironed stretch, where no look is needed, and those next to its ends."""
    masses = looks.masses
    some = np.flatnonzero(masses > 0)
    slack = FALL + 2 * looks.noise[some] / masses[some]
    first, _, fell = _pooled(looks.slopes[some], masses[some], slack)
    inside, at_end = (np.zeros(len(masses), dtype=bool) for _ in range(2))
    last = np.append(first[1:], len(some)) - 1
    for a, b in zip(some[first[fell]], some[last[fell]], strict=True):
        inside[a + 2 : b - 1] = True
        at_end[max(a - 1, 0) : a + 2] = at_end[max(b - 1, a) : b + 2] = True
    return inside, at_end & ~inside


def _off(looks: _Looks, which: IntArray, new: _Looks) -> FloatArray:
    """How far v at the middles, and its mean over the probability, lie off a straight line; above 1 is too far."""
    a, b, v_a, v_b = looks.z[which], looks.z[which + 1], looks.v[which], looks.v[which + 1]
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        line = v_a + (v_b - v_a) * (new.z - a) / (b - a)
        # Far out, where hardly anybody is, less will do.
        off = np.abs(new.v - line) / (STRAIGHT * new.v) * np.sqrt(np.minimum(looks.near_side[which], 0.01) / 0.01)
        allowed = 1e-4 + 10 * looks.noise[which] / looks.masses[which] + np.abs(v_b - v_a) / new.v
        hidden = np.abs(looks.slopes[which] - (v_a + v_b) / 2) / (allowed * new.v)
        off = np.maximum(off, hidden)
    return np.where(np.isnan(off), np.inf, off)


def _pooled(slopes: FloatArray, masses: FloatArray, noise: FloatArray) -> tuple[IntArray, FloatArray, BoolArray]:
    """Pool adjacent slopes until they rise: each block's first slope, its mean, and whether more than rounding fell."""
    blocks: list[tuple[int, float, float, bool]] = []
    for i, (slope, mass, slack) in enumerate(zip(slopes.tolist(), masses.tolist(), noise.tolist(), strict=True)):
        first, mean, weight, fell = i, slope, mass, False
        while blocks and blocks[-1][1] > mean:
            first, earlier, its_weight, had_fallen = blocks.pop()
            fell |= had_fallen or earlier > mean * (1 + slack)
            weight += its_weight
            mean += (earlier - mean) * (its_weight / weight)
        blocks.append((first, mean, weight, fell))
    firsts, means, _, falls = zip(*blocks, strict=True)
    return np.array(firsts), np.array(means), np.array(falls)
