"""What a client really costs the server: its sensitivity plus the price of not knowing it, v = c + F(c)/f(c)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from jsam.mechanism._arrays import BoolArray, FloatArray
from jsam.mechanism.priors import Prior, UniformPrior, scipy_family, validate_prior

# How finely a prior is looked at to see whether v rises; its convex minorant is taken where it does not.
QUANTILES, STEPS = 64, 96


@dataclass(frozen=True, kw_only=True)
class Flat:
    """A stretch of sensitivities that irons to one virtual cost."""

    low: float
    high: float
    level: float


@dataclass(frozen=True, kw_only=True, eq=False)
class VirtualCost:
    """v as a rising function of the report, ironed where the prior's own is not.

    >>> import scipy.stats
    >>> VirtualCost.of(scipy.stats.uniform(0, 1))(np.array([0.25]))
    array([0.5])
    """

    prior: Prior
    bottom: float
    top: float
    affine: tuple[float, float] | None = None  # v = a + b z exactly (uniform priors): payments need no quadrature
    flats: tuple[Flat, ...] = ()

    @classmethod
    def of(cls, prior: Any) -> VirtualCost:
        """The virtual cost of a prior, ironed if need be."""
        prior = validate_prior(prior)
        bottom, top = (float(x) for x in prior.support())
        if isinstance(prior, UniformPrior) or scipy_family(prior) == "uniform":
            return cls(prior=prior, bottom=bottom, top=top, affine=(-bottom, 2.0))
        return cls(prior=prior, bottom=bottom, top=top, flats=_ironed(prior))

    @property
    def ironed(self) -> bool:
        return bool(self.flats)

    def __call__(self, report: FloatArray) -> FloatArray:
        z = np.asarray(report, dtype=np.float64)
        if self.affine is not None:
            a, b = self.affine
            return np.asarray(a + b * z)
        v = _raw(self.prior, z)
        for i, flat in enumerate(self.flats):
            # Between two flats v must stay between their levels, else rounding at the joints could break the order.
            before = self.flats[i - 1].level if i else -math.inf
            after = np.inf if i + 1 == len(self.flats) else self.flats[i + 1].level
            start = self.flats[i - 1].high if i else -math.inf
            end = math.inf if i + 1 == len(self.flats) else self.flats[i + 1].low
            v = np.where((z > start) & (z < flat.low), np.clip(v, before, flat.level), v)
            v = np.where((z > flat.high) & (z < end), np.clip(v, flat.level, after), v)
            v = np.where((z >= flat.low) & (z <= flat.high), flat.level, v)
        return v

    @property
    def at_top(self) -> float:
        """v at the top of the support; infinite if the density vanishes there."""
        return math.inf if math.isinf(self.top) else float(self(np.array([self.top]))[0])

    def report_at(self, v: FloatArray, low: FloatArray, high: FloatArray) -> FloatArray:
        """The lowest report in [low, high] whose virtual cost reaches v, to rounding; high if none does.

        Chandrupatla's method: interpolation where v is smooth, bisection across its jumps and flats. A call of the
        prior costs far more than the arithmetic here, so a dozen of them instead of sixty is what counts.
        """

        def gap(z: FloatArray) -> FloatArray:
            return np.asarray(1 - v / self(z))  # finite even where the density vanishes

        low, high = low.copy(), high.copy()
        # Far apart, halve on the logarithm first: the top may lie hundreds of decades up.
        while np.any(wide := high > 4 * low):
            middle = np.where(low > 0, np.sqrt(low) * np.sqrt(high), 0.5 * high)
            reached = gap(middle) >= 0
            low, high = np.where(wide & ~reached, middle, low), np.where(wide & reached, middle, high)
        f_low, f_high = gap(low), gap(high)
        never, at_once = f_high < 0, f_low >= 0
        x1, f1, x2, f2, t = high, f_high, low, f_low, np.full(len(low), 0.5)
        for _ in range(200):
            x = x1 + t * (x2 - x1)
            f = gap(x)
            crossed = (f >= 0) != (f1 >= 0)
            x3, f3 = np.where(crossed, x2, x1), np.where(crossed, f2, f1)
            x2, f2 = np.where(crossed, x1, x2), np.where(crossed, f1, f2)
            x1, f1 = x, f
            with np.errstate(divide="ignore", invalid="ignore"):
                least = 2 * np.finfo(np.float64).eps * np.abs(x1) / np.abs(x2 - x1)
                if np.all((least > 0.5) | never | at_once):
                    break
                xi, phi = (x1 - x2) / (x3 - x2), (f1 - f2) / (f3 - f2)
                t = f1 / (f2 - f1) * f3 / (f2 - f3) + (x3 - x1) / (x2 - x1) * f1 / (f3 - f1) * f2 / (f3 - f2)
                smooth = (phi * phi < xi) & ((1 - phi) ** 2 < 1 - xi) & (least < 0.5)
            t = np.where(smooth, np.clip(t, least, 1 - least), 0.5)
        return np.where(never, high, np.where(at_once, low, np.where(f1 >= 0, x1, x2)))

    def flat_between(self, low: FloatArray, high: FloatArray) -> FloatArray:
        """How much of [low, high] is ironed."""
        total = np.zeros(np.shape(low))
        for flat in self.flats:
            total += np.maximum(np.minimum(high, flat.high) - np.maximum(low, flat.low), 0.0)
        return total

    def far_report(self) -> float:
        """A report beyond which hardly any probability lies, as far out as doubles allow."""
        if math.isfinite(self.top):
            return self.top if math.isfinite(self.at_top) else math.nextafter(self.top, 0.0)
        for mass in (1e-280, 1e-150, 1e-60, 1e-15):
            with np.errstate(over="ignore"):
                z = float(self.prior.isf(mass))
            if math.isfinite(z) and self(np.array([z]))[0] < 1e280:
                return z
        return float(self.prior.isf(1e-12))


def _raw(prior: Prior, z: FloatArray) -> FloatArray:
    """c + F/f in log space: far out both underflow while their ratio does not."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        log_cdf, log_pdf = np.asarray(prior.logcdf(z)), np.asarray(prior.logpdf(z))
        ratio = np.exp(log_cdf - log_pdf)
    # No mass below: nothing is paid for not knowing. No density here: the client costs infinitely much.
    return np.asarray(z + np.where(np.isneginf(log_cdf), 0.0, np.where(np.isneginf(log_pdf), np.inf, ratio)))


def _looks(prior: Prior) -> FloatArray:
    """Reports at which to look: quantiles, dense towards both ends, and equal steps between them.

    Some families find a quantile only by root-finding, which takes milliseconds: few are asked for.
    """
    tail = np.geomspace(1e-10, 1 / QUANTILES, 12)[:-1]
    q = np.concatenate([tail, np.arange(1, QUANTILES) / QUANTILES, 1 - tail[::-1]])
    rungs = np.asarray(prior.ppf(q), dtype=np.float64)
    rungs = np.unique(rungs[np.isfinite(rungs)])
    steps = np.arange(STEPS) / STEPS
    return np.append((rungs[:-1, None] + np.diff(rungs)[:, None] * steps).ravel(), rungs[-1:])


def _ironed(prior: Prior) -> tuple[Flat, ...]:
    """The stretches where v falls, with the level of the convex minorant of H(q) = q · ppf(q) on each.

    H' = v, so the slope of its convex minorant is v made to rise at least loss; it needs no density.
    """
    z = _looks(prior)
    q = np.exp(np.asarray(prior.logcdf(z), dtype=np.float64))
    # Inside a gap of the support q stands still: only the gap's left end counts.
    rising = np.concatenate([[True], np.diff(q) > 0])
    q, z = q[rising], z[rising]
    v = _raw(prior, z)
    with np.errstate(invalid="ignore"):
        bad = (np.diff(v) < -1e-9 * np.abs(v[1:])) | ~np.isfinite(v[1:]) | _gaps(prior, z)
    if not bad.any():
        return ()
    hull = _convex_minorant(q, q * z)
    return tuple(
        Flat(
            low=float(z[left]),
            high=float(z[right]),
            level=float((q[right] * z[right] - q[left] * z[left]) / (q[right] - q[left])),
        )
        for left, right in pairwise(hull)
        # Rounding lets the hull skip points where v rises too: those stretches need no iron.
        if bad[left:right].any()
    )


def _gaps(prior: Prior, z: FloatArray) -> BoolArray:
    """Between which points the density vanishes."""
    return np.isneginf(np.asarray(prior.logpdf((z[1:] + z[:-1]) / 2), dtype=np.float64))


def _convex_minorant(x: FloatArray, y: FloatArray) -> list[int]:
    """Indices of the lower convex hull of the points, left to right (Andrew's monotone chain)."""
    hull: list[int] = []
    for i in range(len(x)):
        while len(hull) >= 2:
            a, b = hull[-2], hull[-1]
            if (y[b] - y[a]) * (x[i] - x[a]) < (y[i] - y[a]) * (x[b] - x[a]):
                break
            hull.pop()
        hull.append(i)
    return hull
