"""From the privacy a client sold to the noise its releases carry (docs/theory.md).

Client k's T_k releases are together one Gaussian mechanism of sensitivity √T_k Δ, so the noise below is exact: no
composition bound, and no amplification by client sampling, because the server knows who was drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, overload

import numpy as np
from numpy.typing import ArrayLike

from jsam.errors import InputError
from jsam.privacy.gaussian import FloatArray, checked, checked_delta, delta_of, epsilon_of, gdp_mu

__all__ = [
    "Adjacency",
    "Exact",
    "Lemma1",
    "NoiseRule",
    "delta_of",
    "epsilon_of",
    "gdp_mu",
    "needed_c2",
    "noise_multiplier",
    "noise_rule",
]


class Adjacency(StrEnum):
    """Which change of one record the guarantee hides. It sets the sensitivity Δ and is stated in every report."""

    ADD_REMOVE = "add-remove"
    REPLACE = "replace"

    @property
    def factor(self) -> int:
        """Δ ÷ (C/M): a mean over M of gradients clipped to C moves by C/M, or by 2C/M when one of them is swapped."""
        return 2 if self is Adjacency.REPLACE else 1

    @property
    def words(self) -> str:
        if self is Adjacency.REPLACE:
            return "one record replaced by any other (sensitivity 2C/M)"
        return "one record added, removed or zeroed with M held fixed (sensitivity C/M)"

    @classmethod
    def of(cls, name: str) -> Adjacency:
        try:
            return cls(name)
        except ValueError:
            raise InputError(f"adjacency is {name!r}; it must be one of: {', '.join(cls)}") from None


class NoiseRule(Protocol):
    """How much noise a contract needs: one multiplier (std ÷ (C/M)) a client."""

    @property
    def name(self) -> str: ...

    def multipliers(
        self, epsilons: FloatArray, delta: float, participations: FloatArray, adjacency: Adjacency
    ) -> FloatArray:
        """For clients that are drawn at least once; the arguments are valid and of one shape."""
        ...


@dataclass(frozen=True, kw_only=True)
class Exact:
    """σ = s √T_k / μ(ε, δ): what the guarantee needs, no more (relative 1e-5) and never less."""

    @property
    def name(self) -> str:
        return "exact"

    def multipliers(
        self, epsilons: FloatArray, delta: float, participations: FloatArray, adjacency: Adjacency
    ) -> FloatArray:
        return np.asarray(adjacency.factor * np.sqrt(participations) / gdp_mu(epsilons, delta), dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class Lemma1:
    """σ = c₂ √(T_k log(1/δ)) / ε, the paper's Lemma 1, whose c₂ it does not give; it knows of no adjacency.

    With c₂ below `needed_c2` the run is not (ε, δ)-DP, so what it spends is always to be read off the ledger.
    """

    c2: float

    def __post_init__(self) -> None:
        if not (np.isfinite(self.c2) and self.c2 > 0):
            raise InputError(f"c2 is {self.c2:g}; it must be finite and above 0")

    @property
    def name(self) -> str:
        return "lemma1"

    def multipliers(
        self, epsilons: FloatArray, delta: float, participations: FloatArray, adjacency: Adjacency
    ) -> FloatArray:
        return np.asarray(self.c2 * np.sqrt(-np.log(delta) * participations) / epsilons, dtype=np.float64)


def noise_rule(noise: str, c2: float | None = None) -> NoiseRule:
    """The rule of this name; `c2` is for lemma1 and for it alone."""
    if noise == "exact":
        if c2 is not None:
            raise InputError(f"c2 is {c2:g} with noise 'exact'; only noise 'lemma1' takes it")
        return Exact()
    if noise == "lemma1":
        if c2 is None:
            raise InputError("noise is 'lemma1' without c2; the paper gives no value, so one must be chosen (above 0)")
        return Lemma1(c2=c2)
    raise InputError(f"noise is {noise!r}; it must be one of: exact, lemma1")


@overload
def noise_multiplier(
    epsilon: float,
    delta: float,
    participations: int,
    *,
    noise: str | NoiseRule = ...,
    c2: float | None = ...,
    adjacency: str = ...,
) -> float: ...
@overload
def noise_multiplier(
    epsilon: FloatArray,
    delta: float,
    participations: ArrayLike,
    *,
    noise: str | NoiseRule = ...,
    c2: float | None = ...,
    adjacency: str = ...,
) -> FloatArray: ...
def noise_multiplier(
    epsilon: ArrayLike,
    delta: float,
    participations: ArrayLike,
    *,
    noise: str | NoiseRule = "exact",
    c2: float | None = None,
    adjacency: str = Adjacency.ADD_REMOVE,
) -> float | FloatArray:
    """Noise std of one draw's release ÷ (C/M), for a contract (ε, δ) over so many draws. Vectorised over clients.

    A client who is never drawn releases nothing: its multiplier is 0, whatever ε it sold. One who is drawn must have
    sold an ε above 0.
    """
    rule = noise_rule(noise, c2) if isinstance(noise, str) else noise
    kind = Adjacency.of(adjacency)
    checked_delta(delta)
    eps, times = np.broadcast_arrays(
        checked("epsilon", epsilon, low=0.0), checked("participations", participations, low=0.0)
    )
    drawn = times > 0
    if np.any(times != np.floor(times)):
        place = int(np.argmax((times != np.floor(times)).ravel()))
        raise InputError(f"participations of client {place} is {times.ravel()[place]:g}; it must be a whole number")
    if np.any(drawn & (eps == 0)):
        place = int(np.argmax((drawn & (eps == 0)).ravel()))
        raise InputError(
            f"epsilon of client {place} is 0 though it takes part; it must be above 0 for whoever is drawn"
        )
    multipliers = np.zeros(eps.shape)
    if np.any(drawn):
        multipliers[drawn] = rule.multipliers(eps[drawn], delta, times[drawn], kind)
    return float(multipliers) if multipliers.ndim == 0 else multipliers


@overload
def needed_c2(epsilon: float, delta: float) -> float: ...
@overload
def needed_c2(epsilon: FloatArray, delta: float) -> FloatArray: ...
def needed_c2(epsilon: float | FloatArray, delta: float) -> float | FloatArray:
    """The c₂ at which Lemma 1's noise is exactly the needed one (add-remove): ε / (μ(ε, δ) √log(1/δ))."""
    eps = checked("epsilon", epsilon, low=0.0)
    value = eps / (gdp_mu(eps, delta) * np.sqrt(-np.log(delta)))
    return float(value) if eps.ndim == 0 else np.asarray(value, dtype=np.float64)
