"""Any frozen continuous distribution of `scipy.stats` as a prior.

Importing `scipy.stats` takes longer than a plan does, so it is imported only for a prior that is named and needs it.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from jsam.errors import InputError
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
    return None if family is None else (family, tuple(prior.args), tuple(sorted(prior.kwds.items())))


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
