"""How to train, apart from what and for whom: rounds, step, clipping and the privacy rule."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from jsam.errors import InputError
from jsam.privacy import Adjacency, NoiseRule, noise_rule
from jsam.privacy.gaussian import checked_delta

PRECISIONS = ("fp32", "tf32", "bf16")
LEARNING_RATE_SCHEDULES = ("constant", "cosine", "step", "inverse-sqrt")
_STEPS, _STEP_FACTOR = (0.5, 0.75), 0.1

SECRET_NOISE = "the noise follows from a secret key"
CLIENTS_NOISE = "the noise is each client's own"
NOT_PRIVATE = "not private: the noise follows from the seed"


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """Everything here is fixed before the first round and stored with the run.

    The update is w ← w − lr · v with v ← momentum · v + noisy mean gradient; momentum and the learning-rate schedule
    only process what was released, so they cost no privacy.

    `seed` is for what may be known: the schedule, and what layers draw. The noise follows from a secret key of the run,
    unless `noise_seed` is given: then others can repeat the run, and take its noise off.
    """

    rounds: int = 100
    per_round: int = 10
    clip_norm: float = 1.0
    learning_rate: float = 0.1
    learning_rate_schedule: str = "constant"
    momentum: float = 0.0
    delta: float = 1e-5
    noise: str = "exact"
    c2: float | None = None
    adjacency: str = Adjacency.ADD_REMOVE.value
    seed: int = 0
    noise_seed: int | None = None
    evaluate_every: int = 10
    checkpoint_every: int = 20
    device: str = "cpu"
    precision: str = "fp32"
    threads: int | None = None

    def __post_init__(self) -> None:
        for name in ("rounds", "per_round", "evaluate_every", "checkpoint_every", "threads"):
            _check_whole(name, getattr(self, name), 1, math.inf, "of at least 1")
        for name in ("clip_norm", "learning_rate"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise InputError(f"{name} is {value:g}; it must be a finite number above 0")
        if not 0 <= self.momentum < 1:
            raise InputError(f"momentum is {self.momentum:g}; it must be at least 0 and below 1")
        if self.learning_rate_schedule not in LEARNING_RATE_SCHEDULES:
            allowed = ", ".join(LEARNING_RATE_SCHEDULES)
            raise InputError(f"learning_rate_schedule is {self.learning_rate_schedule!r}; it must be one of: {allowed}")
        checked_delta(self.delta)
        _ = self.rule_of_noise
        object.__setattr__(self, "adjacency", Adjacency.of(self.adjacency).value)
        if self.precision not in PRECISIONS:
            raise InputError(f"precision is {self.precision!r}; it must be one of: {', '.join(PRECISIONS)}")
        for name in ("seed", "noise_seed"):
            _check_whole(name, getattr(self, name), 0, 2**63 - 1, "from 0 to 2**63 - 1")

    @property
    def rule_of_noise(self) -> NoiseRule:
        """How much noise a contract needs, and what it costs."""
        return noise_rule(self.noise, self.c2)

    def learning_rate_at(self, index: int) -> float:
        """The step of round `index`, counted from 0."""
        if self.learning_rate_schedule == "cosine":
            return self.learning_rate * 0.5 * (1 + math.cos(math.pi * index / self.rounds))
        if self.learning_rate_schedule == "step":
            return self.learning_rate * _STEP_FACTOR ** sum(index >= share * self.rounds for share in _STEPS)
        if self.learning_rate_schedule == "inverse-sqrt":
            return self.learning_rate / math.sqrt(index + 1)
        return self.learning_rate

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> TrainingSettings:
        names = {field.name for field in fields(cls)}
        if stored.keys() != names:
            odd = sorted(stored.keys() ^ names)
            raise InputError(f"stored settings do not match this version's: {', '.join(odd)}")
        for field in fields(cls):
            _of_kind(field.name, stored[field.name], str(field.type))
        return cls(**stored)

    @classmethod
    def of_run(cls, config: Mapping[str, Any]) -> TrainingSettings:
        """Those of a run folder's config.json. Before there were secret keys, noise followed from the one seed."""
        stored = dict(config["settings"])
        if "noise_seed" not in stored:
            stored["noise_seed"] = stored.get("seed") if simulated(config) else None
        return cls.from_dict(stored)


def _of_kind(name: str, value: object, kind: str) -> None:
    """A file can hold anything; `kind` is the field's annotation."""
    allowed = {"int": (int,), "float": (int, float), "str": (str,)}[kind.removesuffix(" | None")]
    if value is None and kind.endswith("None"):
        return
    if not isinstance(value, allowed) or isinstance(value, bool):
        raise InputError(f"stored setting {name} is {value!r}; it must be of type {kind}")


def simulated(config: Mapping[str, Any]) -> bool:
    """Whether a folder is of a simulated run: only there one process has had the data, and stored a digest of it."""
    return "digest" in config["data"]


def noise_words(settings: TrainingSettings, *, simulated: bool) -> str:
    """Where the noise of a run comes from, and whether that makes it public."""
    if settings.noise_seed is not None:
        return NOT_PRIVATE
    return SECRET_NOISE if simulated else CLIENTS_NOISE


def _check_whole(name: str, value: object, least: int, most: float, allowed: str) -> None:
    if value is None and name in ("threads", "noise_seed"):
        return
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InputError(f"{name} is {value}; it must be a whole number {allowed}")
