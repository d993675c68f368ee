"""What a client will sell at all, whatever it is offered: a small TOML file on its own machine.

    max_epsilon = 2.0               # no campaign may buy more ε
    max_delta = 1e-5                # nor promise it with a larger δ
    min_payment_per_epsilon = 0.1   # payment ÷ ε, at the least
    total_epsilon = 5.0             # over all campaigns together
    total_delta = 1e-4              # likewise; left out, it is 1 ÷ number of records
    max_campaigns = 100             # that it hears of at all; each is two looks at these limits, and a folder
    adjacency = ["replace"]         # which guarantees are good enough
    check_loss_weight = false       # take η(N) of a budget on trust instead of computing it
    reply_seconds = 2.0             # replies leave at multiples of so many seconds; 0: at once; left out: as measured

All are optional. Campaigns add up by basic composition: together they are (Σ ε, Σ δ)-private, whatever order or overlap
they had. A sum over both adjacencies is a guarantee for add-remove, which the stronger one implies. From Σ δ = 1/M on,
publishing one of the M records, picked at random, would count as private; so that is the limit where none is given.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from jsam.errors import InputError
from jsam.flower.statement import NOTHING, Total
from jsam.flower.terms import Terms
from jsam.privacy import Adjacency

# Sums of a few dozen ε agree to this (relative) however they are added up.
ROUNDING = 1e-12


@dataclass(frozen=True, kw_only=True)
class Objection:
    """A reason to decline: the code may be sent, the text has the policy's own numbers in it and stays here."""

    code: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Policy:
    """None allows anything, but for `total_delta`. See the module's head for the meaning of each."""

    max_epsilon: float | None = None
    max_delta: float | None = None
    min_payment_per_epsilon: float | None = None
    total_epsilon: float | None = None
    total_delta: float | None = None
    max_campaigns: int = 100
    check_loss_weight: bool = True
    reply_seconds: float | None = None
    adjacency: tuple[str, ...] = tuple(kind.value for kind in Adjacency)

    def __post_init__(self) -> None:
        for name in (
            "max_epsilon",
            "max_delta",
            "min_payment_per_epsilon",
            "total_epsilon",
            "total_delta",
            "reply_seconds",
        ):
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
                raise InputError(f"{name} is {value!r}; it must be a finite number of at least 0")
        number: object = self.max_campaigns
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise InputError(f"max_campaigns is {number!r}; it must be a whole number of at least 0")
        switch: object = self.check_loss_weight
        if not isinstance(switch, bool):
            raise InputError(f"check_loss_weight is {switch!r}; it must be true or false")
        kinds: Any = self.adjacency  # from a file it may be anything
        kinds = (kinds,) if isinstance(kinds, str) else kinds
        if not isinstance(kinds, list | tuple) or not kinds:
            raise InputError(f"adjacency is {kinds!r}; it must name one or more of: {', '.join(Adjacency)}")
        object.__setattr__(self, "adjacency", tuple(Adjacency.of(kind).value for kind in kinds))

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Policy:
        known = [field.name for field in fields(cls)]
        unknown = sorted(stored.keys() - set(known))
        if unknown:
            # A misspelt limit would otherwise be no limit.
            raise InputError(f"unknown {unknown[0]!r}; allowed: {', '.join(known)}")
        return cls(**stored)

    @classmethod
    def load(cls, path: Path | str) -> Policy:
        try:
            stored = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(f"policy {path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise InputError(f"policy {path} is not TOML: {error}") from error
        try:
            return cls.from_dict(stored)
        except InputError as error:
            raise InputError(f"policy {path}: {error}") from error

    def judge(self, terms: Terms, others: Total = NOTHING) -> tuple[Objection, ...]:
        """The reasons to decline; none means yes. `others` is what all other campaigns take."""
        objections = []
        if self.max_epsilon is not None and terms.epsilon > self.max_epsilon:
            text = f"ε is {terms.epsilon:.6g}, above max_epsilon {self.max_epsilon:g}"
            objections.append(Objection(code="epsilon-too-large", text=text))
        if self.max_delta is not None and terms.delta > self.max_delta:
            text = f"δ is {terms.delta:g}, above max_delta {self.max_delta:g}"
            objections.append(Objection(code="delta-too-large", text=text))
        least = None if self.min_payment_per_epsilon is None else self.min_payment_per_epsilon * terms.epsilon
        if least is not None and terms.payment < least * (1 - ROUNDING):
            text = f"payment is {terms.payment:.6g}, below min_payment_per_epsilon × ε = {least:.6g}"
            objections.append(Objection(code="payment-too-small", text=text))
        if terms.adjacency not in self.adjacency:
            text = f"adjacency is {terms.adjacency}, not one of: {', '.join(self.adjacency)}"
            objections.append(Objection(code="adjacency-not-allowed", text=text))
        if not self.allows_epsilon(others.epsilon + terms.epsilon_at_stake):
            text = (
                f"ε {terms.epsilon_at_stake:.6g} on top of {others.epsilon:.6g} for other campaigns is above "
                f"total_epsilon {self.total_epsilon:g}"
            )
            objections.append(Objection(code="total-epsilon-exceeded", text=text))
        if not self.allows_delta(others.delta + terms.delta_at_stake, terms.samples):
            limit = f"not below 1 ÷ records = {1 / terms.samples:.3g} (no total_delta is given)"
            if self.total_delta is not None:
                limit = f"above total_delta {self.total_delta:g}"
            text = f"δ {terms.delta_at_stake:g} on top of {others.delta:g} for other campaigns is {limit}"
            objections.append(Objection(code="total-delta-exceeded", text=text))
        return tuple(objections)

    def allows_epsilon(self, total: float) -> bool:
        """Whether so much ε over all campaigns (basic composition: their sum) is within the total."""
        return self.total_epsilon is None or total <= self.total_epsilon * (1 + ROUNDING)

    def allows_delta(self, total: float, samples: int) -> bool:
        """Whether so much δ over all campaigns is within the total, which is 1 ÷ samples where none is given."""
        return total < 1 / samples if self.total_delta is None else total <= self.total_delta * (1 + ROUNDING)
