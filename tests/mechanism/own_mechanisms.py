"""A user's own mechanisms, as `import_mechanism` finds them, and things that are none."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

import jsam
from jsam.mechanism.families import RangeMechanism
from jsam.mechanism.families.base import Replanning
from jsam.mechanism.solver.payments import Progress
from jsam.mechanism.solver.profiles import Profiles, equal_probabilities


@dataclass(frozen=True, kw_only=True, eq=False)
class EqualShares(RangeMechanism):
    """Every client at 1/N."""

    def profiles(self, num_clients: int) -> Profiles:
        return equal_probabilities(num_clients, num_clients)


@dataclass(frozen=True, kw_only=True)
class Careful(Replanning):
    """JSAM with half of the ε from everybody."""

    loss_weight: float
    noise_weight: float = 1.0
    name: str = "careful"
    truthful: bool = True

    def plan(self, market: jsam.Market, *, payments: bool = True, progress: Progress | None = None) -> jsam.Contract:
        half = jsam.JSAM(loss_weight=0.5 * self.loss_weight, noise_weight=0.25 * self.noise_weight)
        return half.plan(market, payments=payments, progress=progress)


@dataclass(frozen=True, kw_only=True)
class EqualSplit(Replanning):
    """Everybody sells ε = 1 for the same share of the budget."""

    budget: float
    name: str = "equal-split"
    truthful: bool = True
    spends_budget: ClassVar[bool] = True

    def plan(self, market: jsam.Market, *, payments: bool = True, progress: Progress | None = None) -> jsam.Contract:
        usbm = jsam.USBM(loss_weight=1.0, max_epsilon=1.0).plan(market, payments=payments)
        N = market.num_clients
        return replace(usbm, epsilons=np.ones(N), payments=np.full(N, self.budget / N), budget=self.budget)


class Nameless(Replanning):
    """It has no name."""

    truthful = True

    def __init__(self, loss_weight: float) -> None: ...

    def plan(self, market: jsam.Market) -> None: ...


class PlansOnly:
    """It cannot respond."""

    def plan(self, market: jsam.Market) -> None: ...


class Unfinished(RangeMechanism):
    """It states no range."""


NO_CLASS = 3
