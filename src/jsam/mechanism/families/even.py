"""Even shares: the cheapest clients, all drawn equally often, as many of them as the loss bound says."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from jsam.errors import InputError
from jsam.mechanism._arrays import FloatArray, IntArray
from jsam.mechanism.bound import BiasRule
from jsam.mechanism.families.base import RangeMechanism, tie_order
from jsam.mechanism.lots import check_lot
from jsam.mechanism.market import Market
from jsam.mechanism.solver.counted import Sizes, even_range
from jsam.mechanism.solver.profiles import Profiles, even_shares
from jsam.mechanism.solver.response import Answers
from jsam.mechanism.solver.unequal import UnequalReport, told_apart
from jsam.mechanism.weights import Weights

ROUNDING = 1e-12


@dataclass(frozen=True, kw_only=True, eq=False)
class EvenJSAM(RangeMechanism):
    """The m cheapest clients at p = 1/m each, with m chosen exactly by the bias of a random sample of clients.

    Clients are dropped for their price. If prices do not depend on the data, those kept are a random sample, and its
    mean misses the mean over all by ζ sqrt(1/m − 1/N) in root mean square. The paper's ‖p − u‖₁ is the bias in the
    worst case instead. A cap on p is a least m. Clients with unequal data are drawn in proportion to their data, and
    the best selection is an exact knapsack over records.

    With a `lot`, a number of records, data count by lots instead of by clients: Q and ζ are those of clients that hold
    one lot each, and a client that holds M records is planned as M/lot such clients of one price. What is minimised
    then depends on records and prices alone, so an owner does not gain by splitting its records over several ids. It
    needs priors by lots (`jsam.mechanism.lots`), and the contract states Q and ζ as they count for clients of the
    average size of the market.
    """

    label: ClassVar[str] = "jsam-even"
    chooses_probs: ClassVar[bool] = True
    bias_rule: ClassVar[BiasRule] = "sample"

    lot: float | None = None  # a whole number of records

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lot is not None:
            check_lot(self.lot)

    def profiles(self, num_clients: int) -> Profiles:
        return even_shares(num_clients)

    def counts_sizes(self, market: Market) -> bool:
        return self.lot is not None or super().counts_sizes(market)

    def check_unequal_data(self) -> None:
        """Nothing is refused."""

    def answers_by_size(self, market: Market, active: IntArray, v: FloatArray, client: int | None) -> Answers:
        weights = self.weights_for(market)
        assert market.samples is not None
        sizes = Sizes.of(market.samples, weights, self.lot)
        allowed = even_range(sizes)
        if not allowed.any():
            raise self.nothing_within(market.num_clients)
        factors = told_apart(len(active), ironed=market.ironed, tie_order=tie_order(market, active))
        return UnequalReport(sizes=sizes, reported=v, factors=factors, receivers=False, allowed=allowed)

    @property
    def minimises_another_loss(self) -> bool:
        """Whether it counts the noise otherwise than its contract's loss bound does."""
        return self.lot is not None

    def weights_for(self, market: Market) -> Weights:
        """Q and ζ of clients of the average size of a market, from those of clients of one lot each."""
        if self.lot is None:
            return self.weights
        if market.samples is None:
            raise InputError("a lot counts data by records: give the number of samples of every client, or no lot")
        M = np.asarray(market.samples, dtype=np.float64)
        lots = M / self.lot
        spread = float((M**2).sum()) / float(M.sum()) ** 2  # Σu²
        return replace(
            self.weights,
            noise_weight=self.noise_weight / float(lots.mean()) ** 2,
            bias_weight=self.bias_weight * math.sqrt(1 / float(lots.sum()) / spread),
        )

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
