"""Mechanisms that claim truthfulness and break it, or some other promise, each in one way: food for the audit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np

import jsam
from jsam.mechanism._arrays import FloatArray
from jsam.mechanism.families import RangeMechanism, Responses
from jsam.mechanism.families.base import Replanning
from tests.oracles import best_epsilons

Progress = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class Spoiled(Replanning):
    """An honest mechanism whose contracts are changed afterwards; `respond` follows by planning again."""

    honest: RangeMechanism
    truthful: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return type(self).__name__

    def plan(self, market: jsam.Market, *, payments: bool = True, progress: Progress | None = None) -> jsam.Contract:
        return self.spoil(market, self.honest.plan(market, payments=payments, progress=progress))

    def spoil(self, market: jsam.Market, contract: jsam.Contract) -> jsam.Contract:
        raise NotImplementedError


class PayAsBid(Spoiled):
    """Pays every client exactly the cost that it reports, so that everybody exaggerates."""

    def spoil(self, market: jsam.Market, contract: jsam.Contract) -> jsam.Contract:
        return replace(contract, payments=market.sensitivities * contract.epsilons)


@dataclass(frozen=True, kw_only=True)
class Underpays(Spoiled):
    """Keeps a part of the rent that truthfulness costs: nobody loses, but the truth is no longer best."""

    share: float = 0.9

    def spoil(self, market: jsam.Market, contract: jsam.Contract) -> jsam.Contract:
        if contract.payments is None:
            return contract
        cost = market.sensitivities * contract.epsilons
        return replace(contract, payments=cost + self.share * (contract.payments - cost))


class PaysUnderCost(Spoiled):
    """Pays a hundredth less than what taking part costs."""

    def spoil(self, market: jsam.Market, contract: jsam.Contract) -> jsam.Contract:
        return replace(contract, payments=0.99 * market.sensitivities * contract.epsilons)


class BuysMoreFromTheDearer(Spoiled):
    """Doubles ε for reports between 0.5 and 0.6: it rises where the report does."""

    def spoil(self, market: jsam.Market, contract: jsam.Contract) -> jsam.Contract:
        c = market.sensitivities
        eps = contract.epsilons * np.where((c > 0.5) & (c < 0.6), 2.0, 1.0)
        rent = 0.0 if contract.payments is None else contract.payments - c * contract.epsilons
        return replace(contract, epsilons=eps, payments=None if contract.payments is None else c * eps + rent)


class NotANumber(Spoiled):
    """Has no answer for whoever reports more than 0.7."""

    def spoil(self, market: jsam.Market, contract: jsam.Contract) -> jsam.Contract:
        return replace(contract, epsilons=np.where(market.sensitivities > 0.7, np.nan, contract.epsilons))


class AlmostBest(Spoiled):
    """Keeps as many clients as it can within 5% of the best objective: an approximate minimiser, which is no range."""

    def spoil(self, market: jsam.Market, contract: jsam.Contract) -> jsam.Contract:
        N, v = market.num_clients, contract.virtual_costs
        order = np.argsort(v, kind="stable")
        for h in range(N, 0, -1):
            p = np.zeros(N)
            p[order[:h]] = 1 / N
            p[order[0]] += 1 - p.sum()
            value, eps = best_epsilons(
                p, v, eta=contract.loss_weight, Q=contract.noise_weight, zeta=contract.bias_weight
            )
            if value <= 1.05 * contract.objective:
                break
        if contract.payments is None:
            return replace(contract, selection_probs=p, epsilons=eps)
        rent = np.where(eps > 0, contract.payments - market.sensitivities * contract.epsilons, 0.0)
        return replace(contract, selection_probs=p, epsilons=eps, payments=market.sensitivities * eps + rent)


class PaysTheDropped(Spoiled):
    """Gives whoever is not selected something for its trouble."""

    def spoil(self, market: jsam.Market, contract: jsam.Contract) -> jsam.Contract:
        if contract.payments is None:
            return contract
        return replace(contract, payments=np.where(contract.epsilons > 0, contract.payments, 0.01))


class ForgetsSomebody(Spoiled):
    """Hands out too little probability."""

    def spoil(self, market: jsam.Market, contract: jsam.Contract) -> jsam.Contract:
        return replace(contract, selection_probs=0.9 * contract.selection_probs)


class IgnoresTheCaps(Spoiled):
    """States caps that it does not keep."""

    def spoil(self, market: jsam.Market, contract: jsam.Contract) -> jsam.Contract:
        return replace(contract, weights=replace(contract.weights, max_selection_prob=0.3, max_epsilon=0.1))


class PricesWithoutRent(Spoiled):
    """States the sensitivities as virtual costs, which makes its expected cost too low."""

    def spoil(self, market: jsam.Market, contract: jsam.Contract) -> jsam.Contract:
        return replace(contract, virtual_costs=market.sensitivities)


class Boastful(jsam.Contract):
    """A contract that states an objective 1% below its own."""

    @cached_property
    def objective(self) -> float:
        return 0.99 * (self.loss_weight * self.loss_bound + self.expected_cost)


class StatesAWrongObjective(Spoiled):
    def spoil(self, market: jsam.Market, contract: jsam.Contract) -> jsam.Contract:
        fields = {name: getattr(contract, name) for name in contract.__dataclass_fields__}
        return Boastful(**fields)


class HidesItsLies(PayAsBid):
    """Pays as bid, but tells whoever asks what it would get for another report that lying brings nothing."""

    def respond(self, market: jsam.Market, client: int, reports: FloatArray, *, payments: bool = True) -> Responses:
        told = self.honest.respond(market, client, reports, payments=payments)
        return Responses(epsilons=told.epsilons, payments=market.sensitivities[client] * told.epsilons)


@dataclass(frozen=True, kw_only=True)
class BudgetFittedToReports(Replanning):
    """JSAM with the loss weight chosen after the reports, so that the expected cost just meets a budget.

    It looks reasonable and pays the right payments for the weight that it ends up with. But a client's report now moves
    the weight too: its ε can rise with its own report, and no payment can make that truthful. This is why jsam sets
    the weight from the prior alone (docs/theory.md, "Why η is not fitted to the reports").
    """

    budget: float
    truthful: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return type(self).__name__

    def fitted(self, market: jsam.Market) -> jsam.JSAM:
        low, high = -12.0, 12.0
        for _ in range(30):
            middle = (low + high) / 2
            cost = jsam.JSAM(loss_weight=float(np.exp(middle))).plan(market, payments=False).expected_cost
            low, high = (middle, high) if cost <= self.budget else (low, middle)
        return jsam.JSAM(loss_weight=float(np.exp(low)))

    def plan(self, market: jsam.Market, *, payments: bool = True, progress: Progress | None = None) -> jsam.Contract:
        return self.fitted(market).plan(market, payments=payments, progress=progress)


@dataclass(frozen=True, kw_only=True)
class BuysMoreInAGap(Spoiled):
    """Buys half as much again from reports in a stretch of width 1e-3, and pays the cost of it."""

    start: float = 0.6137

    def changed(self, reports: FloatArray, eps: FloatArray, paid: FloatArray) -> tuple[FloatArray, FloatArray]:
        more = np.where((reports > self.start) & (reports < self.start + 1e-3), 0.5 * eps, 0.0)
        return eps + more, paid + reports * more

    def spoil(self, market: jsam.Market, contract: jsam.Contract) -> jsam.Contract:
        paid = np.zeros(market.num_clients) if contract.payments is None else contract.payments
        eps, paid = self.changed(market.sensitivities, contract.epsilons, paid)
        return replace(contract, epsilons=eps, payments=None if contract.payments is None else paid)

    def respond(self, market: jsam.Market, client: int, reports: FloatArray, *, payments: bool = True) -> Responses:
        honest = self.honest.respond(market, client, reports, payments=payments)
        eps, paid = self.changed(np.asarray(reports), honest.epsilons, honest.payments)
        return Responses(epsilons=eps, payments=paid)


@dataclass(frozen=True, kw_only=True)
class FavoursOneRank(Spoiled):
    """Pays a hundredth more to whoever stands at one place in the order of reports."""

    rank: int = 137

    def spoil(self, market: jsam.Market, contract: jsam.Contract) -> jsam.Contract:
        if contract.payments is None:
            return contract
        paid = contract.payments.copy()
        paid[np.argsort(market.sensitivities)[self.rank]] *= 1.01
        return replace(contract, payments=paid)


@dataclass(frozen=True, kw_only=True)
class BuysMoreAtOneRank(Spoiled):
    """Buys a hundredth more ε from whoever stands at one place in the order of reports, and pays the cost of it."""

    rank: int = 137

    def spoil(self, market: jsam.Market, contract: jsam.Contract) -> jsam.Contract:
        k = int(np.argsort(market.sensitivities)[self.rank])
        eps = contract.epsilons.copy()
        eps[k] *= 1.01
        if contract.payments is None:
            return replace(contract, epsilons=eps)
        paid = contract.payments.copy()
        paid[k] += market.sensitivities[k] * 0.01 * contract.epsilons[k]
        return replace(contract, epsilons=eps, payments=paid)


class PaysTheFarTail(Spoiled):
    """Pays a thousand times as much for reports that only one client in ten million would honestly make."""

    def changed(self, market: jsam.Market, reports: FloatArray, paid: FloatArray) -> FloatArray:
        far = market.prior.isf(1e-7)  # type: ignore[union-attr]
        return np.where(reports > far, 1000.0 * paid, paid)

    def spoil(self, market: jsam.Market, contract: jsam.Contract) -> jsam.Contract:
        if contract.payments is None:
            return contract
        return replace(contract, payments=self.changed(market, market.sensitivities, contract.payments))

    def respond(self, market: jsam.Market, client: int, reports: FloatArray, *, payments: bool = True) -> Responses:
        told = self.honest.respond(market, client, reports, payments=payments)
        return Responses(epsilons=told.epsilons, payments=self.changed(market, np.asarray(reports), told.payments))


class LikesRoundNumbers(Spoiled):
    """Plans pay a tenth more for reports with one decimal; `respond` knows nothing of it."""

    def spoil(self, market: jsam.Market, contract: jsam.Contract) -> jsam.Contract:
        if contract.payments is None:
            return contract
        c = market.sensitivities
        return replace(contract, payments=np.where(np.round(c, 1) == c, 1.1, 1.0) * contract.payments)

    def respond(self, market: jsam.Market, client: int, reports: FloatArray, *, payments: bool = True) -> Responses:
        return self.honest.respond(market, client, reports, payments=payments)


class CallsItselfJsam(Spoiled):
    """Another mechanism's contracts under the name of the one that claims the least objective."""

    @property
    def name(self) -> str:
        return "jsam"

    def spoil(self, market: jsam.Market, contract: jsam.Contract) -> jsam.Contract:
        return replace(contract, mechanism="jsam")

    def respond(self, market: jsam.Market, client: int, reports: FloatArray, *, payments: bool = True) -> Responses:
        return self.honest.respond(market, client, reports, payments=payments)


@dataclass(frozen=True, kw_only=True)
class StatesAFalseBudget(Spoiled):
    """States a budget that its contracts cost twice as much as on average."""

    budget: float

    def spoil(self, market: jsam.Market, contract: jsam.Contract) -> jsam.Contract:
        return replace(contract, budget=self.budget)


class StatesAFalseError(Spoiled):
    """Pays half a millionth too little and says that its payments are exact."""

    def spoil(self, market: jsam.Market, contract: jsam.Contract) -> jsam.Contract:
        if contract.payments is None:
            return contract
        return replace(contract, payments=contract.payments * (1 - 5e-7), payment_error_bound=0.0)
