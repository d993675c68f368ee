"""Families of `scipy.stats` whose virtual cost c + F/f is proved to rise, by name and shape.

F/f rises wherever log F is concave, and log F is concave wherever log f is, or f falls (Bagnoli and Bergstrom,
"Log-concave probability and its applications", 2005, theorems 1 and 6 and table 3). Shift and scale change nothing.
Whatever is not listed here is not taken to be regular, though it may be.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jsam.mechanism.priors import scipy_family


def _always(*_shapes: float) -> bool:
    return True


# Each with the shapes, in scipy's order, for which the proof holds.
PROVED: dict[str, Callable[..., bool]] = {
    # log f is concave, or f falls, whatever the shapes
    "chi": _always,
    "chi2": _always,
    "expon": _always,
    "gamma": _always,
    "gompertz": _always,
    "halfcauchy": _always,
    "halflogistic": _always,
    "halfnorm": _always,
    "loguniform": _always,
    "lomax": _always,
    "maxwell": _always,
    "nakagami": _always,
    "pareto": _always,
    "powerlaw": _always,  # F/f = c/a
    "rayleigh": _always,
    "reciprocal": _always,
    "truncexpon": _always,
    "truncnorm": _always,
    "truncpareto": _always,
    "weibull_min": _always,
    # log f is concave or f falls for some shapes
    "beta": lambda a, b: b >= 1,  # a ≥ 1: log f is concave; a < 1: f falls
    "erlang": _always,
    "genpareto": lambda c: c > -1,
    # log F is concave though log f is not
    "burr": _always,  # F/f = (x^(c+1) + x)/(c d)
    "fisk": _always,  # F/f = x (1 + x^c)/c
    "invweibull": _always,  # F/f = x^(c+1)/c
    "lognorm": _always,  # log Φ is concave and rising, log x concave
    # log f is concave, with a kink
    "triang": _always,
}


def shapes_of(prior: Any) -> tuple[tuple[float, ...], float, float]:
    """Shapes, shift and scale of a frozen distribution of `scipy.stats`."""
    shapes, loc, scale = prior.dist._parse_args(*prior.args, **prior.kwds)
    return tuple(float(x) for x in shapes), float(loc), float(scale)


def is_proved_regular(prior: Any) -> bool:
    """Whether the prior belongs to a family of which it is known that its virtual cost rises."""
    proof = PROVED.get(scipy_family(prior) or "")
    if proof is None:
        return False
    try:
        return proof(*shapes_of(prior)[0])
    except TypeError:  # shapes that are no single numbers
        return False


def kinks_of(prior: Any) -> tuple[float, ...]:
    """Where the density of a family listed here has a kink, and so its virtual cost."""
    if scipy_family(prior) != "triang":
        return ()
    (mode,), loc, scale = shapes_of(prior)
    return (loc + scale * mode,)
