"""FL-Market's All-in auction with its aggregation weights (OptAggr)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from jsam.mechanism._arrays import FloatArray
from jsam.mechanism.contract import Contract
from jsam.mechanism.families.rivals.spending import Auction, Outcome, WholeEpsilon

HALVINGS = 60


@dataclass(frozen=True, kw_only=True, eq=False)
class AllIn(WholeEpsilon, Auction):
    """The cheapest sell their whole ε while c Σε ≤ B, and share all of the budget in proportion to it.

    Truthfulness is not claimed here: the price B/Σε is above what the first loser would ask, and the audit finds losers
    who gain by asking less than they should. It is rational, and pays the budget to the last cent. A client that does
    not fit is passed over, and a dearer one with less ε may fit. Updates are weighted so that (ζ‖w − u‖₁)² + Q Σ w²/ε²
    is least over the sellers; with one whole ε for all they weigh alike. The rule is that of Zheng, Cao, Yoshikawa, Li
    and Yan, "FL-Market" (IEEE BigData 2022), as its public code has it; ours is a re-derivation.
    """

    label: ClassVar[str] = "all-in"
    truthful: ClassVar[bool] = False
    weighs_updates: ClassVar[bool] = True

    def sold(self, ranked: FloatArray, supplies: FloatArray) -> Outcome:
        together, sold = np.zeros(len(ranked)), np.zeros(ranked.shape)
        for rank in range(ranked.shape[1]):
            fits = ranked[:, rank] * (together + supplies[:, rank]) <= self.budget
            sold[:, rank] = np.where(fits, supplies[:, rank], 0.0)
            together = together + sold[:, rank]
        with np.errstate(divide="ignore", invalid="ignore"):
            price = np.where(together > 0, self.budget / together, 0.0)
        return Outcome(epsilons=sold, payments=sold * price[:, None])

    def finished(self, contract: Contract) -> Contract:
        eps, paid = contract.epsilons, contract.payments
        assert paid is not None
        sells = eps > 0
        if not sells.any():
            return contract
        # It pays the same for a unit to everybody.
        price = np.full(len(eps), float(paid.sum() / eps.sum()))
        w = aggregation_weights(eps[sells], len(eps), contract.noise_weight, contract.bias_weight)
        if np.ptp(w) <= 1e-12:
            return replace(contract, virtual_costs=price)
        weights = np.ones(len(eps))
        weights[sells] = w * len(w)
        return replace(contract, virtual_costs=price, update_weights=weights)


def aggregation_weights(epsilons: FloatArray, num_clients: int, noise_weight: float, bias_weight: float) -> FloatArray:
    """OptAggr: the w ≥ 0 with Σ w = 1 over sellers that minimise (ζ‖w − u‖₁)² + Q Σ w²/ε², u = 1/N for all N clients.

    As Σ w = 1 the distance is d = 2 Σ (w − u)⁺. Half of the objective's slope in a weight is Q w/ε² below u, and
    2 ζ² d more above it. At the minimum these slopes are one level for all but the weights that stand at u.
    """
    if np.ptp(epsilons) == 0:
        return np.full(len(epsilons), 1 / len(epsilons))
    u, steepness = 1 / num_clients, noise_weight / epsilons**2

    def at(hold: float) -> FloatArray:
        """Weights that sum to 1 where the slope above u is steeper by `hold`."""
        level = _level(steepness, u, hold)
        free = level / steepness
        found = np.where(free <= u, free, np.maximum(u, (level - hold) / steepness))
        return np.asarray(found / found.sum())

    if bias_weight == 0:
        return at(0.0)
    low, high = 0.0, 4 * bias_weight**2
    for _ in range(HALVINGS):
        # d falls as the slope above u is made steeper, so the two meet once.
        hold = (low + high) / 2
        too_low = 4 * bias_weight**2 * float(np.maximum(at(hold) - u, 0).sum()) > hold
        low, high = (hold, high) if too_low else (low, hold)
    return at(high)


def _level(steepness: FloatArray, u: float, hold: float) -> float:
    """The slope at which the weights sum to 1: their sum is piecewise linear, and stops where one stands at u."""
    turns = np.concatenate([u * steepness, u * steepness + hold])
    order = np.argsort(turns, kind="stable")
    turns = turns[order]
    slopes = np.sum(1 / steepness) + np.cumsum(np.concatenate([[0.0], -1 / steepness, 1 / steepness])[[0, *order + 1]])
    sums = np.cumsum(slopes[:-1] * np.diff(turns, prepend=0.0))
    after = int(np.searchsorted(sums, 1.0))
    start, done = (0.0, 0.0) if after == 0 else (float(turns[after - 1]), float(sums[after - 1]))
    end = float(turns[after]) if after < len(turns) else np.inf
    return min(start + (1 - done) / float(slopes[after]) if slopes[after] > 0 else end, end)
