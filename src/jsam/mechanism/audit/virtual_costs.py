"""Virtual costs once more, from the distribution function alone, and where a prior hides what a planner may overlook.

Nothing here looks at the planner's virtual costs. On points of H(q) = q · ppf(q) the slope of the convex minorant at a
point is, by the max-min formula of isotonic regression, the largest over starts to its left of the smallest mean slope
over ends to its right.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from jsam.mechanism._arrays import FloatArray

LEVELS, STEPS = 256, 512
TAIL = 1e-9
BESIDE = 1e-4  # how close beside a report H is looked at, relatively
SPIKES, SUSPICIOUS = 16, 1.05  # as many places where the density is so many times that of its neighbours
HALVINGS = 50


def cdf(prior: Any, z: FloatArray) -> FloatArray:
    if hasattr(prior, "cdf"):
        return np.asarray(prior.cdf(z), dtype=np.float64)
    with np.errstate(divide="ignore"):
        return np.exp(np.asarray(prior.logcdf(z), dtype=np.float64))


@lru_cache(maxsize=64)
def grid(prior: Any) -> FloatArray:
    """Reports all over the support: quantiles, equal steps, a histogram's breakpoints, and narrow spikes."""
    q = np.concatenate([[TAIL, 1e-6, 1e-4], np.arange(1, LEVELS) / LEVELS, 1 - np.array([1e-4, 1e-6, TAIL])])
    quantiles = np.asarray(prior.ppf(q), dtype=np.float64)
    bottom, top = (float(x) for x in prior.support())
    low, high = max(bottom, quantiles[0]), min(top, quantiles[-1])
    return np.unique(np.concatenate([quantiles, np.linspace(low, high, STEPS), _edges(prior), spikes(prior)]))


@lru_cache(maxsize=64)
def spikes(prior: Any) -> FloatArray:
    """Places at which far more probability lies than beside them, found by halving towards the heavier side."""
    low, high = float(prior.ppf(TAIL)), float(prior.isf(TAIL))
    z = np.unique(np.concatenate([np.linspace(low, high, 4 * STEPS), _edges(prior)]))
    z = z[(z >= low) & (z <= high)]
    if len(z) < 4:
        return np.zeros(0)
    density = np.diff(cdf(prior, z)) / np.diff(z)
    beside = np.maximum(np.append(density[1], density[:-1]), np.append(density[1:], density[-2]))
    with np.errstate(divide="ignore", invalid="ignore"):
        excess = np.where(density > 0, density / beside, 0.0)
    which = np.argsort(-excess, kind="stable")[:SPIKES]
    which = which[excess[which] > SUSPICIOUS]
    left, right = z[which], z[which + 1]
    ends = [left, right]
    for _ in range(HALVINGS):
        middle = left + (right - left) / 2
        below, half, above = cdf(prior, left), cdf(prior, middle), cdf(prior, right)
        # Where both halves weigh the same the whole of the spike is seen.
        go_left = half - below > (above - half) * SUSPICIOUS
        go_right = above - half > (half - below) * SUSPICIOUS
        left, right = np.where(go_right, middle, left), np.where(go_left, middle, right)
    return np.unique(np.concatenate([*ends, left, left + (right - left) / 2, right]))


def _edges(prior: Any) -> FloatArray:
    """The breakpoints of a histogram of `scipy.stats`."""
    dist = getattr(prior, "dist", prior)
    own = getattr(dist, "_hbins", None)
    if own is None:
        return np.zeros(0)
    edges = np.asarray(own, dtype=np.float64)
    if dist is not prior:
        _, loc, scale = dist._parse_args(*prior.args, **prior.kwds)
        edges = float(loc) + float(scale) * edges
    return edges


def bracket(prior: Any, report: float) -> tuple[float, float]:
    """The slopes of the convex minorant just before and just behind a report: a rising v lies between them."""
    beside = report * (1 + BESIDE * np.array([-2.0, -1.0, 0.0, 1.0, 2.0]))
    bottom, top = (float(x) for x in prior.support())
    z = np.unique(np.concatenate([grid(prior), beside]))
    z = z[(z >= bottom) & (z <= top)]
    q = cdf(prior, z)
    # Where no probability lies H jumps: of equal q only the lowest report counts, and the report in question.
    kept = np.append(True, np.diff(q) > 0)
    z, q = z[kept], q[kept]
    at = int(np.searchsorted(z, report, side="right")) - 1
    if z[at] == report:
        return _slope(z, q, max(at - 1, 0)), _slope(z, q, min(at, len(z) - 2))
    return _slope(z, q, max(at - 1, 0)), _slope(z, q, min(at + 1, len(z) - 2))


def _slope(z: FloatArray, q: FloatArray, i: int) -> float:
    """Slope of the minorant between the points i and i + 1."""
    a, b = slice(0, i + 1), slice(i + 1, None)
    with np.errstate(divide="ignore", invalid="ignore"):
        means = z[None, b] + q[a, None] * (z[None, b] - z[a, None]) / (q[None, b] - q[a, None])
    return float(means.min(axis=1).max())
