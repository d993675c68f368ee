"""Even shares: the cheapest clients, all drawn equally often, as many of them as the loss bound says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from jsam.mechanism._arrays import FloatArray, IntArray
from jsam.mechanism.bound import BiasRule
from jsam.mechanism.families.base import RangeMechanism
from jsam.mechanism.market import Market
from jsam.mechanism.solver.counted import Sizes, even_range
from jsam.mechanism.solver.profiles import Profiles, even_shares
from jsam.mechanism.solver.response import Answers
from jsam.mechanism.solver.unequal import UnequalReport

ROUNDING = 1e-12


@dataclass(frozen=True, kw_only=True, eq=False)
class EvenJSAM(RangeMechanism):
    """The m cheapest clients at p = 1/m each, with m chosen exactly by the bias of a random sample of clients.

    Clients are dropped for their price. If prices do not depend on the data, those kept are a random sample, and its
    mean misses the mean over all by ζ sqrt(1/m − 1/N) in root mean square. The paper's ‖p − u‖₁ is the bias in the
    worst case instead. A cap on p is a least m. Clients with unequal data are drawn in proportion to their data, and
    the best selection is an exact knapsack over records.
    """

    label: ClassVar[str] = "jsam-even"
    chooses_probs: ClassVar[bool] = True
    bias_rule: ClassVar[BiasRule] = "sample"

    def profiles(self, num_clients: int) -> Profiles:
        return even_shares(num_clients)

    def check_unequal_data(self) -> None:
        """Nothing is refused."""

    def answers_by_size(self, market: Market, active: IntArray, v: FloatArray, client: int | None) -> Answers:
        assert market.samples is not None
        sizes = Sizes.of(market.samples, self.weights)
        allowed = even_range(sizes)
        if not allowed.any():
            raise self.nothing_within(market.num_clients)
        return UnequalReport(sizes=sizes, v=v, receivers=False, allowed=allowed)

    def probs_by_size(self, market: Market, probs: FloatArray) -> FloatArray:
        """Shares by records, where the selection was made by rounded sizes; ε does not depend on the difference.

        Caps and floors hold for the rounded sizes. If they do not for the true ones, the rounded ones decide.
        """
        assert market.data_shares is not None
        held = np.where(probs > 0, market.data_shares, 0.0)
        exact = held / held.sum()
        most, least = self.max_selection_prob or 1.0, self.min_selection_prob or 0.0
        within = exact.max() <= most * (1 + ROUNDING) and exact[held > 0].min() >= least * (1 - ROUNDING)
        return exact if within else probs
