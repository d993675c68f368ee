"""What mechanisms share that select a fixed number of clients: with unequal data each is drawn by its share."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from jsam.mechanism._arrays import FloatArray, IntArray
from jsam.mechanism.families.base import RangeMechanism, tie_order
from jsam.mechanism.market import Market
from jsam.mechanism.solver.response import Answers, OwnReport
from jsam.mechanism.solver.rows import SortedRows


@dataclass(frozen=True, kw_only=True, eq=False)
class FixedSelection(RangeMechanism):
    """A range of one profile.

    With p = u/U among the selected, who hold the share U of all data, the noise of each counts as if it had been drawn
    with probability 1/(N U) and held as much as the average client. U does not depend on the report of whoever is
    selected, so its payment is that of a single profile.
    """

    def check_unequal_data(self) -> None:
        """Nothing is refused."""

    def answers_by_size(self, market: Market, active: IntArray, v: FloatArray, client: int | None) -> Answers:
        shares, ordered = market.data_shares, SortedRows.of(v, tie_order(market, active))
        assert shares is not None
        rule = self.rule(len(active))
        M = int(rule.profiles.num_selected[0])
        # The largest p that anybody can have, whoever is selected: the largest beside the smallest.
        sizes = np.sort(shares[active])
        self.check_cap(float(sizes[-1] / (sizes[-1] + sizes[: M - 1].sum())))
        ranked = active[ordered.order[0]]
        if client is not None:
            ranked = np.concatenate([[client], ranked[ranked != client]])
        U = float(shares[ranked[:M]].sum())
        profiles = replace(rule.profiles, levels=np.array([[1 / (market.num_clients * U)]]))
        return OwnReport(rule=replace(rule, profiles=profiles), base=ordered)

    def probs_by_size(self, market: Market, probs: FloatArray) -> FloatArray:
        assert market.data_shares is not None
        return probs * market.num_clients * market.data_shares
