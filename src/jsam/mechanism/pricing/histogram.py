"""The exact virtual cost of a density that is constant between known breakpoints, such as a histogram.

On a stretch of density f, v = c + F/f is linear with slope 2. Where the density steps up v falls, and where it vanishes
H(q) = q · ppf(q) jumps. The convex minorant of H is made of arcs of H and of straight bridges that touch them; its
slope is v with each fall, and each jump of H, replaced by a constant.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from jsam.mechanism._arrays import FloatArray
from jsam.mechanism.pricing.pieces import Pieces

ROUNDING = 1e-10  # relative: two bins of equal density may seem to fall by so much


def breakpoints(prior: Any) -> FloatArray | None:
    """Between which numbers the density of a histogram of `scipy.stats` is constant; None for any other prior."""
    dist = getattr(prior, "dist", prior)
    bins = getattr(dist, "_hbins", None)
    if bins is None or type(dist).__name__ != "rv_histogram" or not type(dist).__module__.startswith("scipy.stats"):
        return None
    loc, scale = 0.0, 1.0
    if dist is not prior:
        _, loc, scale = dist._parse_args(*prior.args, **prior.kwds)
    edges = float(loc) + float(scale) * np.asarray(bins, dtype=np.float64)
    return edges if np.all(np.isfinite(edges)) and np.all(np.diff(edges) > 0) else None


@dataclass(slots=True)
class _Stretch:
    """v rises linearly from `low` to `high` between two reports; so much probability lies there."""

    start: float
    end: float
    low: float
    high: float
    mass: float
    bridge: bool = False  # part of the convex minorant that H itself does not touch

    def below(self, level: float) -> float:
        """∫ of (level − v) over the probability where v < level."""
        if level <= self.low:
            return 0.0
        if level >= self.high:
            return self.mass * (level - (self.low + self.high) / 2)
        return self.mass * (level - self.low) ** 2 / (2 * (self.high - self.low))

    def above(self, level: float) -> float:
        """∫ of (v − level) over the probability where v > level."""
        return self.below(level) - self.mass * (level - (self.low + self.high) / 2)

    def cut(self, level: float) -> tuple[_Stretch, _Stretch]:
        """The parts below and above a level strictly inside."""
        share = (level - self.low) / (self.high - self.low)
        z, mass = self.start + share * (self.end - self.start), self.mass * share
        return (
            _Stretch(start=self.start, end=z, low=self.low, high=level, mass=mass),
            _Stretch(start=z, end=self.end, low=level, high=self.high, mass=self.mass - mass),
        )


def histogram_cost(edges: FloatArray, masses: FloatArray) -> tuple[Pieces, list[tuple[float, float]]]:
    """The ironed virtual cost of `masses` spread evenly between `edges`, and where its bridges begin and end.

    Without probability below a report v is the report itself; above the last probability there is no v.
    """
    some = np.flatnonzero(masses > 0)
    first, last = int(some[0]), int(some[-1])
    done: list[_Stretch] = []
    if first > 0:
        bottom, begin = float(edges[0]), float(edges[first])
        done.append(_Stretch(start=bottom, end=begin, low=bottom, high=begin, mass=0.0))
    below, gap, gap_start = 0.0, 0.0, math.nan
    for i in range(first, last + 1):
        start, end, mass = float(edges[i]), float(edges[i + 1]), float(masses[i])
        if mass == 0:
            # q stands still while the report moves on: H jumps by q times the width.
            gap, gap_start = gap + below * (end - start), gap_start if gap else start
            continue
        width = end - start
        new = _Stretch(
            start=start, end=end, low=start + below / mass * width, high=end + (below + mass) / mass * width, mass=mass
        )
        below += mass
        _append(done, new, gap, gap_start)
        gap = 0.0
    pieces = Pieces.rising(
        np.array([done[0].start, *(s.end for s in done)]),
        np.array([s.low for s in done]),
        np.array([s.high for s in done]),
    )
    return pieces, [(s.start, s.end) for s in done if s.bridge and s.end > s.start]


def _append(done: list[_Stretch], new: _Stretch, jump: float, jump_start: float) -> None:
    """Add a stretch to a rising row, bridging what would fall; `jump` is by how much H jumps just before it."""
    if jump == 0 and (not done or done[-1].high <= new.low * (1 + ROUNDING)):
        done.append(new)
        return
    # What lies above the bridge's level must outweigh, in ∫ v dq, what lies below it. Stretches that lie above it
    # whole are taken off the row.
    start, mass, total = (jump_start if jump else new.start), 0.0, jump
    level = math.nan
    while done and total - mass * done[-1].high < new.below(done[-1].high):
        top = done.pop()
        if total - mass * top.low + top.above(top.low) >= new.below(top.low):
            level = _level(total, mass, top, new)
            if level > top.low:
                kept, top = top.cut(level)
                done.append(kept)
        start, mass, total = top.start, mass + top.mass, total + top.mass * (top.low + top.high) / 2
        if not math.isnan(level):
            break
    if math.isnan(level):
        whole = (total + new.mass * (new.low + new.high) / 2) / (mass + new.mass)
        level = whole if whole >= new.high else _level(total, mass, None, new)
    if level >= new.high:
        end, mass, rest = new.end, mass + new.mass, None
    elif level > new.low:
        inside, rest = new.cut(level)
        end, mass = inside.end, mass + inside.mass
    else:
        end, rest = new.start, new
    done.append(_Stretch(start=start, end=end, low=level, high=level, mass=mass, bridge=True))
    if rest is not None:
        done.append(rest)


def _level(total: float, mass: float, top: _Stretch | None, new: _Stretch) -> float:
    """Where what lies above, `total` over `mass` and part of `top`, weighs as much as what lies below, to the last
    digit."""
    low, high = (0.0, new.high) if top is None else (top.low, top.high)
    while low < (middle := low + (high - low) / 2) < high:
        above = total - mass * middle + (0.0 if top is None else top.above(middle))
        low, high = (middle, high) if above >= new.below(middle) else (low, middle)
    return low
