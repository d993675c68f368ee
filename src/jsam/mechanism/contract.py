"""What is agreed: who is selected how often, how much privacy each client sells, and what it is paid."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from jsam.mechanism._arrays import FloatArray
from jsam.mechanism.bound import BiasRule, loss_bound
from jsam.mechanism.weights import Weights

LATER = ("min_clients", "min_selection_prob")  # left out of files where they are not given, as in earlier versions


@dataclass(frozen=True, kw_only=True)
class RunnerUp:
    """The best alternative that keeps another number of clients: evidence of how clear the choice was."""

    num_selected: int
    objective: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Contract:
    """A plan for one market, clients in the order in which they were given. Nothing in it changes afterwards."""

    mechanism: str
    truthful: bool  # whether the mechanism claims that lying never pays
    names: tuple[str, ...] | None  # None: clients go by their position
    sensitivities: FloatArray
    virtual_costs: FloatArray  # what the server counts a unit of ε at: v, or c under complete information
    selection_probs: FloatArray
    epsilons: FloatArray
    payments: FloatArray | None
    update_weights: FloatArray | None = None  # importance weights u/p on the updates; None: all 1
    data_shares: FloatArray | None = None  # None: all hold equally much
    bias_rule: BiasRule = "total"  # how its loss bound measures the distance from unbiased selection
    weights: Weights
    budget: float | None = None
    ironed: bool = False
    runner_up: RunnerUp | None = None
    payment_error_bound: float | None = None
    rounding_bound: float | None = None  # the objective is that far from its least at most, as sizes were rounded

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray):
                view = value.view()
                view.flags.writeable = False
                object.__setattr__(self, field.name, view)

    @property
    def loss_weight(self) -> float:
        return self.weights.loss_weight

    @property
    def noise_weight(self) -> float:
        return self.weights.noise_weight

    @property
    def bias_weight(self) -> float:
        return self.weights.bias_weight

    @property
    def max_selection_prob(self) -> float | None:
        return self.weights.max_selection_prob

    @property
    def max_epsilon(self) -> float | None:
        return self.weights.max_epsilon

    @property
    def num_clients(self) -> int:
        return len(self.sensitivities)

    @cached_property
    def ids(self) -> tuple[str, ...]:
        return tuple(map(str, range(self.num_clients))) if self.names is None else self.names

    @cached_property
    def num_selected(self) -> int:
        return int((self.selection_probs > 0).sum())

    @cached_property
    def loss_bound(self) -> float:
        """d + sqrt(d² + Q Σ p²/ε²), whatever the mechanism itself minimised."""
        return self.loss_bound_by(self.bias_rule)

    def loss_bound_by(self, rule: BiasRule) -> float:
        """The loss bound with d by this rule, so that contracts of several mechanisms can be compared."""
        p = self.selection_probs
        effective = p if self.update_weights is None else p * self.update_weights
        return loss_bound(
            effective,
            self.epsilons,
            noise_weight=self.noise_weight,
            bias_weight=self.bias_weight,
            data_shares=self.data_shares,
            bias_rule=rule,
        )

    @cached_property
    def expected_cost(self) -> float:
        """B = Σ v ε: what the server expects to pay before it knows the reports (Σ c ε under complete information)."""
        # A virtual cost may be infinite where nothing is bought.
        bought = self.epsilons > 0
        return float(self.virtual_costs[bought] @ self.epsilons[bought])

    @cached_property
    def objective(self) -> float:
        """η · loss bound + expected cost: one yardstick for all mechanisms."""
        return self.loss_weight * self.loss_bound + self.expected_cost

    @property
    def total_payment(self) -> float | None:
        """Σ π, what is due for these reports; None if payments were left out."""
        return None if self.payments is None else float(self.payments.sum())

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers and strings, ready for JSON."""
        result: dict[str, Any] = {
            "mechanism": self.mechanism,
            "num_clients": self.num_clients,
            "num_selected": self.num_selected,
            **{name: value for name, value in asdict(self.weights).items() if value is not None or name not in LATER},
            "budget": self.budget,
            "ironed": self.ironed,
            "truthful": self.truthful,
            "objective": self.objective,
            "loss_bound": self.loss_bound,
            "expected_cost": self.expected_cost,
            "total_payment": self.total_payment,
            "payment_error_bound": self.payment_error_bound,
            "runner_up": None if self.runner_up is None else asdict(self.runner_up),
        }
        if self.rounding_bound is not None:
            result["rounding_bound"] = self.rounding_bound
        if self.bias_rule != "total":
            result["bias_rule"] = self.bias_rule
        columns: dict[str, list[Any]] = {
            "id": list(self.ids),
            "sensitivity": self.sensitivities.tolist(),
            "virtual_cost": self.virtual_costs.tolist(),
            "selection_prob": self.selection_probs.tolist(),
            "epsilon": self.epsilons.tolist(),
            "payment": [None] * self.num_clients if self.payments is None else self.payments.tolist(),
        }
        if self.data_shares is not None:
            columns["data_share"] = self.data_shares.tolist()
        if self.update_weights is not None:
            columns["update_weight"] = np.asarray(self.update_weights).tolist()
        result["clients"] = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        return result
