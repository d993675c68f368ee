"""One run, in full: everything that its result depends on, and the key under which that result is stored."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cached_property
from typing import Any

from jsam.errors import InputError

_WHOLE = ("num_clients", "rounds", "per_round", "seed")
_WORDS = ("dataset", "mechanism", "cost_of", "learning_rate_schedule", "noise", "adjacency")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Clients draw c from U(0, 1). η is the one at which mechanism `cost_of` expects to pay `cost` over such draws.

    One seed serves all draws (sensitivities, partition, first weights, schedule, noise), each from a stream of its own;
    runs that share a seed share their clients. `held_out` trains on all but 5,000 training images and is judged on
    those. `straggler_epsilon` is the most that the most sensitive client will sell.
    """

    dataset: str
    similarity: float
    mechanism: str
    cost: float
    cost_of: str = ""
    noise_weight: float
    bias_weight: float = 1.0
    max_selection_prob: float | None = None
    noise: str
    c2: float | None = None
    clip_norm: float
    learning_rate: float
    learning_rate_schedule: str = "constant"
    momentum: float = 0.0
    num_clients: int = 100
    rounds: int = 1000
    per_round: int = 10
    delta: float = 1e-5
    adjacency: str = "add-remove"
    held_out: bool = False
    straggler_epsilon: float | None = None
    seed: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "cost_of", self.cost_of or self.mechanism)
        if self.noise == "exact":
            object.__setattr__(self, "c2", None)
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None or field.name == "held_out":
                continue
            kind = str if field.name in _WORDS else int if field.name in _WHOLE else float
            if kind is float and isinstance(value, int):
                value = float(value)  # 10 and 10.0 are one run
            if not isinstance(value, kind):
                raise InputError(f"{field.name} is {value!r}; it must be of type {kind.__name__}")
            object.__setattr__(self, field.name, value)

    @cached_property
    def key(self) -> str:
        """A hash of the full configuration; the same on every machine."""
        # What is not set does not count, so that a setting added later leaves the keys of earlier runs as they are.
        given = {name: value for name, value in self.as_dict().items() if value is not None}
        text = json.dumps(given, sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()

    @property
    def name(self) -> str:
        """For people, and for choosing runs by a pattern; not unique."""
        held = "/held-out" if self.held_out else ""
        return f"{self.dataset}/s{self.similarity:g}/{self.mechanism}/cost{self.cost:g}/seed{self.seed}{held}"

    def as_dict(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> RunConfig:
        try:
            return cls(**stored)
        except TypeError:
            names = {field.name: field.default is MISSING for field in fields(cls)}
            unknown = [name for name in stored if name not in names]
            lacking = [name for name, needed in names.items() if needed and name not in stored]
            wrong = f"there is no setting {', '.join(unknown)}" if unknown else f"it lacks {', '.join(lacking)}"
            raise InputError(f"not the configuration of a run: {wrong}") from None
