"""What is commonly known about sensitivities before anybody reports: one distribution for all, or one for each client.

Any frozen continuous distribution of `scipy.stats` is a prior, and so is whatever else fits `Prior`. A kind of prior
that a text can name is one module of this folder with a `KIND`.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

from jsam.errors import InputError
from jsam.mechanism._modules import members_of
from jsam.mechanism.priors.base import Prior, PriorKind, numbers_in, validate_prior
from jsam.mechanism.priors.empirical import EmpiricalPrior, read_reports
from jsam.mechanism.priors.scipy_stats import frozen, log_below, log_beyond, scipy_family, scipy_identity
from jsam.mechanism.priors.uniform import UniformPrior, is_uniform

__all__ = [
    "EmpiricalPrior",
    "Prior",
    "PriorKind",
    "UniformPrior",
    "file_of_prior",
    "identity_of",
    "is_uniform",
    "log_below",
    "log_beyond",
    "parse_prior",
    "read_reports",
    "scipy_family",
    "scipy_identity",
    "validate_prior",
]


@cache
def _kinds() -> dict[str, PriorKind]:
    kinds = [value for value in members_of(sys.modules[__name__]) if isinstance(value, PriorKind)]
    return {kind.name: kind for kind in kinds}


def parse_prior(text: str) -> Prior:
    """A prior from the command line: `NAME:ARGUMENTS` with scipy.stats' names, or `empirical:FILE.csv`.

    Arguments are numbers in scipy's order, or `name=number`. `uniform:a,b` is the one exception: it takes the two ends.

    >>> parse_prior("uniform:0.5,2").support()
    (0.5, 2.0)
    >>> float(round(parse_prior("lognorm:s=0.5,scale=0.3").ppf(0.5), 3))
    0.3
    """
    name, _, arguments = text.partition(":")
    kind = _kinds().get(name.strip())
    try:
        return frozen(name.strip(), *numbers_in(arguments)) if kind is None else kind.make(arguments)
    except InputError as error:
        raise InputError(f"prior {text!r}: {error}") from error


def file_of_prior(text: str) -> str | None:
    """The file that `parse_prior` would read for this text; None if it reads none."""
    name, _, arguments = text.partition(":")
    kind = _kinds().get(name.strip())
    return arguments.strip() if kind is not None and kind.reads_file else None


def identity_of(prior: Any) -> tuple[Any, ...] | None:
    """What tells a prior from all others, in plain values: its own `identity`, or scipy's; None if there is none."""
    own = getattr(prior, "identity", None)
    return own if isinstance(own, tuple) else scipy_identity(prior)
