"""What is commonly known about sensitivities before anybody reports: one distribution for all, or one a client.

Any frozen continuous distribution of `scipy.stats` is a prior. `EmpiricalPrior` learns one from past reports. Importing
`scipy.stats` takes longer than a plan does, so it is imported only for a prior that is named and needs it.
"""

from __future__ import annotations

import csv
import io
import math
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from jsam.errors import InputError
from jsam.mechanism._arrays import FloatArray


@runtime_checkable
class Prior(Protocol):
    """The part of a frozen `scipy.stats` distribution that the planner uses."""

    def support(self) -> tuple[float, float]: ...
    def logpdf(self, x: Any) -> Any: ...
    def logcdf(self, x: Any) -> Any: ...
    def ppf(self, q: Any) -> Any: ...
    def isf(self, q: Any) -> Any: ...
    def rvs(self, size: Any = ..., random_state: Any = ...) -> Any: ...


@dataclass(frozen=True, kw_only=True)
class UniformPrior:
    """`scipy.stats.uniform`, with the same random draws, for those who give its two ends.

    >>> float(UniformPrior(bottom=0.5, top=2.0).ppf(0.5))
    1.25
    """

    bottom: float
    top: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.bottom) and math.isfinite(self.top) and self.bottom < self.top):
            raise InputError(
                f"a uniform prior from {self.bottom:g} to {self.top:g}: the second end must lie above the first"
            )

    def support(self) -> tuple[float, float]:
        return self.bottom, self.top

    def logpdf(self, x: Any) -> Any:
        x = np.asarray(x, dtype=np.float64)
        inside = (x >= self.bottom) & (x <= self.top)
        return np.where(inside, -math.log(self.top - self.bottom), -math.inf)[()]

    def logcdf(self, x: Any) -> Any:
        with np.errstate(divide="ignore"):
            return np.log(np.clip((np.asarray(x) - self.bottom) / (self.top - self.bottom), 0.0, 1.0))

    def ppf(self, q: Any) -> Any:
        return self.bottom + np.asarray(q, dtype=np.float64)[()] * (self.top - self.bottom)

    def isf(self, q: Any) -> Any:
        return self.top - np.asarray(q, dtype=np.float64)[()] * (self.top - self.bottom)

    def rvs(self, size: Any = None, random_state: Any = None) -> Any:
        return np.random.default_rng(random_state).uniform(0.0, 1.0, size) * (self.top - self.bottom) + self.bottom


# Past reports kept as kernel centres; more are summarised by their quantiles.
MAX_CENTRES = 512


@dataclass(frozen=True, kw_only=True, eq=False)
class EmpiricalPrior:
    """A smooth density through past reports: a mixture of log-normal kernels, one a report.

    Kernels on the logarithm keep the support positive, the density away from zero between reports, and the tail light
    enough for finite payments, so that F/f is usable everywhere. The bandwidth is Silverman's.

    >>> prior = EmpiricalPrior(reports=np.array([0.1, 0.2, 0.2, 0.4, 0.8]))
    >>> round(float(np.exp(prior.logcdf(0.2))), 2)
    0.4
    """

    reports: FloatArray

    def __post_init__(self) -> None:
        x = np.asarray(self.reports, dtype=np.float64)
        if x.ndim != 1 or len(x) < 5:
            raise InputError(f"an empirical prior needs at least 5 past reports, got {x.size}")
        if not np.all(np.isfinite(x) & (x > 0)):
            raise InputError("past reports must be positive and finite")
        if np.ptp(x) == 0 or np.std(np.log(x)) == 0:
            raise InputError("past reports are all equal: nothing can be learned from them")
        object.__setattr__(self, "reports", x)

    @cached_property
    def _centres(self) -> FloatArray:
        logs = np.log(np.sort(self.reports))
        if len(logs) <= MAX_CENTRES:
            return np.asarray(logs)
        return np.asarray(np.quantile(logs, (np.arange(MAX_CENTRES) + 0.5) / MAX_CENTRES))

    @cached_property
    def bandwidth(self) -> float:
        """Silverman's rule on the logarithms of the reports."""
        logs = np.log(self.reports)
        spread = float(logs.std(ddof=1))
        quartiles = float(np.subtract(*np.quantile(logs, [0.75, 0.25]))) / 1.34
        return 0.9 * (min(spread, quartiles) or spread) * float(len(logs) ** -0.2)

    def support(self) -> tuple[float, float]:
        return 0.0, math.inf

    def _scaled(self, x: Any) -> FloatArray:
        with np.errstate(divide="ignore"):
            return np.asarray((np.log(np.asarray(x, dtype=np.float64))[..., None] - self._centres) / self.bandwidth)

    def logpdf(self, x: Any) -> Any:
        from scipy.special import logsumexp

        t = self._scaled(x)
        constant = math.log(self.bandwidth * len(self._centres) * math.sqrt(2 * math.pi))
        with np.errstate(divide="ignore", invalid="ignore"):
            return logsumexp(-0.5 * t * t, axis=-1) - constant - np.log(x)

    def logcdf(self, x: Any) -> Any:
        from scipy.special import log_ndtr, logsumexp

        return logsumexp(log_ndtr(self._scaled(x)), axis=-1) - math.log(len(self._centres))

    def logsf(self, x: Any) -> Any:
        from scipy.special import log_ndtr, logsumexp

        return logsumexp(log_ndtr(-self._scaled(x)), axis=-1) - math.log(len(self._centres))

    def ppf(self, q: Any) -> Any:
        from scipy.special import ndtr

        return self._solve(q, lambda x: ndtr(self._scaled(x)).mean(axis=-1), rising=True)

    def isf(self, q: Any) -> Any:
        # In logs: the tail is asked for at probabilities near the smallest double.
        with np.errstate(divide="ignore"):
            return self._solve(np.log(q), self.logsf, rising=False)

    def _solve(self, target: Any, curve: Any, *, rising: bool) -> Any:
        target = np.asarray(target, dtype=np.float64)
        reach = 40 * self.bandwidth
        low = np.full(target.shape, self._centres[0] - reach)
        high = np.full(target.shape, self._centres[-1] + reach)
        for _ in range(80):
            middle = (low + high) / 2
            above = (curve(np.exp(middle)) >= target) == rising
            low, high = np.where(above, low, middle), np.where(above, middle, high)
        return np.exp((low + high) / 2)[()]

    def rvs(self, size: Any = None, random_state: Any = None) -> Any:
        rng = np.random.default_rng(random_state)
        return np.exp(rng.choice(self._centres, size=size) + self.bandwidth * rng.standard_normal(size))


def scipy_family(prior: Any) -> str | None:
    """The name in scipy.stats of the family that a frozen distribution belongs to; None for a family of one's own.

    Only of scipy's own do name and arguments tell everything: a histogram or a user's class carries more state.
    """
    dist = getattr(prior, "dist", None)
    stats = sys.modules.get("scipy.stats")
    if dist is None or stats is None or not hasattr(prior, "kwds"):
        return None
    name = getattr(dist, "name", "")
    return name if type(dist) is type(getattr(stats, str(name), None)) else None


def validate_prior(prior: Any) -> Prior:
    """`prior` itself, if the planner can work with it."""
    if not isinstance(prior, Prior):
        raise InputError(f"prior {prior!r} is no frozen continuous scipy.stats distribution")
    try:
        bottom, top = (float(x) for x in prior.support())
    except TypeError:  # a family whose parameters were not given
        raise InputError(f"prior {prior!r} is no frozen continuous scipy.stats distribution") from None
    if not bottom >= 0:
        raise InputError(f"the prior allows sensitivities down to {bottom}: they must be positive; truncate it at 0")
    if not top > bottom:
        raise InputError(f"the prior's support [{bottom}, {top}] is empty")
    return prior


def parse_prior(text: str) -> Prior:
    """A prior from the command line: `NAME:ARGUMENTS` with scipy.stats' names, or `empirical:FILE.csv`.

    Arguments are numbers in scipy's order, or `name=number`. `uniform:a,b` is the one exception: it takes the two ends.

    >>> parse_prior("uniform:0.5,2").support()
    (0.5, 2.0)
    >>> float(round(parse_prior("lognorm:s=0.5,scale=0.3").ppf(0.5), 3))
    0.3
    """
    name, _, arguments = text.partition(":")
    name = name.strip()
    try:
        if name == "empirical":
            return EmpiricalPrior(reports=read_reports(Path(arguments.strip())))
        args, named = _numbers(arguments)
        if name == "uniform" and args:
            if len(args) != 2 or named:
                raise InputError("uniform takes its two ends, as in uniform:0,1")
            return validate_prior(UniformPrior(bottom=args[0], top=args[1]))
        return validate_prior(_frozen(name, args, named))
    except InputError as error:
        raise InputError(f"prior {text!r}: {error}") from error


def _frozen(name: str, args: list[float], named: dict[str, float]) -> Any:
    """The distribution of scipy.stats with that name and those parameters."""
    import scipy.stats

    family = getattr(scipy.stats, name, None)
    if not isinstance(family, scipy.stats.rv_continuous):
        raise InputError(
            f"unknown distribution {name!r}; allowed: a continuous one of scipy.stats, such as uniform:0,1 beta:2,5"
            " lognorm:s=0.5,scale=0.3 truncnorm:a=-2,b=2,loc=0.5,scale=0.2, or empirical:FILE.csv"
        )
    try:
        with np.errstate(all="ignore"):
            prior = family(*args, **named)
            ends_and_middle = [*prior.support(), prior.ppf(0.5)]
    except TypeError:
        raise InputError(f"{name} takes the shapes {family.shapes or 'none'}, then loc and scale") from None
    if np.isnan(ends_and_middle).any() or not np.isfinite(ends_and_middle[2]):
        raise InputError("these parameters make no distribution")
    return prior


def _numbers(arguments: str) -> tuple[list[float], dict[str, float]]:
    args: list[float] = []
    named: dict[str, float] = {}
    for part in filter(None, (piece.strip() for piece in arguments.split(","))):
        key, equals, value = part.rpartition("=")
        try:
            number = float(value)
        except ValueError:
            raise InputError(f"{value!r} is no number") from None
        if not math.isfinite(number):
            raise InputError(f"{value!r} is not finite")
        if equals:
            if key.strip() in named:
                raise InputError(f"{key.strip()!r} is given twice")
            named[key.strip()] = number
        elif named:
            raise InputError(f"{part!r} stands after a named argument; give it a name too")
        else:
            args.append(number)
    return args, named


def read_reports(path: Path) -> FloatArray:
    """Past reports from a CSV with a `sensitivity` column (or one column without a header)."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
        if "\0" in text:
            raise csv.Error
        reader = csv.reader(io.StringIO(text, newline=""))
        rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if any(map(str.strip, row))]
    except (OSError, ValueError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or "it is not a text file"
        raise InputError(f"cannot read past reports from {str(path)!r}: {reason}") from error
    column, first = 0, 0
    header = [cell.casefold() for cell in rows[0][1]] if rows else []
    if "sensitivity" in header:
        column, first = header.index("sensitivity"), 1
    values = []
    for line, row in rows[first:]:
        cell = row[column] if column < len(row) else ""
        try:
            value = float(cell)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value > 0):
            raise InputError(f"{str(path)!r} line {line}: {cell!r} is no sensitivity; a positive number is needed")
        values.append(value)
    return np.asarray(values, dtype=np.float64)
