"""A prior as a table: the sensitivity at any quantile, and its virtual cost, without asking the prior again.

Thousands of markets are drawn to set a budget. Some priors take a millisecond to find one quantile, so each is asked at
a few thousand places only, and what lies between two of them is a straight line.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from jsam.mechanism._arrays import FloatArray
from jsam.mechanism.market import SMALLEST
from jsam.mechanism.pricing.virtual_cost import VirtualCost
from jsam.mechanism.priors import is_uniform, log_below

# Beyond these quantiles, at either end, no market is drawn.
LEAST = 1e-12
TAIL_RUNGS, CELLS, PER_TAIL = 24, 1024, 24
# How far straight lines can move an expected cost (relative); where they are exact it is 0.
BETWEEN = 1e-4
MOST_ROUNDS = 60


@dataclass(frozen=True, kw_only=True, eq=False)
class QuantileTable:
    """Knots in rising order: probability below, sensitivity and virtual cost."""

    probabilities: FloatArray
    reports: FloatArray
    virtual_costs: FloatArray
    error: float  # relative, of an expected cost

    @classmethod
    def of(cls, cost: VirtualCost) -> QuantileTable:
        """Knots so near to each other that neither F nor v moves much in between."""
        bottom = max(cost.bottom, SMALLEST)  # a report of 0 has no price; the next double has
        if is_uniform(cost.prior) and cost.affine is not None:
            z = np.array([bottom, cost.top])
            return cls(probabilities=np.array([0.0, 1.0]), reports=z, virtual_costs=cost(z), error=0.0)
        tail = np.geomspace(LEAST, 1 / 16, TAIL_RUNGS)
        q = np.concatenate([tail, np.arange(2, 15) / 16])
        z = np.concatenate([np.asarray(cost.prior.ppf(q)), np.asarray(cost.prior.isf(tail[::-1]))])
        z = np.unique(np.clip(np.concatenate([z[np.isfinite(z)], _breaks(cost)]), bottom, cost.top))
        below, v = _at(cost, z)
        for _ in range(MOST_ROUNDS):
            wide = np.flatnonzero(_too_wide(below, z, v))
            if len(wide) == 0:
                break
            middle = (z[wide] + z[wide + 1]) / 2
            more_below, more_v = _at(cost, middle)
            z = np.insert(z, wide + 1, middle)
            below, v = np.insert(below, wide + 1, more_below), np.insert(v, wide + 1, more_v)
        # Of reports with the same probability below, as in a gap, both ends count: clients are paid across the gap.
        new = np.diff(below) > 0
        kept = np.isfinite(v) & (np.append(True, new) | np.append(new, True))
        below, z, v = below[kept], z[kept], np.maximum.accumulate(v[kept])
        return cls(probabilities=below, reports=z, virtual_costs=v, error=BETWEEN)

    @property
    def heavy(self) -> bool:
        """Whether v goes on growing into the upper tail, so that a few draws there would decide a mean."""
        far, farther = self.virtual_cost(self.report(np.array([1 - 1e-6, 1 - 1e-10])))
        return bool(farther > 2 * far)

    @property
    def untold(self) -> float:
        """How much of the mean of √v lies beyond the last quantile at which markets are drawn, relatively to all of it.

        A client that is never dropped costs in proportion to √v where v is large. There √v goes on with a power of the
        probability beyond, which is read off the last two decades.
        """
        if not self.heavy:
            return 0.0
        nearer, last = np.sqrt(self.virtual_cost(self.report(1 - LEAST * np.array([100.0, 1.0]))))
        power = math.log(last / nearer) / math.log(100)
        mean = float(np.diff(self.probabilities) @ np.sqrt(self.virtual_costs[:-1]))
        return math.inf if power >= 1 else LEAST * last * power / (1 - power) / mean

    def report(self, quantile: FloatArray) -> FloatArray:
        """The sensitivity below which that share of the prior lies."""
        return np.interp(quantile, self.probabilities, self.reports)

    def virtual_cost(self, report: FloatArray) -> FloatArray:
        return np.interp(report, self.reports, self.virtual_costs)

    def report_at(self, v: FloatArray) -> FloatArray:
        """A report with that virtual cost: the last one if there are several."""
        return np.interp(v, self.virtual_costs, self.reports)

    @cached_property
    def levels(self) -> FloatArray:
        """Virtual costs that are the same over some stretch of reports, in rising order."""
        return np.unique(self.virtual_costs[1:][np.diff(self.virtual_costs) == 0])


def _at(cost: VirtualCost, z: FloatArray) -> tuple[FloatArray, FloatArray]:
    return np.exp(log_below(cost.prior, z)), np.asarray(cost(z), dtype=np.float64)


def _too_wide(below: FloatArray, z: FloatArray, v: FloatArray) -> FloatArray:
    """Cells that hold much of the bulk or of a tail, or across which v jumps."""
    mass = np.maximum(np.diff(below), 0.0)
    end = np.minimum(below[1:], 1 - below[:-1])
    with np.errstate(divide="ignore", invalid="ignore"):
        jump = np.minimum(v[1:] / v[:-1] - 1, 1.0)
    wide = (mass > 1 / CELLS) | (mass > np.maximum(end, 4 * LEAST) / PER_TAIL) | (mass * jump > BETWEEN / 8)
    return np.asarray(wide & (np.diff(z) > 1e-14 * z[1:]) & ~np.isnan(jump))


def _breaks(cost: VirtualCost) -> FloatArray:
    """Where v jumps or a level begins or ends, and the doubles beside: no straight line may cross such a place."""
    if cost.pieces is None:
        return np.zeros(0)
    jumps = cost.pieces.edges[1:-1][cost.pieces.starts[1:] > cost.pieces.ends[:-1] * (1 + BETWEEN)]
    ends = [end for flat in cost.flats for end in (flat.low, flat.high)]
    breaks = np.concatenate([jumps, ends])
    return np.concatenate([np.nextafter(breaks, -np.inf), breaks, np.nextafter(breaks, np.inf)])
