"""The proportional-share auction: whole ε for a share of the budget (Singer, FOCS 2010)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from jsam.mechanism._arrays import FloatArray
from jsam.mechanism.families.rivals.spending import Auction, Outcome, WholeEpsilon, first_of, to_winners


@dataclass(frozen=True, kw_only=True, eq=False)
class ProportionalShare(WholeEpsilon, Auction):
    """The cheapest sell their whole ε while c₍k₎ ≤ B/Σε; each is paid ε · min(B/Σε, c₍k+1₎).

    It claims to be truthful and rational, and that the payments never exceed the budget. The rule is the proportional
    share allocation of Singer, "Budget Feasible Mechanisms" (2010), with the ε that a client sells as its value.
    """

    label: ClassVar[str] = "proportional-share"

    def sold(self, ranked: FloatArray, supplies: FloatArray) -> Outcome:
        N = ranked.shape[1]
        together = np.cumsum(supplies, axis=1)
        k = first_of(ranked * together <= self.budget)
        last = np.maximum(k - 1, 0)[:, None]
        share = self.budget / np.take_along_axis(together, last, axis=1)
        following = np.take_along_axis(ranked, np.minimum(k, N - 1)[:, None], axis=1)
        price = np.where(k[:, None] < N, np.minimum(share, following), share)
        sold = to_winners(k, N) * supplies
        return Outcome(epsilons=sold, payments=sold * price)
