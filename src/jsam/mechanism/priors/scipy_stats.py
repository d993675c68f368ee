"""Any frozen continuous distribution of `scipy.stats` as a prior.

Importing `scipy.stats` takes longer than a plan does, so it is imported only for a prior that is named and needs it.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any

import numpy as np

from jsam.errors import InputError
from jsam.mechanism._arrays import FloatArray
from jsam.mechanism.priors.base import Prior, validate_prior


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


def scipy_identity(prior: Any) -> tuple[Any, ...] | None:
    """What tells a distribution of scipy's own from all others; None for any other prior."""
    family = scipy_family(prior)
    if family is None:
        return None
    shapes, loc, scale = prior.dist._parse_args(*prior.args, **prior.kwds)
    try:
        # However they were written: by place or by name, whole or not, left out where they are usual.
        return family, tuple(float(number) for number in (*shapes, loc, scale))
    except TypeError:  # parameters that are arrays
        return family, tuple(prior.args), tuple(sorted(prior.kwds.items()))


def frozen(name: str, args: list[float], named: dict[str, float]) -> Prior:
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
    return validate_prior(prior)


def log_below(prior: Any, z: FloatArray) -> FloatArray:
    """The logarithm of the distribution function: what `prior.logcdf` gives, sooner.

    The default of scipy may find the median anew for every number, in many families by root-finding; here it is found
    once.
    """
    median = _default_median(prior, "_logcdf")
    if median is None:
        return np.asarray(prior.logcdf(z), dtype=np.float64)
    low = _standard(prior, z) < median
    with np.errstate(divide="ignore"):
        return np.asarray(np.where(low, np.log(prior.cdf(z)), np.log1p(-prior.sf(z))), dtype=np.float64)


def log_beyond(prior: Any, z: FloatArray) -> FloatArray:
    """The logarithm of the probability beyond: what `prior.logsf` gives, sooner."""
    median = _default_median(prior, "_logsf")
    if median is None:
        return np.asarray(prior.logsf(z), dtype=np.float64)
    high = _standard(prior, z) > median
    with np.errstate(divide="ignore"):
        return np.asarray(np.where(high, np.log(prior.sf(z)), np.log1p(-prior.cdf(z))), dtype=np.float64)


def _standard(prior: Any, z: FloatArray) -> FloatArray:
    """Reports without the prior's shift and scale, as scipy computes them."""
    _, loc, scale = prior.dist._parse_args(*prior.args, **prior.kwds)
    return np.asarray((z - loc) / scale)


def _default_median(prior: Any, method: str) -> float | None:
    """The median of the standard form, if the prior is of a family of scipy that leaves this method at its default."""
    family, stats = scipy_family(prior), sys.modules.get("scipy.stats")
    if family is None or stats is None or getattr(type(prior.dist), method) is not getattr(stats.rv_continuous, method):
        return None
    shapes, _, scale = prior.dist._parse_args(*prior.args, **prior.kwds)
    if np.ndim(scale) or any(np.ndim(shape) for shape in shapes):
        return None
    return _median(family, tuple(float(shape) for shape in shapes))


@lru_cache(maxsize=4096)
def _median(family: str, shapes: tuple[float, ...]) -> float:
    return float(getattr(sys.modules["scipy.stats"], family).ppf(0.5, *shapes))
