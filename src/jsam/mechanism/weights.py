"""What the server wants, in a few numbers that are fixed before anybody reports."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from jsam.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Weights:
    """The weights of the objective and the caps on what is agreed, checked by name.

    >>> Weights(loss_weight=5.0, max_epsilon=2.0).noise_weight
    1.0
    """

    loss_weight: float  # η: how much a unit of the loss bound matters against a unit of money
    noise_weight: float = 1.0  # Q: of the privacy noise in the loss bound
    bias_weight: float = 1.0  # ζ: of the selection bias in the loss bound
    max_selection_prob: float | None = None
    max_epsilon: float | None = None
    min_clients: float | None = None  # so many are kept at least, a whole number
    min_selection_prob: float | None = None  # of whoever is kept

    def __post_init__(self) -> None:
        check_number("loss_weight", self.loss_weight, lambda x: x > 0, "a positive number")
        check_number("noise_weight", self.noise_weight, lambda x: x > 0, "a positive number")
        check_number("bias_weight", self.bias_weight, lambda x: 0 <= x <= 1e100, "a number from 0 to 1e100")
        if self.max_selection_prob is not None:
            allowed = "a number above 0, at most 1"
            check_number("max_selection_prob", self.max_selection_prob, lambda x: 0 < x <= 1, allowed)
        if self.max_epsilon is not None:
            check_number("max_epsilon", self.max_epsilon, lambda x: x >= 1e-100, "a number of 1e-100 or more")
        if self.min_clients is not None:
            whole = "a whole number of 1 or more"
            check_number("min_clients", self.min_clients, lambda x: x >= 1 and x.is_integer(), whole)
        if self.min_selection_prob is not None:
            allowed = "a number from 0 to 1"
            check_number("min_selection_prob", self.min_selection_prob, lambda x: 0 <= x <= 1, allowed)


def check_number(name: str, value: Any, good: Callable[[float], bool], allowed: str) -> None:
    """Raise an InputError that names the argument, its value and what is allowed, unless `good` holds for it."""
    if not isinstance(value, int | float | np.number) or not math.isfinite(value) or not good(float(value)):
        raise InputError(f"{name} is {value!r}; it must be {allowed}")
