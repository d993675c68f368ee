"""Gaussian noise, exactly as much as the guarantee needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from jsam.privacy.accounting import GAUSSIAN, Accountant
from jsam.privacy.adjacency import Adjacency
from jsam.privacy.gaussian import FloatArray, gdp_mu


@dataclass(frozen=True, kw_only=True)
class Exact:
    """σ = s √T_k / μ(ε, δ): what the guarantee needs, no more (relative 1e-5) and never less."""

    label: ClassVar[str] = "exact"
    keeps_contracts: ClassVar[bool] = True
    accountant: ClassVar[Accountant] = GAUSSIAN
    words: ClassVar[str] = "the noise is calibrated exactly"

    def multipliers(
        self, epsilons: FloatArray, delta: float, participations: FloatArray, adjacency: Adjacency
    ) -> FloatArray:
        return np.asarray(adjacency.factor * np.sqrt(participations) / gdp_mu(epsilons, delta), dtype=np.float64)
