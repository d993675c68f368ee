"""What a client really costs the server: its sensitivity plus the price of not knowing it, v = c + F(c)/f(c)."""

from __future__ import annotations

import contextlib
import math
import warnings
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from jsam.errors import InputError
from jsam.mechanism._arrays import FloatArray
from jsam.mechanism.pricing.histogram import breakpoints, histogram_cost
from jsam.mechanism.pricing.looks import looked_at
from jsam.mechanism.pricing.pieces import Pieces
from jsam.mechanism.pricing.regular import is_proved_regular, kinks_of
from jsam.mechanism.priors import Prior, is_uniform, log_below, validate_prior

# A smaller distribution function may have lost digits on its way, so that F/f falls: there it counts as 0.
SMALLEST = 1e-240
# A larger F/f counts as infinite: the density has vanished, or all but.
LARGEST = 1e280
# Probabilities beyond which a report is taken to be far out, the first that the prior can tell.
TAILS = (1e-280, 1e-150, 1e-60, 1e-15, 1e-12, 1e-9, 1e-6, 1e-3, 0.5)


@dataclass(frozen=True, kw_only=True)
class Flat:
    """A stretch of sensitivities that irons to one virtual cost."""

    low: float
    high: float
    level: float


@dataclass(frozen=True, kw_only=True, eq=False)
class VirtualCost:
    """v as a rising function of the report.

    It is c + F/f by formula where that is proved to rise; elsewhere it is made of straight pieces that rise by
    construction, with ironed stretches where the prior's own would fall (docs/theory.md, "Priors and virtual costs").

    >>> import scipy.stats
    >>> VirtualCost.of(scipy.stats.uniform(0, 1))(np.array([0.25]))
    array([0.5])
    """

    prior: Prior
    bottom: float
    top: float
    affine: tuple[float, float] | None = None  # v = a + b z exactly (uniform priors): payments need no quadrature
    pieces: Pieces | None = None
    flats: tuple[Flat, ...] = ()  # where `pieces` were ironed
    kinks: tuple[float, ...] = ()  # of the formula

    @classmethod
    def of(cls, prior: Any) -> VirtualCost:
        """The virtual cost of a prior, ironed if need be."""
        prior = validate_prior(prior)
        bottom, top = (float(x) for x in prior.support())
        if is_uniform(prior):
            return cls(prior=prior, bottom=bottom, top=top, affine=(-bottom, 2.0))
        by_formula = cls(prior=prior, bottom=bottom, top=top)
        edges = breakpoints(prior)
        if edges is not None:
            masses = np.asarray(prior.pdf((edges[1:] + edges[:-1]) / 2)) * np.diff(edges)
            pieces, stretches = histogram_cost(edges, masses)
        elif is_proved_regular(prior):
            return replace(by_formula, kinks=kinks_of(prior))
        else:
            # Lines between looks go on where the density has underflowed, to the last report before the top.
            closed = math.isinf(top) or math.isfinite(by_formula.at_top)
            far = by_formula.far_report() if closed else math.nextafter(top, 0.0)
            pieces, stretches = looked_at(prior, partial(_formula, prior), far)
        return replace(by_formula, pieces=pieces, flats=tuple(_flat(pieces, low, high) for low, high in stretches))

    @property
    def ironed(self) -> bool:
        return bool(self.flats)

    def __call__(self, report: FloatArray) -> FloatArray:
        z = np.asarray(report, dtype=np.float64)
        if self.affine is not None:
            a, b = self.affine
            return np.asarray(a + b * z)
        if self.pieces is not None:
            return np.where(z > self.pieces.edges[-1], math.inf, self.pieces(z))
        v = _formula(self.prior, z)
        if np.isnan(v).any():
            where = float(np.ravel(z)[np.isnan(np.ravel(v)).argmax()])
            raise InputError(f"the prior has no density or no distribution function at {where:g}: it gives nan")
        return v

    @property
    def at_top(self) -> float:
        """v at the top of the support; infinite if the density vanishes there."""
        return math.inf if math.isinf(self.top) else self._at(self.top)

    def _at(self, report: float) -> float:
        """v at one report; infinite where the prior gives no number."""
        z = np.array([report])
        by_formula = self.pieces is None and self.affine is None
        v = float((_formula(self.prior, z) if by_formula else self(z))[0])
        return math.inf if math.isnan(v) else v

    def report_at(self, v: FloatArray, low: FloatArray, high: FloatArray) -> FloatArray:
        """The lowest report in [low, high] whose virtual cost reaches v, to rounding; high if none does.

        Chandrupatla's method: interpolation where v is smooth, bisection across its jumps and flats. A call of the
        prior costs far more than the arithmetic here, so a dozen of them instead of sixty is what counts.
        """
        if self.pieces is not None:
            return np.clip(self.pieces.inverse(v), low, high)

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

    def far_report(self) -> float:
        """A report with finite v beyond which hardly any probability lies, as far out as doubles allow."""
        return float(self.pieces.edges[-1]) if self.pieces is not None else self._far

    @cached_property
    def _far(self) -> float:
        if math.isfinite(self.top):
            for z in (self.top, math.nextafter(self.top, 0.0)):
                if math.isfinite(self._at(z)):
                    return z
        low = self._far_quantile()
        if math.isinf(self.top):
            return low
        # The density underflows below the top of the support. Positive doubles are in the order of their bits.
        good, bad = (int(np.float64(z).view(np.int64)) for z in (low, self.top))
        while bad - good > 1:
            middle = good + (bad - good) // 2
            finite = math.isfinite(self._at(float(np.int64(middle).view(np.float64))))
            good, bad = (middle, bad) if finite else (good, middle)
        return float(np.int64(good).view(np.float64))

    def _far_quantile(self) -> float:
        for mass in TAILS:
            z = math.nan
            # So far out some of scipy's functions give up, with a warning or an error.
            with np.errstate(all="ignore"), warnings.catch_warnings(), contextlib.suppress(OverflowError):
                warnings.simplefilter("ignore")
                z = float(self.prior.isf(mass))
            if math.isfinite(z) and self.bottom < z <= self.top and self._at(z) < LARGEST:
                return z
        raise InputError("the prior's density and distribution function give no finite virtual cost")


def _flat(pieces: Pieces, low: float, high: float) -> Flat:
    level = float(pieces(np.array([low + (high - low) / 2]))[0])
    # Where v jumps at the end of a stretch, the end itself belongs to what follows.
    jumps = pieces(np.array([high]))[0] > level
    return Flat(low=low, high=math.nextafter(high, low) if jumps else high, level=level)


def _formula(prior: Prior, z: FloatArray) -> FloatArray:
    """c + F/f in log space: far out both underflow while their ratio does not."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        log_cdf, log_pdf = log_below(prior, z), np.asarray(prior.logpdf(z))
        ratio = np.exp(log_cdf - log_pdf)
    # No mass below: nothing is paid for not knowing. No density here: the client costs infinitely much.
    no_density = np.isneginf(log_pdf) | (ratio > LARGEST)
    return np.asarray(z + np.where(log_cdf < math.log(SMALLEST), 0.0, np.where(no_density, np.inf, ratio)))
