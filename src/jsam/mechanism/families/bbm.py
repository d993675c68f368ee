"""BBM-M: the clients with the largest local loss of the initial model, whatever they cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from jsam.errors import InputError
from jsam.mechanism._arrays import IntArray
from jsam.mechanism.families.description import LOSSES, Need
from jsam.mechanism.families.fsbm import FSBM
from jsam.mechanism.market import Market


@dataclass(frozen=True, kw_only=True, eq=False)
class BBM(FSBM):
    """The M largest `losses` of the market at p = 1/M, chosen once, before training and without the reports."""

    label: ClassVar[str] = "bbm-M"
    needs: ClassVar[tuple[Need, ...]] = (LOSSES,)

    def active(self, market: Market) -> IntArray:
        self._check_size(market.num_clients)
        self.check_cap(1 / self.num_selected)
        if market.losses is None:
            raise InputError(f"{self.name} selects by local loss: give the clients' losses (a column `loss`)")
        return np.sort(np.argsort(-market.losses, kind="stable")[: self.num_selected])
