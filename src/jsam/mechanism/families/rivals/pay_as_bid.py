"""Greedy pay-as-bid: what a buyer does who does not think of incentives."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from jsam.mechanism._arrays import FloatArray
from jsam.mechanism.contract import Contract
from jsam.mechanism.families.rivals.spending import Auction, Outcome, WholeEpsilon, first_of, to_winners


@dataclass(frozen=True, kw_only=True, eq=False)
class PayAsBid(WholeEpsilon, Auction):
    """The cheapest sell their whole ε for just what they ask, as long as the budget lasts.

    It does not claim to be truthful: whoever sells gains by asking nearly as much as the dearest that still sells. It
    is rational at the reports, and the payments never exceed the budget. A textbook rule; here it shows what
    manipulation is worth.
    """

    label: ClassVar[str] = "pay-as-bid"
    truthful: ClassVar[bool] = False

    def sold(self, ranked: FloatArray, supplies: FloatArray) -> Outcome:
        asked = ranked * supplies
        k = first_of(np.cumsum(asked, axis=1) <= self.budget)
        winners = to_winners(k, ranked.shape[1])
        return Outcome(epsilons=winners * supplies, payments=winners * asked)

    def finished(self, contract: Contract) -> Contract:
        # What it pays for a unit is the report itself.
        return replace(contract, virtual_costs=contract.sensitivities)
