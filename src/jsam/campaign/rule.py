"""The published rule as a mechanism: its options put together in one place, for who plans and who checks."""

from __future__ import annotations

from typing import Any, Protocol

from jsam.mechanism.families.base import RangeMechanism
from jsam.mechanism.registry import mechanism_named


class Rules(Protocol):
    """What the public inputs of terms and what was published have in common."""

    @property
    def mechanism(self) -> str: ...
    @property
    def noise_weight(self) -> float: ...
    @property
    def bias_weight(self) -> float: ...
    @property
    def max_selection_prob(self) -> float | None: ...
    @property
    def max_epsilon(self) -> float | None: ...


def published_rule(rules: Rules, loss_weight: float) -> RangeMechanism:
    """Raises InputError for a name or options that no mechanism has."""
    options: dict[str, Any] = {
        "loss_weight": loss_weight,
        "noise_weight": rules.noise_weight,
        "bias_weight": rules.bias_weight,
        "max_selection_prob": rules.max_selection_prob,
        "max_epsilon": rules.max_epsilon,
    }
    return mechanism_named(rules.mechanism, **options)
