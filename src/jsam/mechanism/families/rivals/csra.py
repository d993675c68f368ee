"""CSRA's selection in one shot: few clients sell their whole ε at the price of the first loser."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from jsam.mechanism._arrays import FloatArray
from jsam.mechanism.families.rivals.spending import Auction, Outcome, WholeEpsilon, first_of, to_winners


@dataclass(frozen=True, kw_only=True, eq=False)
class CSRA(WholeEpsilon, Auction):
    """Ranked by quality per bid; the k best are paid (b₍k+1₎/q₍k+1₎) q each, k the largest that the budget allows.

    A client's quality q goes with ε · samples and its bid is b = c ε, so with equally many samples the ranking is that
    of c and each winner is paid c₍k+1₎ ε. It claims to be truthful and rational, and that the payments never exceed
    the budget. The rule is that of Yang, Hu, Zhou, Liu and Wu, "CSRA: Robust Incentive Mechanism Design for
    Differentially Private Federated Learning" (IEEE TIFS 2024), as public code describes it; ours is a re-derivation.
    It has no history, so everybody counts as honest, and the paper's search for dishonest clients is left out.
    """

    label: ClassVar[str] = "csra"

    def sold(self, ranked: FloatArray, supplies: FloatArray) -> Outcome:
        N = ranked.shape[1]
        together = np.cumsum(supplies, axis=1)
        k = first_of(ranked[:, 1:] * together[:, :-1] <= self.budget)
        price = np.take_along_axis(ranked, np.minimum(k, N - 1)[:, None], axis=1)
        sold = to_winners(k, N) * supplies
        return Outcome(epsilons=sold, payments=sold * price)
