"""Gaussian noise by the paper's Lemma 1, which leaves a constant open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from jsam.errors import InputError
from jsam.privacy.accounting import GAUSSIAN, Accountant
from jsam.privacy.adjacency import Adjacency
from jsam.privacy.gaussian import FloatArray, Numbers, as_given, checked, gdp_mu


@dataclass(frozen=True, kw_only=True)
class Lemma1:
    """σ = c₂ √(T_k log(1/δ)) / ε, the paper's Lemma 1, whose c₂ it does not give; it knows of no adjacency.

    With c₂ below `needed_c2` the run is not (ε, δ)-DP, so what it spends is always to be read off the ledger.
    """

    label: ClassVar[str] = "lemma1"
    keeps_contracts: ClassVar[bool] = False
    accountant: ClassVar[Accountant] = GAUSSIAN

    c2: float

    def __post_init__(self) -> None:
        if not (np.isfinite(self.c2) and self.c2 > 0):
            raise InputError(f"c2 is {self.c2:g}; it must be finite and above 0")

    @property
    def words(self) -> str:
        return f"the noise follows Lemma 1 with c₂ = {self.c2:g}"

    def multipliers(
        self, epsilons: FloatArray, delta: float, participations: FloatArray, adjacency: Adjacency
    ) -> FloatArray:
        return np.asarray(self.c2 * np.sqrt(-np.log(delta) * participations) / epsilons, dtype=np.float64)


def needed_c2(epsilon: Numbers, delta: float) -> Numbers:
    """The c₂ at which Lemma 1's noise is exactly the needed one (add-remove): ε / (μ(ε, δ) √log(1/δ))."""
    eps = checked("epsilon", epsilon, low=0.0)
    return as_given(epsilon, np.asarray(eps / (gdp_mu(eps, delta) * np.sqrt(-np.log(delta))), dtype=np.float64))
