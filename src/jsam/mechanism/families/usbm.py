"""USBM: unbiased selection, every client as often as its data share says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from jsam.errors import InputError
from jsam.mechanism._arrays import FloatArray
from jsam.mechanism.contract import Contract
from jsam.mechanism.families.description import SELECTION_PROBS, Need
from jsam.mechanism.families.fixed import FixedSelection
from jsam.mechanism.market import Market
from jsam.mechanism.solver.payments import Progress
from jsam.mechanism.solver.profiles import Profiles, equal_probabilities


@dataclass(frozen=True, kw_only=True, eq=False)
class USBM(FixedSelection):
    """p = 1/N for all. With `selection_probs` it is importance-compensated: any p, updates weighted u/p.

    A client drawn p/u times as often adds T_k ∝ p noise of weight (u/p)²: the noise term is Σ u²/ε² whatever p is, so
    budgets and payments do not depend on it.
    """

    label: ClassVar[str] = "usbm"

    selection_probs: Sequence[float] | FloatArray | None = None

    @property
    def name(self) -> str:
        return self.label if self.selection_probs is None else CompensatedUSBM.label

    def profiles(self, num_clients: int) -> Profiles:
        return equal_probabilities(num_clients, num_clients)

    def plan(self, market: Market, *, payments: bool = True, progress: Progress | None = None) -> Contract:
        if self.selection_probs is None:
            return super().plan(market, payments=payments, progress=progress)
        p = np.asarray(self.selection_probs, dtype=np.float64)
        if p.shape != (market.num_clients,) or not np.all(p > 0) or not np.isclose(p.sum(), 1, rtol=0, atol=1e-9):
            raise InputError(f"selection_probs must be {market.num_clients} positive numbers that sum to 1")
        self.check_cap(float(p.max()))
        contract = super().plan(market, payments=payments, progress=progress)
        shares = 1 / market.num_clients if market.data_shares is None else market.data_shares
        return replace(contract, selection_probs=p, update_weights=shares / p)


@dataclass(frozen=True, kw_only=True, eq=False)
class CompensatedUSBM(USBM):
    """Any p that is given, with updates weighted u/p: unbiased, at USBM's budgets and payments."""

    label: ClassVar[str] = "usbm-compensated"
    needs: ClassVar[tuple[Need, ...]] = (SELECTION_PROBS,)

    selection_probs: Sequence[float] | FloatArray = field()
