"""What mechanisms share that divide a given budget among the clients after the reports."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from jsam.errors import InputError
from jsam.mechanism._arrays import BoolArray, FloatArray, IntArray
from jsam.mechanism.contract import Contract
from jsam.mechanism.families.base import RangeMechanism, Responses
from jsam.mechanism.market import Market
from jsam.mechanism.solver.payments import Progress
from jsam.mechanism.solver.profiles import Profiles
from jsam.mechanism.weights import check_number

USUAL_EPSILON = 10.0
"""What a client of an auction of whole ε sells where neither `max_epsilon` nor `whole_epsilon` says it."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one or several sets of reports lead to, a row for each set and a column for each client."""

    epsilons: FloatArray
    payments: FloatArray

    def within_support(self, market: Market) -> Outcome:
        """The same with nobody paid more than the dearest report that its prior allows would ask."""
        dearest = np.multiply(self.epsilons, tops(market), out=np.zeros(self.epsilons.shape), where=self.epsilons > 0)
        return Outcome(epsilons=self.epsilons, payments=np.minimum(self.payments, dearest))


@dataclass(frozen=True, kw_only=True, eq=False)
class SpendsBudget(RangeMechanism):
    """A mechanism that never pays more than `budget` in all, whatever the reports.

    No loss weight changes what it does: the one in its contracts is 1 and no more than a yardstick. All who sell are
    drawn equally often. A cap on p is refused, as the reports decide how many sell.
    """

    spends_budget: ClassVar[bool] = True

    budget: float
    loss_weight: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("budget", self.budget, lambda x: x > 0, "a positive number")

    @abstractmethod
    def outcome(self, market: Market, reports: FloatArray) -> Outcome:
        """What each row of reports leads to; everything else of the market is commonly known."""

    def supplies(self, market: Market) -> FloatArray:
        """The most that each client can sell."""
        return np.full(market.num_clients, np.inf if self.max_epsilon is None else self.max_epsilon)

    def profiles(self, num_clients: int) -> Profiles:
        raise InputError(f"{self.name} states no range of selection probabilities: the reports decide how many sell")

    def plan(self, market: Market, *, payments: bool = True, progress: Progress | None = None) -> Contract:
        self.refuse_sizes(market)
        for name, words in (
            ("max_selection_prob", "cap on p"),
            ("min_selection_prob", "floor"),
            ("min_clients", "floor"),
        ):
            if (value := getattr(self, name)) is not None:
                raise InputError(
                    f"{name} is {value:g}, and {self.name} keeps to no {words}: the reports decide how many sell"
                )
        reached = self.outcome(market, market.sensitivities[None, :])
        eps, paid = reached.epsilons[0], reached.payments[0]
        sells = eps > 0
        contract = Contract(
            mechanism=self.name,
            truthful=self.truthful,
            names=None if market.ids is None else tuple(market.ids),
            sensitivities=market.sensitivities,
            virtual_costs=market.virtual_costs,
            selection_probs=sells / max(int(sells.sum()), 1),
            epsilons=eps,
            payments=paid,
            weights=self.weights,
            budget=self.budget,
            ironed=market.ironed,
            payment_error_bound=0.0 if payments and self.truthful else None,
        )
        contract = self.finished(contract)
        return contract if payments else replace(contract, payments=None)

    def finished(self, contract: Contract) -> Contract:
        """The contract with what is special to the mechanism."""
        return contract

    def respond(self, market: Market, client: int, reports: FloatArray, *, payments: bool = True) -> Responses:
        z = np.asarray(reports, dtype=np.float64)
        eps, paid = np.empty(len(z)), np.empty(len(z))
        step = max(1, (1 << 19) // market.num_clients)
        for start in range(0, len(z), step):
            part = slice(start, start + step)
            rows = np.tile(market.sensitivities, (len(z[part]), 1))
            rows[:, client] = z[part]
            reached = self.outcome(market, rows)
            eps[part], paid[part] = reached.epsilons[:, client], reached.payments[:, client]
        return Responses(epsilons=eps, payments=paid)


@dataclass(frozen=True, kw_only=True, eq=False)
class Auction(SpendsBudget):
    """A sealed-bid auction: clients are ranked by their reports, ties by the order that the market fixes."""

    @abstractmethod
    def sold(self, ranked: FloatArray, supplies: FloatArray) -> Outcome:
        """What rows of rising reports lead to; `supplies` is the whole ε of the client at each rank."""

    def outcome(self, market: Market, reports: FloatArray) -> Outcome:
        ties = np.arange(market.num_clients) if market.tie_order is None else market.tie_order
        order = ties[np.argsort(reports[:, ties], axis=1, kind="stable")]
        ranked = self.sold(np.take_along_axis(reports, order, axis=1), self.supplies(market)[order])
        eps, paid = np.empty(reports.shape), np.empty(reports.shape)
        np.put_along_axis(eps, order, ranked.epsilons, axis=1)
        np.put_along_axis(paid, order, ranked.payments, axis=1)
        reached = Outcome(epsilons=eps, payments=paid)
        # Nobody can report more than the prior allows, so truth needs no more (the dearest seller may have no rival).
        return reached.within_support(market) if self.truthful else reached


@dataclass(frozen=True, kw_only=True, eq=False)
class WholeEpsilon(SpendsBudget):
    """A client sells its whole ε or nothing.

    The published rules take each client's own privacy budget as given. A market here knows only the price of a unit.
    So `whole_epsilon` says what a whole ε is, one number for all or one for each client. It must be public beforehand.
    Where it is left out it is `max_epsilon`, and 10 where that is left out too.
    """

    whole_epsilon: float | Sequence[float] | FloatArray | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        allowed = "a positive number, at most max_epsilon"
        most = np.inf if self.max_epsilon is None else self.max_epsilon
        for value in np.unique(self._wholes):
            check_number("whole_epsilon", float(value), lambda x: 0 < x <= most, allowed)

    @cached_property
    def _wholes(self) -> FloatArray:
        if self.whole_epsilon is not None:
            return np.asarray(self.whole_epsilon, dtype=np.float64)
        return np.asarray(USUAL_EPSILON if self.max_epsilon is None else self.max_epsilon)

    def supplies(self, market: Market) -> FloatArray:
        if self._wholes.ndim and self._wholes.shape != (market.num_clients,):
            raise InputError(f"whole_epsilon must be one number, or {market.num_clients} numbers, one for each client")
        return np.broadcast_to(self._wholes, (market.num_clients,))


def tops(market: Market) -> FloatArray:
    """The dearest report that each client's prior allows."""
    dearest = np.empty(market.num_clients)
    for cost, members in market.cost_groups:
        dearest[members] = cost.top
    return dearest


def first_of(fits: BoolArray) -> IntArray:
    """How many of the first columns fit in each row, up to the first that does not."""
    whole = np.column_stack([fits, np.zeros(len(fits), dtype=bool)])
    return np.asarray(np.argmin(whole, axis=1))


def to_winners(winners: IntArray, num_clients: int) -> FloatArray:
    """1 for the first so many ranks of each row, 0 for the others."""
    return np.asarray(np.arange(num_clients) < winners[:, None], dtype=np.float64)
