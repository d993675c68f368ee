"""FairQuery: many clients sell little, at one price that the first loser sets (Ghosh and Roth, EC 2011)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from jsam.mechanism._arrays import FloatArray
from jsam.mechanism.families.rivals.spending import Auction, Outcome, first_of, to_winners


@dataclass(frozen=True, kw_only=True, eq=False)
class FairQuery(Auction):
    """The k cheapest sell ε = 1/(N−k) each, k the largest with c₍k₎/(N−k) ≤ B/k; paid min(B/k, c₍k+1₎/(N−k)).

    It claims to be truthful and rational, and that the payments never exceed the budget: while a client sells, nothing
    depends on its own report, and it is paid the highest report at which it still would. The rule is that of Ghosh and
    Roth, "Selling Privacy at Auction" (2011), with ε counted over the whole training. Theirs answers one query on all
    sellers' data; here the sellers are drawn equally often. At most N − 1 clients sell, fewer where 1/(N−k) would be
    above `max_epsilon`.
    """

    label: ClassVar[str] = "fairquery"

    def sold(self, ranked: FloatArray, supplies: FloatArray) -> Outcome:
        N = ranked.shape[1]
        most = N - 1
        if self.max_epsilon is not None:
            most = min(most, math.floor(N - 1 / self.max_epsilon + 1e-12)) if self.max_epsilon * N > 1 else 0
        ranks = np.arange(1, most + 1)
        k = first_of(ranked[:, :most] <= self.budget * (N - ranks) / ranks)
        eps = 1 / (N - k)
        if self.max_epsilon is not None:
            eps = np.minimum(eps, self.max_epsilon)  # the limit on k leaves a rounding error at most
        following = np.take_along_axis(ranked, np.minimum(k, N - 1)[:, None], axis=1)[:, 0]
        paid = np.minimum(self.budget / np.maximum(k, 1), following * eps)
        winners = to_winners(k, N)
        return Outcome(epsilons=winners * eps[:, None], payments=winners * paid[:, None])
