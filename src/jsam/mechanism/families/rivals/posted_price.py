"""A posted price: take it or leave it, as long as the money lasts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from jsam.mechanism._arrays import FloatArray
from jsam.mechanism.families.rivals.spending import Outcome, WholeEpsilon, tops
from jsam.mechanism.market import Market

HALVINGS = 200


@dataclass(frozen=True, kw_only=True, eq=False)
class PostedPrice(WholeEpsilon):
    """One price for a unit of ε, set from the prior; whoever asks no more sells its whole ε while the budget lasts.

    It claims to be truthful and rational, and that the payments never exceed the budget: a report decides only whether
    its client accepts. The price is such that those who are expected to accept would cost the budget, so many markets
    leave some money over, and in others not everybody who accepts can sell. Who comes first is decided by a hash of
    the id (without ids, by the position). A textbook rule.
    """

    label: ClassVar[str] = "posted-price"

    def posted(self, market: Market) -> float:
        """The r with r Σ F_k(r) ε_k = B; not above what anybody can ask, nor what the budget pays the first with."""
        known = self._posted.get(id(market.prior))
        if known is None or known[0] is not market.prior:
            known = self._posted[id(market.prior)] = (market.prior, self._found(market))
        return known[1]

    @cached_property
    def _posted(self) -> dict[int, tuple[Any, float]]:
        """Prices that were found already, by the market's prior."""
        return {}

    def _found(self, market: Market) -> float:
        wholes = self.supplies(market)

        def expected(price: float) -> float:
            accepting = [
                float(wholes[members].sum() * np.exp(cost.prior.logcdf(price))) for cost, members in market.cost_groups
            ]
            return price * sum(accepting)

        low, high = 0.0, min(float(tops(market).max()), self.budget / float(wholes.max()) * (1 - 1e-12))
        if expected(high) <= self.budget:
            return high
        while low < (middle := (low + high) / 2) < high:
            low, high = (middle, high) if expected(middle) <= self.budget else (low, middle)
        return low

    def outcome(self, market: Market, reports: FloatArray) -> Outcome:
        price, wholes = self.posted(market), self.supplies(market)
        first = np.arange(market.num_clients) if market.tie_order is None else market.tie_order
        accepted = (reports <= price) * wholes
        spent = np.empty(reports.shape)
        spent[:, first] = np.cumsum(accepted[:, first] * price, axis=1)
        sold = np.where(spent <= self.budget, accepted, 0.0)
        return Outcome(epsilons=sold, payments=sold * price).within_support(market)
