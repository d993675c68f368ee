"""What a prior is, and what kinds of them say of themselves so that a text can name one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from jsam.errors import InputError


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
class PriorKind:
    """A kind of prior by the name that stands before the colon, as in `empirical:FILE.csv`.

    Every module of this folder that has a `KIND` adds one.
    """

    name: str
    make: Callable[[str], Prior]  # from what stands behind the colon
    reads_file: bool = False  # what stands behind the colon is the path of a file


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


def numbers_in(arguments: str) -> tuple[list[float], dict[str, float]]:
    """Numbers by position and by name, as in `2,5,scale=3`."""
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
