"""What a mechanism is, and everything that all mechanisms of this package share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import ClassVar, Protocol, Self

import numpy as np

from jsam.errors import InputError, NotFiniteError, ReportError, UnequalDataError
from jsam.mechanism._arrays import FloatArray, IntArray
from jsam.mechanism.bound import BiasRule
from jsam.mechanism.contract import Contract
from jsam.mechanism.families.description import Need
from jsam.mechanism.market import Market
from jsam.mechanism.pricing.virtual_cost import VirtualCost
from jsam.mechanism.solver.allocation import Rule
from jsam.mechanism.solver.payments import TOLERANCE, Progress, rents
from jsam.mechanism.solver.profiles import Profiles
from jsam.mechanism.solver.response import Answers, OwnReport
from jsam.mechanism.solver.rows import SortedRows
from jsam.mechanism.weights import Weights, check_number


@dataclass(frozen=True, kw_only=True)
class Responses:
    """What one client would sell and be paid for each report that it might make, the others' as they are."""

    epsilons: FloatArray
    payments: FloatArray  # NaN where they were left out


class Mechanism(Protocol):
    """From reports to a contract. `plan` is all that is needed; `respond` may simply plan again for each report."""

    @property
    def name(self) -> str: ...

    @property
    def truthful(self) -> bool:
        """Whether it claims that no client can gain by misreporting."""
        ...

    def plan(self, market: Market, *, payments: bool = True, progress: Progress | None = None) -> Contract: ...

    def respond(self, market: Market, client: int, reports: FloatArray, *, payments: bool = True) -> Responses: ...


def plan(market: Market, mechanism: Mechanism, *, payments: bool = True, progress: Progress | None = None) -> Contract:
    """Turn reports into a contract.

    >>> import scipy.stats
    >>> from jsam.mechanism.families.jsam import JSAM
    >>> market = Market(sensitivities=[0.1, 0.3, 0.9], prior=scipy.stats.uniform(0, 1))
    >>> contract = plan(market, JSAM(loss_weight=1.0))
    >>> contract.selection_probs.round(3).tolist(), contract.num_selected
    ([0.667, 0.333, 0.0], 2)
    """
    contract = mechanism.plan(market, payments=payments, progress=progress)
    _refuse_what_is_not_finite(contract)
    return contract


def _refuse_what_is_not_finite(contract: Contract) -> None:
    """No contract leaves here that promises ε or a payment that is no finite number."""
    for what, values in (("ε", contract.epsilons), ("a payment", contract.payments)):
        if values is None or (finite := np.isfinite(values)).all():
            continue
        k = int(finite.argmin())
        raise NotFiniteError(
            f"{contract.mechanism} gives client {contract.ids[k]!r} {what} of {values[k]:g}: the numbers get too large"
            " for floating-point, or the prior gives none where they are needed"
        )


class Replanning:
    """`respond` for a mechanism that has only `plan`: one whole plan a report."""

    def respond(
        self: Mechanism, market: Market, client: int, reports: FloatArray, *, payments: bool = True
    ) -> Responses:
        contracts = [self.plan(market.with_report(client, float(z)), payments=payments) for z in reports]
        paid = [contract.payments for contract in contracts]
        return Responses(
            epsilons=np.array([contract.epsilons[client] for contract in contracts]),
            payments=np.array([math.nan if pay is None else pay[client] for pay in paid]),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class RangeMechanism(Weights, ABC):
    """A mechanism that takes the exact best of a range of profiles and pays the Myerson payments for it.

    The range and the weights are fixed before the reports; this alone makes it truthful.
    """

    tolerance: float = TOLERANCE

    # What `Description` says in words.
    label: ClassVar[str] = ""  # the name under which the registry knows the class
    truthful: ClassVar[bool] = True
    optimal: ClassVar[bool] = False
    chooses_probs: ClassVar[bool] = False
    bias_rule: ClassVar[BiasRule] = "total"  # how its loss bound measures the distance from unbiased selection
    knows_sensitivities: ClassVar[bool] = False  # True: it pays just the cost
    spends_budget: ClassVar[bool] = False  # True: it takes `budget`, and no loss weight changes what it does
    efficient: ClassVar[bool] = False  # True: it selects by the cost c itself, so a budget goes by payments
    needs: ClassVar[tuple[Need, ...]] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("tolerance", self.tolerance, lambda x: 1e-12 <= x <= 1e-2, "a number from 1e-12 to 0.01")

    # Two mechanisms with equal weights are two mechanisms.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    @property
    def weights(self) -> Weights:
        """The weights and caps alone."""
        return Weights(**{field.name: getattr(self, field.name) for field in fields(Weights)})

    def weights_for(self, market: Market) -> Weights:
        """The weights and caps as a contract for this market states them."""
        return self.weights

    @property
    def name(self) -> str:
        """By which commands and stored results know it."""
        return self.label or f"{type(self).__module__}:{type(self).__qualname__}"

    @abstractmethod
    def profiles(self, num_clients: int) -> Profiles:
        """The range, for so many clients in the running. It must not depend on the reports."""

    def active(self, market: Market) -> IntArray:
        """The clients in the running; the choice must not depend on the reports."""
        return np.arange(market.num_clients)

    def price(self, cost: VirtualCost) -> VirtualCost:
        """What the server counts a unit of ε at."""
        return cost

    def with_loss_weight(self, loss_weight: float) -> Self:
        """The same mechanism with another η."""
        return replace(self, loss_weight=loss_weight)

    def rule(self, num_clients: int) -> Rule:
        """The range for so many clients in the running, and the weights; a cap on p that it breaks is refused."""
        cap = 1.0 if self.max_selection_prob is None else self.max_selection_prob
        if cap * num_clients < 1 - 1e-12:
            raise InputError(
                f"max_selection_prob is {cap:g}: {num_clients} clients cannot share all draws under it; at least"
                f" 1/{num_clients} = {1 / num_clients:.6g} is needed"
            )
        profiles = self.profiles(num_clients)
        self.check_cap(float(profiles.levels.max(axis=1).min()))
        least, floor = int(self.min_clients or 1), self.min_selection_prob or 0.0
        within = profiles.within(self.max_selection_prob, least, floor)
        if len(within) == 0:
            raise self.nothing_within(num_clients)
        return Rule(profiles=within, weights=self.weights)

    def nothing_within(self, num_clients: int) -> InputError:
        """The refusal where no selection keeps to the caps and floors."""
        names = ("max_selection_prob", "min_clients", "min_selection_prob")
        asked = [f"{name} {value:g}" for name in names if (value := getattr(self, name)) is not None]
        return InputError(f"{self.name} has no selection of {num_clients} clients that keeps {' and '.join(asked)}")

    def check_cap(self, most: float) -> None:
        """Refuse a range in which somebody always has the selection probability `most`, if the cap on p is lower."""
        cap = self.max_selection_prob
        if cap is not None and most > cap * (1 + 1e-12):
            raise InputError(
                f"{self.name} selects a client with probability {Fraction(most).limit_denominator(1_000_000)}, above"
                f" max_selection_prob {cap:g}; raise the cap or select more clients"
            )

    def plan(self, market: Market, *, payments: bool = True, progress: Progress | None = None) -> Contract:
        active, v_all = self.active(market), market.counted(self.price)
        v = v_all[active]
        own = self._answers(market, active, v)
        allocation = own.allocate()
        if math.isinf(v.max()) and not math.isfinite(allocation.objective):
            k = int(active[int(v.argmax())])
            raise ReportError(
                k,
                f"client {market.name_of(k)!r} reports {market.sensitivities[k]:g}, where the prior's density vanishes:"
                f" its virtual cost is infinite, and {self.name} cannot drop it",
            )
        N = market.num_clients
        p, eps = np.zeros(N), np.zeros(N)
        p[active], eps[active] = allocation.selection_probs, allocation.epsilons
        if market.data_shares is not None:
            p = self.probs_by_size(market, p)
        paid = error = None
        if payments:
            paid, error = self._pay(market, active, own, eps, allocation.objective, progress)
        contract = Contract(
            mechanism=self.name,
            truthful=self.truthful,
            names=None if market.ids is None else tuple(market.ids),
            sensitivities=market.sensitivities,
            virtual_costs=v_all,
            selection_probs=p,
            epsilons=eps,
            payments=paid,
            data_shares=market.data_shares,
            bias_rule=self.bias_rule,
            weights=self.weights_for(market),
            ironed=market.ironed,
            runner_up=allocation.runner_up,
            payment_error_bound=error,
        )
        _refuse_what_is_not_finite(contract)
        least = own.least_unrounded()
        return contract if least is None else replace(contract, rounding_bound=max(contract.objective - least, 0.0))

    def _answers(self, market: Market, active: IntArray, v: FloatArray, client: int | None = None) -> Answers:
        """What decides, for these virtual costs of the active clients; `client` is the one who is going to move."""
        if self.counts_sizes(market):
            return self.answers_by_size(market, active, v, client)
        return OwnReport(rule=self.rule(len(active)), base=SortedRows.of(v, tie_order(market, active)))

    def counts_sizes(self, market: Market) -> bool:
        """Whether clients are told apart by how much data they hold."""
        return market.data_shares is not None

    def answers_by_size(self, market: Market, active: IntArray, v: FloatArray, client: int | None) -> Answers:
        """The same for clients that hold different amounts of data."""
        self.check_unequal_data()
        raise NotImplementedError

    def check_unequal_data(self) -> None:
        """Refuse clients with different amounts of data, by `UnequalDataError`, where nothing is known of that."""
        raise UnequalDataError(
            f"{self.name} treats all clients alike, and they have different numbers of samples; leave the samples out"
        )

    def refuse_sizes(self, market: Market) -> None:
        """Do so if the clients of this market hold different amounts of data."""
        if market.data_shares is not None:
            self.check_unequal_data()

    def probs_by_size(self, market: Market, probs: FloatArray) -> FloatArray:
        """Selection probabilities for clients that hold different amounts of data, from those that were allocated."""
        return probs

    def _pay(
        self,
        market: Market,
        active: IntArray,
        own: Answers,
        eps: FloatArray,
        objective: float,
        progress: Progress | None,
    ) -> tuple[FloatArray, float]:
        c = market.sensitivities
        paid, error = c * eps, 0.0
        if self.knows_sensitivities:
            return paid, error
        rank_of = np.full(market.num_clients, -1)
        rank_of[active[own.order]] = np.arange(len(active))
        for cost, members in market.cost_groups:
            kept = members[(rank_of[members] >= 0) & (eps[members] > 0)]
            kept = kept[np.argsort(rank_of[kept])]
            if len(kept) == 0:
                continue
            earned, bounds = rents(
                own, rank_of[kept], c[kept], eps[kept], self.price(cost), objective, self.tolerance, progress
            )
            paid[kept] += earned
            error = max(error, float(bounds.max()))
        return paid, error

    def respond(self, market: Market, client: int, reports: FloatArray, *, payments: bool = True) -> Responses:
        """The client's ε and payment for each report, all others' reports as they are."""
        z = np.asarray(reports, dtype=np.float64)
        active = self.active(market)
        if client not in active:
            return Responses(epsilons=np.zeros(len(z)), payments=np.zeros(len(z)))
        cost = self.price(market.cost_of(client))
        v = market.counted(self.price)[active]
        if self.counts_sizes(market):
            v[active == client] = cost(z).min()  # what can win is narrowed down from the lowest report on
        own = self._answers(market, active, v, client)
        rank = int(np.flatnonzero(active[own.order] == client)[0])
        ranks = np.full(len(z), rank)
        at = own.curve(own.everything(ranks), ranks, cost(z))
        if not payments:
            return Responses(epsilons=at.epsilon, payments=np.full(len(z), math.nan))
        kept = at.epsilon > 0
        paid = z * at.epsilon
        if kept.any() and not self.knows_sensitivities:
            earned, _ = rents(own, ranks[kept], z[kept], at.epsilon[kept], cost, at.objective[kept], self.tolerance)
            paid[kept] += earned
        return Responses(epsilons=at.epsilon, payments=paid)


def tie_order(market: Market, active: IntArray) -> IntArray | None:
    if market.tie_order is None or len(active) == market.num_clients:
        return market.tie_order
    places = np.full(market.num_clients, -1)
    places[active] = np.arange(len(active))
    order = places[market.tie_order]
    return np.asarray(order[order >= 0])
