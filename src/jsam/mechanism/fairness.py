"""How evenly a contract draws clients and pays them, and what each cap and floor costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from jsam.errors import InputError
from jsam.mechanism._arrays import FloatArray
from jsam.mechanism.contract import Contract
from jsam.mechanism.families.base import RangeMechanism
from jsam.mechanism.market import Market

CAPS = ("max_selection_prob", "max_epsilon", "min_clients", "min_selection_prob")


@dataclass(frozen=True, kw_only=True)
class Fairness:
    """Who is drawn and paid how unevenly under one contract.

    Gini coefficients are 0 if all have equally many draws, and near 1 if one client has nearly all. Of money nothing is
    known where payments were left out.
    """

    num_selected: int
    gini_all: float  # of the draws of all clients
    gini_kept: float  # of the draws of those who are kept
    draws_ratio: float  # the most draws of a client that is kept ÷ the least
    draws_ratio_per_record: float  # the same where each client's draws are divided by its records
    largest_epsilon: float
    payment_per_epsilon_min: float | None
    payment_per_epsilon_median: float | None
    payment_per_epsilon_max: float | None
    rent_share: float | None  # the share of all payments that is above the clients' cost c ε

    @classmethod
    def of(cls, contract: Contract) -> Fairness:
        """What the contract's own numbers say."""
        p, eps, paid = contract.selection_probs, contract.epsilons, contract.payments
        kept, sold = p > 0, eps > 0
        per_record = p if contract.data_shares is None else p / contract.data_shares
        least = median = most = rent = None
        if paid is not None and sold.any():
            prices = paid[sold] / eps[sold]
            least, median, most = (float(np.quantile(prices, q)) for q in (0.0, 0.5, 1.0))
        if paid is not None and paid.sum() > 0:
            rent = float(1 - (contract.sensitivities @ eps) / paid.sum())
        return cls(
            num_selected=contract.num_selected,
            gini_all=gini(p),
            gini_kept=gini(p[kept]),
            draws_ratio=_ratio(p[kept]),
            draws_ratio_per_record=_ratio(per_record[kept]),
            largest_epsilon=float(eps.max()),
            payment_per_epsilon_min=least,
            payment_per_epsilon_median=median,
            payment_per_epsilon_max=most,
            rent_share=rent,
        )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class CapPrice:
    """The plan for the same market at the same loss weight without one cap or floor, or without any.

    `price` is by how much the objective η · loss bound + cost is higher with it. It is never below 0 beyond rounding,
    where the mechanism chooses the best of what the caps allow.
    """

    without: str
    num_selected: int
    loss_bound: float
    expected_cost: float
    objective: float
    price: float
    largest_epsilon: float
    gini_all: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def gini(amounts: FloatArray) -> float:
    """The Gini coefficient: half the mean absolute difference of two of them, over their mean.

    >>> gini(np.array([1.0, 1.0, 1.0])), gini(np.array([0.0, 0.0, 0.0, 1.0]))
    (0.0, 0.75)
    """
    n, total = len(amounts), float(amounts.sum())
    if n == 0 or total == 0:
        return 0.0
    if np.ptp(amounts) == 0:
        return 0.0
    ranks = np.arange(1, n + 1)
    return float((2 * ranks - n - 1) @ np.sort(amounts) / (n * total))


def cap_prices(mechanism: RangeMechanism, market: Market, contract: Contract) -> Iterator[CapPrice]:
    """What each cap and floor of the mechanism costs, one after another, and all of them if there are several.

    `contract` is the mechanism's plan for the market. The loss weight stays as it is, so under a budget another amount
    is spent without the cap.
    """
    if mechanism.spends_budget:
        raise InputError(f"{mechanism.name} has no loss weight, so what a cap costs it has no price")
    if getattr(mechanism, "minimises_another_loss", False):
        raise InputError(f"{mechanism.name} does not minimise its contract's objective here: caps have no price")
    given = [name for name in CAPS if getattr(mechanism, name) is not None]
    for names in [[name] for name in given] + ([given] if len(given) > 1 else []):
        without: dict[str, Any] = dict.fromkeys(names)
        free = replace(mechanism, **without).plan(market, payments=False)
        yield CapPrice(
            without=" ".join(names),
            num_selected=free.num_selected,
            loss_bound=free.loss_bound,
            expected_cost=free.expected_cost,
            objective=free.objective,
            price=contract.objective - free.objective,
            largest_epsilon=float(free.epsilons.max()),
            gini_all=gini(free.selection_probs),
        )


def _ratio(amounts: FloatArray) -> float:
    """The largest ÷ the smallest; 1 where there are none."""
    return float(amounts.max() / amounts.min()) if len(amounts) else 1.0
