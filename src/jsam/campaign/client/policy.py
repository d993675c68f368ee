"""What a client will sell at all, whatever it is offered: a small TOML file on its own machine.

    max_epsilon = 10.0              # the most ε that one campaign may buy
    max_delta = 1e-5                # the largest δ of one campaign; always below 1 ÷ number of records
    max_draws = 100000              # the most draws of one campaign
    min_payment_per_epsilon = 0.1   # payment ÷ ε, at the least; always at least the own sensitivity
    total_epsilon = 20.0            # ε of all campaigns together
    total_delta = 1e-5              # the δ at which that ε is taken
    max_campaigns = 100             # the most that it hears of; each is two looks at these limits, and a folder
    max_stored_bytes = 10000000000  # the most bytes of stored replies
    adjacency = ["replace"]         # which guarantees are good enough
    complete_information = false    # report also under rules that pay the reported cost and invite to lie (jsam-ci)
    check_loss_weight = false       # take η(N) of a budget on trust instead of computing it
    reply_seconds = 2.0             # replies leave at multiples of so many seconds; 0: at once; left out: as measured

A policy is always in force: what is left out has the value of `Policy()`, and a client that wants a wider limit writes
it down. Campaigns compose exactly (`jsam.campaign.statement.Total`): their ε together, at `total_delta`, must not
exceed `total_epsilon`. Left out, `total_delta` is 1e-5, or a tenth of 1 ÷ number of records where that is less.
Together they are private for `replace` if the policy allows nothing else, else for `add-remove`, which `replace`
implies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from jsam.campaign.checked import number, whole_number
from jsam.campaign.statement import NOTHING, Total, total
from jsam.campaign.terms import Terms
from jsam.errors import InputError
from jsam.files import read_toml
from jsam.mechanism.registry import find_description
from jsam.privacy import Adjacency

# A product of two floats agrees to this (relative), whatever the machine.
ROUNDING = 1e-12
# Where no total δ is given; a tenth of 1 ÷ records where that is less.
_USUAL_DELTA = 1e-5


def claims_truth(mechanism: str) -> bool:
    """Whether a mechanism is known here and claims that no client gains by misreporting. JSAM-CI does not claim it: it
    pays each client the cost that it reported."""
    description = find_description(mechanism)
    return description is not None and description.truthful


@dataclass(frozen=True)
class Objection:
    """A reason to decline: the code may be sent, the text has the policy's own numbers in it and stays here."""

    code: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Always in force. The head of this module says what each limit means, and what holds where one is None."""

    max_epsilon: float = 10.0
    max_delta: float | None = None
    max_draws: int = 100_000
    min_payment_per_epsilon: float | None = None
    total_epsilon: float = 20.0
    total_delta: float | None = None
    max_campaigns: int = 100
    max_stored_bytes: int = 10_000_000_000
    complete_information: bool = False
    check_loss_weight: bool = True
    reply_seconds: float | None = None
    adjacency: tuple[str, ...] = tuple(kind.value for kind in Adjacency)

    def __post_init__(self) -> None:
        for name in ("max_delta", "min_payment_per_epsilon", "total_delta", "reply_seconds"):
            if getattr(self, name) is not None:
                number(name, getattr(self, name))
        for name in ("max_epsilon", "total_epsilon"):
            number(name, getattr(self, name))
        if self.total_delta is not None and not 0 < self.total_delta < 1:
            raise InputError(f"total_delta is {self.total_delta:g}; it must lie strictly between 0 and 1")
        for name in ("max_draws", "max_campaigns", "max_stored_bytes"):
            whole_number(name, getattr(self, name), 0)
        for name in ("complete_information", "check_loss_weight"):
            switch: object = getattr(self, name)
            if not isinstance(switch, bool):
                raise InputError(f"{name} is {switch!r}; it must be true or false")
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
        stored = read_toml(path, "policy")
        try:
            return cls.from_dict(stored)
        except InputError as error:
            raise InputError(f"policy {path}: {error}") from error

    def judge(self, terms: Terms, others: Total = NOTHING) -> tuple[Objection, ...]:
        """The reasons to decline; none means yes. `others` is what all other campaigns take."""
        return tuple(self._objections(terms, others))

    def _objections(self, terms: Terms, others: Total) -> Iterator[Objection]:
        yield from self.judge_rules(terms.public.rules.mechanism, terms.delta, terms.adjacency, terms.samples)
        if terms.epsilon > self.max_epsilon:
            yield Objection("epsilon-too-large", f"ε is {terms.epsilon:.6g}, above max_epsilon {self.max_epsilon:g}")
        if terms.participations > self.max_draws:
            yield Objection("too-many-draws", f"{terms.participations} draws are above max_draws {self.max_draws}")
        least = None if self.min_payment_per_epsilon is None else self.min_payment_per_epsilon * terms.epsilon
        if least is not None and terms.payment < least * (1 - ROUNDING):
            text = f"payment is {terms.payment:.6g}, below min_payment_per_epsilon × ε = {least:.6g}"
            yield Objection("payment-too-small", text)
        together = total([others, Total.of_terms(terms)])
        if not self.allows(together):
            yield Objection(
                "total-epsilon-exceeded",
                f"with other campaigns ε is {self.epsilon_of(together):.6g} at δ = {self.delta_of(together):g}, above "
                f"total_epsilon {self.total_epsilon:g}",
            )

    def judge_rules(
        self, mechanism: str, delta: float, adjacency: str, samples: int | None = None
    ) -> Iterator[Objection]:
        """The reasons to decline whatever is offered under such rules, known before anything is reported."""
        if self.max_delta is not None and delta > self.max_delta:
            yield Objection("delta-too-large", f"δ is {delta:g}, above max_delta {self.max_delta:g}")
        elif samples is not None and delta >= 1 / samples:
            yield Objection("delta-too-large", f"δ is {delta:g}, not below 1 ÷ records = {1 / samples:.3g}")
        if adjacency not in self.adjacency:
            text = f"adjacency is {adjacency}, not one of: {', '.join(self.adjacency)}"
            yield Objection("adjacency-not-allowed", text)
        if not (self.complete_information or claims_truth(mechanism)):
            text = f"{mechanism} does not claim that reporting the truth is best (complete_information)"
            yield Objection("mechanism-not-truthful", text)

    @property
    def total_adjacency(self) -> str:
        """What kind of guarantee the total is: `replace` where the client sells nothing weaker."""
        weaker = Adjacency.ADD_REMOVE.value in self.adjacency
        return (Adjacency.ADD_REMOVE if weaker else Adjacency.REPLACE).value

    def delta_of(self, together: Total) -> float:
        """The δ at which all campaigns together are judged; where nothing is said, well below 1 ÷ records."""
        return min(_USUAL_DELTA, 0.1 / together.samples) if self.total_delta is None else self.total_delta

    def epsilon_of(self, together: Total) -> float:
        """ε of all campaigns together, at that δ, by exact composition."""
        return together.epsilon(self.delta_of(together), self.total_adjacency)

    def allows(self, together: Total) -> bool:
        """Whether so much over all campaigns is within the total. There is no tolerance: ε is rounded up already."""
        return self.epsilon_of(together) <= self.total_epsilon
