"""A user's mechanism that only plans and responds, where commands expect one that also has weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jsam.errors import InputError
from jsam.mechanism._arrays import FloatArray
from jsam.mechanism.contract import Contract
from jsam.mechanism.families.base import Mechanism, RangeMechanism, Responses
from jsam.mechanism.market import Market
from jsam.mechanism.solver.payments import Progress
from jsam.mechanism.solver.profiles import Profiles


@dataclass(frozen=True, kw_only=True, eq=False)
class OwnMechanism(RangeMechanism):
    """The mechanism that `make` gives for a loss weight; a budget needs a range, which it does not state."""

    make: Callable[[Mapping[str, Any]], Mechanism]

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "truthful", self._planner.truthful)
        object.__setattr__(self, "spends_budget", getattr(self._planner, "spends_budget", False))

    @cached_property
    def _planner(self) -> Mechanism:
        return self.make({"loss_weight": self.loss_weight})

    @property
    def name(self) -> str:
        return self._planner.name

    def profiles(self, num_clients: int) -> Profiles:
        raise InputError(
            f"{self.name} states no range of selection probabilities, so no loss weight can be found for a budget; give"
            " a loss weight"
        )

    def plan(self, market: Market, *, payments: bool = True, progress: Progress | None = None) -> Contract:
        return self._planner.plan(market, payments=payments, progress=progress)

    def respond(self, market: Market, client: int, reports: FloatArray, *, payments: bool = True) -> Responses:
        return self._planner.respond(market, client, reports, payments=payments)
