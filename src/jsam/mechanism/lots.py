"""Prices and data counted by lots of records instead of by clients, so that splitting one's records does not pay.

A lot is a number of records that the server names beforehand. The prior is then that of the price of a lot: a client
with two lots is expected to ask twice as much for the same ε. `EvenJSAM(lot=…)` counts data by lots too
(docs/manipulation.md, "A rule under which splitting does not pay").
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jsam.mechanism.priors import EmpiricalPrior, Prior, UniformPrior, identity_of, is_uniform, scipy_identity
from jsam.mechanism.weights import check_number


@dataclass(frozen=True, kw_only=True)
class ScaledPrior:
    """The prior of `factor` times a sensitivity that has the prior `prior`."""

    prior: Prior
    factor: float

    @property
    def identity(self) -> tuple[Any, ...] | None:
        own = identity_of(self.prior)
        return None if own is None else ("scaled", own, self.factor)

    def support(self) -> tuple[float, float]:
        bottom, top = self.prior.support()
        return bottom * self.factor, top * self.factor

    def logpdf(self, x: Any) -> Any:
        return self.prior.logpdf(np.asarray(x) / self.factor) - math.log(self.factor)

    def logcdf(self, x: Any) -> Any:
        return self.prior.logcdf(np.asarray(x) / self.factor)

    def ppf(self, q: Any) -> Any:
        return self.prior.ppf(q) * self.factor

    def isf(self, q: Any) -> Any:
        return self.prior.isf(q) * self.factor

    def rvs(self, size: Any = None, random_state: Any = None) -> Any:
        return self.prior.rvs(size=size, random_state=random_state) * self.factor


def scaled(prior: Prior, factor: float) -> Prior:
    """The prior of `factor` times a sensitivity, of the same kind where that is possible.

    >>> scaled(UniformPrior(bottom=0.0, top=1.0), 3.0).support()
    (0.0, 3.0)
    """
    if factor == 1:
        return prior
    if is_uniform(prior):
        bottom, top = prior.support()
        return UniformPrior(bottom=bottom * factor, top=top * factor)
    if isinstance(prior, EmpiricalPrior):
        return EmpiricalPrior(reports=prior.reports * factor)
    if scipy_identity(prior) is not None:
        frozen: Any = prior
        shapes, loc, scale = frozen.dist._parse_args(*frozen.args, **frozen.kwds)
        larger: Prior = frozen.dist(*shapes, loc=loc * factor, scale=scale * factor)
        return larger
    return ScaledPrior(prior=prior, factor=factor)


def priors_by_lots(prior: Prior | Sequence[Prior], samples: Sequence[int], lot: float) -> tuple[Prior, ...]:
    """Each client's prior, from the prior of the price of one lot and the number of records that it holds.

    Clients that hold equally many records under one prior share theirs.
    """
    check_lot(lot)
    own = prior if isinstance(prior, list | tuple) else [prior] * len(samples)
    made: dict[tuple[int, int], Prior] = {}
    for base, size in zip(own, samples, strict=True):
        if (id(base), int(size)) not in made:
            made[id(base), int(size)] = scaled(base, int(size) / lot)
    return tuple(made[id(base), int(size)] for base, size in zip(own, samples, strict=True))


def check_lot(lot: float) -> None:
    """Refuse a lot that is no number of records."""
    check_number("lot", lot, lambda x: x >= 1 and x.is_integer(), "a whole number of records, 1 or more")
