"""One run, in full: everything that its result depends on, and the key under which that result is stored."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cached_property
from typing import Any

from jsam.errors import InputError
from jsam.mechanism.rules import Rules

PRIOR = "uniform:0,1"

_WHOLE = ("num_clients", "rounds", "per_round", "seed")
_WORDS = ("dataset", "cost_of", "learning_rate_schedule", "noise", "adjacency")
# Settings that the rules hold, by the names under which they are stored; the budget of the rules is stored as cost.
_OF_RULES = {
    "mechanism": "mechanism",
    "cost": "budget",
    "noise_weight": "noise_weight",
    "bias_weight": "bias_weight",
    "max_selection_prob": "max_selection_prob",
    "max_epsilon": "max_epsilon",
    "heterogeneity": "heterogeneity",
}
# In a specification: the learning rate that fits the noise of the contract, and ζ² as the similarity says it.
FITTED, PUBLIC = "fitted", "public"
_SAMPLES = {"mnist": 60_000, "cifar10": 50_000}

_NEEDED_OF_RULES = ("mechanism", "cost", "noise_weight")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Clients draw c from U(0, 1). η is the one at which mechanism `cost_of` expects to pay `cost` over such draws.

    One seed serves all draws (sensitivities, partition, first weights, schedule, noise), each from a stream of its own;
    runs that share a seed share their clients. The seed of `rules` is always 0: it finds η, which no run's seed moves.
    `held_out` trains on all but 5,000 training images and is judged on those. `straggler_epsilon` is the most that the
    most sensitive client will sell. A learning rate of 0 is the one that fits the noise of the contract.
    """

    dataset: str
    similarity: float
    rules: Rules
    cost_of: str = ""
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
            if value is None or field.name in ("held_out", "rules"):
                continue
            kind = str if field.name in _WORDS else int if field.name in _WHOLE else float
            if kind is float and isinstance(value, int):
                value = float(value)  # 10 and 10.0 are one run
            if not isinstance(value, kind):
                raise InputError(f"{field.name} is {value!r}; it must be of type {kind.__name__}")
            object.__setattr__(self, field.name, value)

    @property
    def mechanism(self) -> str:
        return self.rules.mechanism

    @property
    def cost(self) -> float:
        assert self.rules.budget is not None
        return self.rules.budget

    @property
    def noise_weight(self) -> float:
        return self.rules.noise_weight

    @property
    def bias_weight(self) -> float:
        return self.rules.bias_weight

    @property
    def max_epsilon(self) -> float | None:
        return self.rules.max_epsilon

    @property
    def heterogeneity(self) -> str | None:
        return self.rules.heterogeneity

    @property
    def max_selection_prob(self) -> float | None:
        return self.rules.max_selection_prob

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

    def changed(self, **settings: Any) -> RunConfig:
        """The same run but for these settings, which have the names of `as_dict`."""
        return RunConfig.from_dict({**self.as_dict(), **settings})

    def as_dict(self) -> dict[str, Any]:
        """All settings by name, those of the rules among them."""
        return {name: getattr(self, name) for name in _DEFAULTS}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> RunConfig:
        """The configuration that `as_dict` gave, or one written by hand, where what has a default may be left out."""
        unknown = [name for name in stored if name not in _DEFAULTS]
        lacking = [name for name, default in _DEFAULTS.items() if default is MISSING and name not in stored]
        if unknown or lacking:
            wrong = f"there is no setting {', '.join(unknown)}" if unknown else f"it lacks {', '.join(lacking)}"
            raise InputError(f"not the configuration of a run: {wrong}")
        stored = _said_in_words(stored)
        rules = {of_rules: stored[name] for name, of_rules in _OF_RULES.items() if name in stored}
        own = {name: value for name, value in stored.items() if name not in _OF_RULES}
        return cls(rules=Rules(prior=PRIOR, **rules), **own)


def _said_in_words(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with numbers in the place of words."""
    settings = dict(stored)
    if settings.get("learning_rate") == FITTED:
        settings["learning_rate"] = 0.0
    if settings.get("heterogeneity") == PUBLIC:
        samples = _SAMPLES[settings["dataset"]] // settings.get("num_clients", 100)
        settings["heterogeneity"] = f"similarity:{settings['similarity']:g}/{samples}"
    return settings


def _defaults() -> dict[str, Any]:
    """Each stored setting in its order, with its default or MISSING; the rules' settings stand where the rules do."""
    of_rules = {field.name: field.default for field in fields(Rules)}
    defaults: dict[str, Any] = {}
    for field in fields(RunConfig):
        if field.name != "rules":
            defaults[field.name] = field.default
            continue
        for name, setting in _OF_RULES.items():
            defaults[name] = MISSING if name in _NEEDED_OF_RULES else of_rules[setting]
            if name == "cost":
                defaults["cost_of"] = ""  # stored beside the cost
    return defaults


_DEFAULTS = _defaults()
