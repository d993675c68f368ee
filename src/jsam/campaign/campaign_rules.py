"""What is published before anybody reports: prior, rule, the function η(N), and how training will go."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jsam.campaign.identity import public_key_text
from jsam.campaign.names import ALLOWED, is_name
from jsam.campaign.rule import published_rule
from jsam.campaign.terms import PublicInputs
from jsam.campaign.verification import LARGEST_CLIP_NORM, SMALLEST_CLIP_NORM, clip_norm_can_be_held
from jsam.errors import InputError
from jsam.mechanism.budget.loss_weight import check_budget, loss_weight_for_budget
from jsam.mechanism.contract import Contract
from jsam.mechanism.families import plan
from jsam.mechanism.market import Market
from jsam.mechanism.priors import file_of_prior, parse_prior
from jsam.runs.settings import TrainingSettings


@dataclass(frozen=True, kw_only=True)
class Published:
    """Fixed before the first report, so that no report can move it; `contract` is then a function of the reports.

    Exactly one of `loss_weight` and `budget`: η(N) is that constant, or what the budget gives for N clients.
    """

    campaign: str
    prior: str = "uniform:0,1"
    mechanism: str = "jsam"
    loss_weight: float | None = None
    budget: float | None = None
    budget_probability: float | None = None
    noise_weight: float = 1.0
    bias_weight: float = 1.0
    max_selection_prob: float | None = None
    max_epsilon: float | None = None
    model: str = "digits"
    rounds: int = 10
    per_round: int = 4
    clip_norm: float = 1.0
    learning_rate: float = 0.1
    learning_rate_schedule: str = "constant"
    momentum: float = 0.0
    delta: float = 1e-5
    adjacency: str = "add-remove"
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.campaign or len(self.campaign) > 100 or not self.campaign.isprintable():
            raise InputError(f"campaign is {self.campaign!r}; it must be a name of 1 to 100 printable characters")
        if (self.loss_weight is None) == (self.budget is None):
            raise InputError("give loss_weight or budget, and not both: η(N) must be one function")
        if self.budget_probability is not None and self.budget is None:
            raise InputError("budget-probability needs a budget")
        if self.budget is not None:
            check_budget(self.budget, self.budget_probability)
        parse_prior(self.prior)
        if file_of_prior(self.prior) is not None:
            raise InputError(f"prior is {self.prior!r}; it must be one of scipy.stats: clients do not have the file")
        published_rule(self, 1.0 if self.loss_weight is None else self.loss_weight)
        _ = self.training
        if not clip_norm_can_be_held(self.clip_norm):
            allowed = f"from {SMALLEST_CLIP_NORM:g} to {LARGEST_CLIP_NORM:g}"
            raise InputError(f"clip_norm is {self.clip_norm:g}; it must lie {allowed}, or every client declines")

    @property
    def training(self) -> TrainingSettings:
        return TrainingSettings(
            rounds=self.rounds,
            per_round=self.per_round,
            clip_norm=self.clip_norm,
            learning_rate=self.learning_rate,
            learning_rate_schedule=self.learning_rate_schedule,
            momentum=self.momentum,
            delta=self.delta,
            adjacency=self.adjacency,
            seed=self.seed,
            evaluate_every=1,
            checkpoint_every=1,
        )

    def loss_weight_for(self, num_clients: int) -> float:
        """η(N)."""
        if self.budget is None:
            assert self.loss_weight is not None
            return self.loss_weight
        return loss_weight_for_budget(
            published_rule(self, 1.0),
            self.budget,
            prior=parse_prior(self.prior),
            num_clients=num_clients,
            probability=self.budget_probability,
            seed=self.seed,
        ).loss_weight

    def check_report(self, name: str, sensitivity: float) -> None:
        """Refuse, by `ReportError`, a report that the prior does not know."""
        Market(sensitivities=np.array([sensitivity]), prior=parse_prior(self.prior), ids=(name,))

    def contract(self, names: Sequence[str], sensitivities: Sequence[float]) -> Contract:
        """The plan for those who answered."""
        rule = published_rule(self, self.loss_weight_for(len(names)))
        market = Market(
            sensitivities=np.asarray(sensitivities, dtype=np.float64), prior=parse_prior(self.prior), ids=tuple(names)
        )
        return dataclasses.replace(plan(market, rule), budget=self.budget)

    def inputs(self, contract: Contract) -> PublicInputs:
        """The part of each client's terms that is the same for all."""
        return PublicInputs(
            prior=self.prior,
            mechanism=self.mechanism,
            num_clients=contract.num_clients,
            loss_weight=contract.loss_weight,
            budget=self.budget,
            budget_probability=self.budget_probability,
            budget_seed=self.seed,
            noise_weight=self.noise_weight,
            bias_weight=self.bias_weight,
            max_selection_prob=self.max_selection_prob,
            max_epsilon=self.max_epsilon,
            rounds=self.rounds,
            per_round=self.per_round,
            learning_rate=self.learning_rate,
            model=self.model,
        )

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def to_json(self) -> str:
        return json.dumps(self.as_dict(), sort_keys=True, allow_nan=False)

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Published:
        try:
            return cls(**stored)
        except TypeError as error:
            raise InputError(f"what is published does not fit this version: {error}") from error


@dataclass(frozen=True, kw_only=True)
class Conduct:
    """How the server goes about it: for how long it waits, and how many empty slots it bears. Nobody's contract depends
    on this.

    `keys` is a folder with NAME.pub for each client; with it a node must have proved the key of the name that it gives.
    """

    clients: int
    store: str
    dataset: str = ""
    wait_seconds: float = 300.0
    elicit_seconds: float = 120.0
    offer_seconds: float = 120.0
    round_seconds: float = 600.0
    repeat_seconds: float = 60.0
    min_share: float = 0.5
    rebind: bool = False
    keys: str = ""

    def __post_init__(self) -> None:
        if self.clients < 1:
            raise InputError(f"clients is {self.clients}; it must be at least 1")
        if not self.store:
            raise InputError("store is empty; it must name the folder of the server's own books")
        for name in ("wait_seconds", "elicit_seconds", "offer_seconds", "round_seconds", "repeat_seconds"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InputError(f"{name} is {getattr(self, name):g}; it must be finite and above 0")
        if not 0 <= self.min_share <= 1:
            raise InputError(f"min_share is {self.min_share:g}; it must lie from 0 to 1")

    def public_keys(self) -> dict[str, str] | None:
        """The keys by client, one key for one name and one name for one key; None where none were given."""
        if not self.keys:
            return None
        found = {path.stem: public_key_text(path.read_bytes()) for path in sorted(Path(self.keys).glob("*.pub"))}
        odd = [name for name, key in found.items() if not key]
        if odd or not found:
            what = f"{odd[0]}.pub is no public key" if odd else "it has no keys"
            raise InputError(f"keys is {self.keys!r}: {what}; it must be a folder with NAME.pub for each client")
        wrong = [name for name in found if not is_name(name)]
        if wrong:
            raise InputError(f"keys is {self.keys!r}: {wrong[0]!r} is no name for a client; a name must have {ALLOWED}")
        owners: dict[str, str] = {}
        for name, key in found.items():
            other = owners.setdefault(key, name)
            if other != name:
                raise InputError(
                    f"keys is {self.keys!r}: {other}.pub and {name}.pub are the same key; each client must have its own"
                )
        return found


def from_run_config(config: Mapping[str, Any]) -> tuple[Published, Conduct]:
    """Both from Flower's run configuration, which has dashes in its names; an empty text or a 0 cap means none."""
    found: dict[type, dict[str, Any]] = {Published: {}, Conduct: {}}
    unused = {str(name) for name in config}
    for kind, values in found.items():
        for field in dataclasses.fields(kind):
            name = field.name.replace("_", "-")
            if name not in config:
                continue
            unused.discard(name)
            value: Any = config[name]
            kinds = str(field.type)
            if "None" in kinds and value in ("", 0, 0.0):
                continue
            if "float" in kinds and isinstance(value, int) and not isinstance(value, bool):
                value = float(value)
            values[field.name] = value
    if unused:
        raise InputError(f"unknown run-config: {', '.join(sorted(unused))}")
    try:
        return Published(**found[Published]), Conduct(**found[Conduct])
    except TypeError as error:
        raise InputError(f"run-config: {error}") from error
