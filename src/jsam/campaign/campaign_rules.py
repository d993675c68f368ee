"""What is published before anybody reports: prior, mechanism, the function η(N), and how training will go."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jsam.campaign.checked import RULE_NAMES, number, refuse_imports, rules_of, text, whole_number
from jsam.campaign.terms import PublicInputs
from jsam.campaign.verification import LARGEST_CLIP_NORM, SMALLEST_CLIP_NORM, clip_norm_can_be_held
from jsam.errors import InputError, UnequalDataError
from jsam.mechanism.contract import Contract
from jsam.mechanism.rules import Rules
from jsam.runs.settings import TrainingSettings

_WHOLE, _NUMBERS = ("rounds", "per_round"), ("clip_norm", "learning_rate", "momentum", "delta")
_TRAINING = (*_WHOLE, *_NUMBERS, "learning_rate_schedule", "adjacency")
# A setting that is None is said to be missing; one that is not said is usual.
_USUAL = {"prior": "uniform:0,1", "max_epsilon": 10.0, "model": "digits", "rounds": 10, "per_round": 4}

SETTINGS = ("campaign", *RULE_NAMES, "model", *_TRAINING, "sizes")
"""The names of everything that is published."""

# What the plan takes for the amount of data of each client: all hold equally much, or as much as they report.
EQUAL, REPORTED = "equal", "reported"


@dataclass(frozen=True, kw_only=True)
class CampaignRules:
    """Fixed before the first report, so that no report can move it; `contract` is then a function of the reports.

    `sizes` says whether the plan counts the numbers of records that clients report beside their sensitivities. The
    prior's name and numbers are not looked at here: to compute a prior may take long (`check_prior`).
    """

    campaign: str
    rules: Rules
    training: TrainingSettings
    model: str
    sizes: str = EQUAL

    def __post_init__(self) -> None:
        if not self.campaign or len(self.campaign) > 100 or not self.campaign.isprintable():
            raise InputError(f"campaign is {self.campaign!r}; it must be a name of 1 to 100 printable characters")
        if self.rules.lot is not None:
            raise InputError("lot counts data by records, and campaigns do not plan by them; leave lot out")
        mechanism = refuse_imports(self.rules).mechanism_at(self.rules.loss_weight or 1.0)
        if self.sizes not in (EQUAL, REPORTED):
            raise InputError(f"sizes is {self.sizes!r}; it must be one of: {EQUAL}, {REPORTED}")
        if self.sizes == REPORTED:
            # Before anybody is asked: a plan that cannot be made is no reason to report.
            mechanism.check_unequal_data()
            if self.rules.budget_probability is not None:
                # It takes whole plans of hundreds of markets, longer than a client gives to checking η.
                raise UnequalDataError(f"budget_probability is not there for sizes {REPORTED!r}; give the budget alone")
        text("model", self.model)
        if self.training.seed != self.rules.seed:
            raise InputError(f"seed is {self.training.seed} for training; the rules have {self.rules.seed}")
        clip_norm = self.training.clip_norm
        if not clip_norm_can_be_held(clip_norm):
            allowed = f"from {SMALLEST_CLIP_NORM:g} to {LARGEST_CLIP_NORM:g}"
            raise InputError(f"clip_norm is {clip_norm:g}; it must lie {allowed}, or every client declines")

    def check_prior(self) -> None:
        """Refuse a prior that cannot be computed, or that is in a file."""
        if self.rules.past_reports is not None:
            prior = self.rules.prior
            raise InputError(f"prior is {prior!r}; it must be one of scipy.stats: clients do not have the file")
        self.rules.prior_of_all()

    def contract(
        self, names: Sequence[str], sensitivities: Sequence[float], samples: Sequence[int] | None = None
    ) -> Contract:
        """The plan for those who answered; `samples` are their numbers of records, where the plan counts them."""
        return self.rules.contract(self.rules.market(sensitivities, names, samples))

    def counted(self, samples: Sequence[int]) -> tuple[int, ...] | None:
        """The numbers of records, if the plan counts them."""
        return tuple(samples) if self.sizes == REPORTED else None

    def inputs(self, num_clients: int, loss_weight: float, samples: Sequence[int] | None = None) -> PublicInputs:
        """The part of each client's terms that is the same for all.

        `loss_weight` is η of so many clients, or of clients with so many `samples` where the plan counts them.
        """
        training = self.training
        return PublicInputs(
            rules=self.rules,
            num_clients=num_clients,
            loss_weight=loss_weight,
            rounds=training.rounds,
            per_round=training.per_round,
            learning_rate=training.learning_rate,
            model=self.model,
            sizes=None if samples is None else tuple(sorted(samples)),
        )

    def as_dict(self) -> dict[str, Any]:
        """All that is published, by name: plain numbers and texts."""
        training = {name: getattr(self.training, name) for name in _TRAINING}
        # Left out where it changes nothing, so that campaigns of before keep their digest.
        sizes = {} if self.sizes == EQUAL else {"sizes": self.sizes}
        return {"campaign": self.campaign, **self.rules.as_dict(), "model": self.model, **training, **sizes}

    def to_json(self) -> str:
        return json.dumps(self.as_dict(), sort_keys=True, allow_nan=False)

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> CampaignRules:
        """The inverse of `as_dict`. What is left out has its usual value; other names are refused."""
        unknown = [str(name) for name in settings if name not in SETTINGS]
        if unknown:
            raise InputError(f"unknown setting {unknown[0]!r}; allowed: {' '.join(SETTINGS)}")
        settings = {**_USUAL, **settings}
        rules = rules_of(settings)
        training = {name: settings[name] for name in _TRAINING if name in settings}
        for name, value in training.items():
            check = whole_number if name in _WHOLE else number if name in _NUMBERS else None
            training[name] = text(name, value) if check is None else check(name, value, 0)
        return cls(
            campaign=str(settings.get("campaign", "")),
            rules=rules,
            training=TrainingSettings(**training, seed=rules.seed, evaluate_every=1, checkpoint_every=1),
            model=settings["model"],
            sizes=text("sizes", settings.get("sizes", EQUAL)),
        )
