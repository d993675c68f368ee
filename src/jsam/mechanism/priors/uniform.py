"""The uniform prior, by its two ends; its virtual cost is one straight line."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from jsam.errors import InputError
from jsam.mechanism.priors.base import Prior, PriorKind, numbers_in, validate_prior
from jsam.mechanism.priors.scipy_stats import frozen, scipy_family


@dataclass(frozen=True, kw_only=True)
class UniformPrior:
    """`scipy.stats.uniform`, with the same random draws, for those who give its two ends.

    >>> float(UniformPrior(bottom=0.5, top=2.0).ppf(0.5))
    1.25
    """

    bottom: float
    top: float

    @property
    def identity(self) -> tuple[Any, ...]:
        return ("uniform", self.bottom, self.top)

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


def is_uniform(prior: Any) -> bool:
    """Whether it is uniform, ours or scipy's."""
    return isinstance(prior, UniformPrior) or scipy_family(prior) == "uniform"


def _by_its_ends(arguments: str) -> Prior:
    args, named = numbers_in(arguments)
    if not args:
        return frozen("uniform", args, named)
    if len(args) != 2 or named:
        raise InputError("uniform takes its two ends, as in uniform:0,1")
    return validate_prior(UniformPrior(bottom=args[0], top=args[1]))


KIND = PriorKind(name="uniform", make=_by_its_ends)
