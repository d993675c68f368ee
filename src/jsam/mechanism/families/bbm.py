"""BBM-M: the clients with the largest local loss of the initial model, whatever they cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jsam.errors import InputError
from jsam.mechanism._arrays import IntArray
from jsam.mechanism.families.base import RangeMechanism
from jsam.mechanism.families.fsbm import check_size
from jsam.mechanism.market import Market
from jsam.mechanism.solver.profiles import Profiles, equal_probabilities


@dataclass(frozen=True, kw_only=True, eq=False)
class BBM(RangeMechanism):
    """The M largest `losses` of the market at p = 1/M, chosen once, before training and without the reports."""

    num_selected: int

    @property
    def name(self) -> str:
        return f"bbm-{self.num_selected}"

    def active(self, market: Market) -> IntArray:
        check_size(self.name, self.num_selected, market.num_clients, self.max_selection_prob)
        if market.losses is None:
            raise InputError(f"{self.name} selects by local loss: give the clients' losses (a column `loss`)")
        return np.sort(np.argsort(-market.losses, kind="stable")[: self.num_selected])

    def profiles(self, num_clients: int) -> Profiles:
        return equal_probabilities(num_clients, num_clients)
