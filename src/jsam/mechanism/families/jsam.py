"""JSAM: selection probabilities, privacy budgets and payments chosen together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jsam.errors import UnequalDataError
from jsam.mechanism._arrays import FloatArray, IntArray
from jsam.mechanism.families.base import RangeMechanism, tie_order
from jsam.mechanism.market import Market
from jsam.mechanism.solver.counted import Sizes, receiver_range
from jsam.mechanism.solver.profiles import Profiles, capped_curve, equal_receivers, thresholds
from jsam.mechanism.solver.response import Answers
from jsam.mechanism.solver.unequal import UnequalReport, told_apart


@dataclass(frozen=True, kw_only=True, eq=False)
class JSAM(RangeMechanism):
    """The paper's mechanism: the exact minimum over a range that is fixed by the number of clients and the caps.

    Without caps the range holds the optimum over all of the simplex. `max_selection_prob` takes the points of the
    capped curve, whose best is within 1e-6 of that. `max_epsilon` adds "h kept, m of them receiving equally". With
    unequal data one client receives what the dropped ones leave, and the others kept are drawn by their shares.
    """

    label: ClassVar[str] = "jsam"
    optimal: ClassVar[bool] = True
    chooses_probs: ClassVar[bool] = True

    def profiles(self, num_clients: int) -> Profiles:
        cap = self._cap
        if self.max_epsilon is None:
            return thresholds(num_clients) if cap is None else capped_curve(num_clients, cap)
        receivers = equal_receivers(num_clients, cap)
        return receivers if cap is None else receivers.joined(capped_curve(num_clients, cap))

    def check_unequal_data(self) -> None:
        """Refuse a cap on ε: with different amounts of data one receiver is not the best under it."""
        if self.max_epsilon is not None:
            raise UnequalDataError(
                f"{self.name} has no cap on ε for clients with different numbers of samples; take jsam-even, or no"
                " max_epsilon"
            )

    def answers_by_size(self, market: Market, active: IntArray, v: FloatArray, client: int | None) -> Answers:
        assert market.samples is not None
        self.check_unequal_data()
        sizes = Sizes.of(market.samples, self.weights)
        allowed = receiver_range(sizes)
        if not allowed.any():
            raise self.nothing_within(market.num_clients)
        factors = told_apart(len(active), ironed=market.ironed, tie_order=tie_order(market, active))
        return UnequalReport(sizes=sizes, reported=v, factors=factors, receivers=True, allowed=allowed)

    @property
    def _cap(self) -> float | None:
        return None if self.max_selection_prob is None or self.max_selection_prob >= 1 else self.max_selection_prob
