"""Even shares: the cheapest clients, all drawn equally often, as many of them as the loss bound says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jsam.mechanism._arrays import FloatArray, IntArray
from jsam.mechanism.bound import BiasRule
from jsam.mechanism.families.base import RangeMechanism
from jsam.mechanism.market import Market
from jsam.mechanism.solver.counted import Sizes, even_range
from jsam.mechanism.solver.profiles import Profiles, even_shares
from jsam.mechanism.solver.response import Answers
from jsam.mechanism.solver.unequal import UnequalReport


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

    def answers_by_size(self, market: Market, active: IntArray, v: FloatArray, client: int | None) -> Answers:
        assert market.samples is not None
        sizes = Sizes.of(market.samples, self.weights)
        allowed = even_range(sizes)
        if not allowed.any():
            raise self.nothing_within(market.num_clients)
        return UnequalReport(sizes=sizes, v=v, receivers=False, allowed=allowed)
