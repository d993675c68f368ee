"""A menu of K contracts with unbiased selection: the family of most incentive mechanisms for private learning."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from jsam.errors import InputError
from jsam.mechanism._arrays import FloatArray
from jsam.mechanism.contract import Contract
from jsam.mechanism.families.base import RangeMechanism
from jsam.mechanism.market import Market
from jsam.mechanism.pricing.pieces import Pieces
from jsam.mechanism.pricing.virtual_cost import VirtualCost
from jsam.mechanism.solver.payments import Progress
from jsam.mechanism.solver.profiles import Profiles, equal_probabilities


@dataclass(frozen=True, kw_only=True, eq=False)
class Menu(RangeMechanism):
    """The best menu of K items (ε, payment) that makes each type pick its own, everybody drawn equally often.

    Types are K stretches of sensitivities of the same probability. All of a type sell the same ε; dearer types sell
    less, and each is paid so that the dearest of it just takes part and that of the next cheaper type is indifferent.
    It claims to be truthful and rational. The family is that of Pain-FL and HDP-FL; their equations were not to be had,
    so ours is a re-derivation for the loss bound of this package: a type costs the server its mean virtual cost, and
    with types as fine as the reports it is USBM. What an item is worth depends on how many are of which type.
    """

    label: ClassVar[str] = "menu-K"

    num_types: int

    @property
    def name(self) -> str:
        return self.label.replace("-K", f"-{self.num_types}")

    def profiles(self, num_clients: int) -> Profiles:
        return equal_probabilities(num_clients, num_clients)

    def price(self, cost: VirtualCost) -> VirtualCost:
        """The mean virtual cost of the type that a report belongs to."""
        K = self.num_types
        if K < 1:
            raise InputError(f"{self.name} has {K} types; at least 1 is needed")
        if not math.isfinite(cost.top):
            raise InputError(
                f"{self.name} buys from everybody at the price of its dearest type, and the prior has no dearest"
                " report; it needs one that ends, as beta:2,5 does"
            )
        shares = np.arange(K + 1) / K
        edges = np.concatenate([[cost.bottom], np.asarray(cost.prior.ppf(shares[1:-1]), dtype=np.float64), [cost.top]])
        # ∫ v dq over a type, from H(q) = q · ppf(q); as v may fall, so may its means: then neighbours are one type.
        levels = _rising(np.diff(shares * edges) * K)
        pieces = Pieces.rising(edges, levels, levels)
        return VirtualCost(prior=cost.prior, bottom=cost.bottom, top=cost.top, pieces=pieces, flats=cost.flats)

    def plan(self, market: Market, *, payments: bool = True, progress: Progress | None = None) -> Contract:
        self.refuse_sizes(market)
        contract = super().plan(market, payments=payments, progress=progress)
        return replace(contract, virtual_costs=market.virtual_costs, runner_up=None)


def _rising(means: FloatArray) -> FloatArray:
    """The nearest values that do not fall: neighbours that do are pooled."""
    blocks: list[tuple[float, int]] = []
    for mean in means.tolist():
        value, count = mean, 1
        while blocks and blocks[-1][0] > value:
            before, many = blocks.pop()
            value, count = (before * many + value * count) / (many + count), many + count
        blocks.append((value, count))
    return np.repeat([value for value, _ in blocks], [count for _, count in blocks])
