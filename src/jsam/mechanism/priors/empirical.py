"""A prior that is learned from past reports."""

from __future__ import annotations

import csv
import hashlib
import io
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from jsam.errors import InputError
from jsam.mechanism._arrays import FloatArray
from jsam.mechanism.priors.base import PriorKind

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
    def identity(self) -> tuple[Any, ...]:
        return ("empirical", hashlib.sha256(np.sort(self.reports).tobytes()).hexdigest())

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


KIND = PriorKind(
    name="empirical",
    make=lambda file: EmpiricalPrior(reports=read_reports(Path(file.strip()))),
    reads_file=True,
)
