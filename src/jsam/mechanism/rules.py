"""What is fixed before anybody reports: mechanism, weights, caps, prior, budget or loss weight, and the seed.

Commands, campaigns, terms, stored runs and sweeps each hold one `Rules`, and only `Rules` turns such settings into a
mechanism: what one of them refuses, all refuse.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from jsam.errors import InputError
from jsam.files import read_toml
from jsam.mechanism._arrays import FloatArray
from jsam.mechanism.budget.loss_weight import BudgetPlan, check_budget, loss_weight_for_budget
from jsam.mechanism.contract import Contract
from jsam.mechanism.families.base import RangeMechanism
from jsam.mechanism.families.description import Need
from jsam.mechanism.halves import HALVES, ByHalves
from jsam.mechanism.heterogeneity import heterogeneity
from jsam.mechanism.lots import priors_by_lots
from jsam.mechanism.market import Market
from jsam.mechanism.priors import Prior, file_of_prior, parse_prior
from jsam.mechanism.registry import find_description, mechanism_named
from jsam.mechanism.solver.payments import Progress
from jsam.mechanism.weights import Weights

# In place of a noise weight: whoever knows the model computes it (`jsam.runs.noise_weight`).
AUTO = "auto"

FractionDone = Callable[[float], None]
WORDS = ("mechanism", "prior", "heterogeneity")
WHOLE = ("seed", "min_clients", "lot")
# Left out of files where they are not given, so that rules of before keep their digest.
LATER = ("min_clients", "min_selection_prob", "heterogeneity", "lot")


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The rules of a market. No field depends on a report, and none can be changed: `dataclasses.replace` copies.

    Exactly one of `loss_weight` and `budget` is given. A budget becomes a loss weight by the number of clients, before
    any report is read; with `budget_probability` it bounds the payments in that share of markets, without it the
    expected cost. `prior` is written as on the command line; None leaves it to the market, where clients bring priors
    of their own. `heterogeneity` says how much clients differ (`jsam.mechanism.heterogeneity`); the weight of the
    selection bias is then its root. With a `lot`, a number of records, the prior is that of the price of a lot, and
    `jsam-even` counts data by lots (docs/manipulation.md).

    >>> rules = Rules(mechanism="fsbm-2", prior="uniform:0,1", loss_weight=3.0)
    >>> rules.contract(rules.market([0.2, 0.5, 0.9])).num_selected
    2
    >>> Rules.from_dict(rules.as_dict()) == rules
    True
    """

    mechanism: str = "jsam-even"
    prior: str | None = None
    loss_weight: float | None = None
    budget: float | None = None
    budget_probability: float | None = None
    noise_weight: float = 1.0
    bias_weight: float = 1.0
    max_selection_prob: float | None = None
    max_epsilon: float | None = None
    min_clients: int | None = None
    min_selection_prob: float | None = None
    heterogeneity: str | None = None
    lot: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None and field.default is None:
                continue
            object.__setattr__(self, field.name, _checked(field.name, value))
        if (self.loss_weight is None) == (self.budget is None):
            raise InputError("give loss_weight or budget, and not both: a budget determines the loss weight")
        if self.budget_probability is not None:
            if self.budget is None:
                raise InputError("budget_probability needs a budget")
            if not 0 < self.budget_probability < 1:
                allowed = "it must lie strictly between 0 and 1"
                raise InputError(f"budget_probability is {self.budget_probability:g}; {allowed}")
        if self.budget is not None:
            check_budget(self.budget, self.budget_probability)
        if self.heterogeneity is not None and self.bias_weight != 1:
            raise InputError("give heterogeneity or bias_weight, not both: the bias weight is the root of ζ²")
        self.weights_at(1.0 if self.loss_weight is None else self.loss_weight)

    @property
    def needs(self) -> tuple[Need, ...]:
        """What the mechanism selects by beside sensitivities; nothing where this process does not know its name."""
        description = find_description(self.mechanism)
        return () if description is None else description.needs

    @property
    def spends_budget(self) -> bool:
        """Whether the mechanism takes the budget itself, so that there is no loss weight to find for it."""
        description = find_description(self.mechanism)
        return description is not None and description.spends_budget

    @property
    def past_reports(self) -> str | None:
        """The file that the prior is made from, if it is made from one."""
        return file_of_prior(self.prior or "")

    @property
    def zeta(self) -> float:
        """ζ, the weight of the selection bias."""
        return self.bias_weight if self.heterogeneity is None else math.sqrt(heterogeneity(self.heterogeneity))

    def weights_at(self, loss_weight: float) -> Weights:
        """The weights and caps, with that loss weight."""
        given = {field.name: getattr(self, field.name) for field in fields(Weights)}
        return Weights(**{**given, "loss_weight": loss_weight, "bias_weight": self.zeta})

    def mechanism_at(
        self, loss_weight: float, selection_probs: Sequence[float] | FloatArray | None = None
    ) -> RangeMechanism:
        """The mechanism with that loss weight; `selection_probs` are for those that are told how often to draw whom."""
        given: dict[str, Any] = {} if selection_probs is None else {"selection_probs": selection_probs}
        if self.spends_budget:
            given["budget"] = self.budget
        if self.lot is not None:
            given["lot"] = self.lot
        mechanism = mechanism_named(self.mechanism, **vars(self.weights_at(loss_weight)), **given)
        return ByHalves.of(mechanism, self.seed) if self.prior == HALVES else mechanism

    def prior_of_all(self) -> Prior:
        """The prior that all clients share."""
        if self.prior is None:
            raise InputError("prior is not given; write one, as in uniform:0,1")
        if self.prior == HALVES:
            raise InputError(
                f"prior {HALVES} is learned from the reports in a file of clients; write another one here, as in"
                " uniform:0,1"
            )
        return parse_prior(self.prior)

    def market(
        self,
        sensitivities: Sequence[float] | FloatArray,
        ids: Sequence[str] | None = None,
        samples: Sequence[int] | None = None,
    ) -> Market:
        """The market of these reports under the shared prior; `samples` are how much data each client holds."""
        prior: Prior | Sequence[Prior] = self.prior_of_all()
        if self.lot is not None:
            if samples is None:
                raise InputError("lot counts data by records, and these clients state none; leave lot out")
            prior = priors_by_lots(prior, samples, self.lot)
        reports = np.asarray(sensitivities, dtype=np.float64)
        names = None if ids is None else tuple(ids)
        return Market(sensitivities=reports, prior=prior, ids=names, samples=samples)

    def budget_plan(
        self,
        num_clients: int,
        *,
        mechanism: RangeMechanism | None = None,
        prior: Prior | Sequence[Prior] | None = None,
        losses: FloatArray | None = None,
        samples: Sequence[int] | None = None,
        progress: FractionDone | None = None,
    ) -> BudgetPlan | None:
        """What the budget buys from so many clients; None where the rules or the mechanism leave nothing to find."""
        if self.budget is None or self.spends_budget:
            return None
        return loss_weight_for_budget(
            mechanism or self.mechanism_at(1.0),
            self.budget,
            prior=self.prior_of_all() if prior is None else prior,
            num_clients=num_clients,
            probability=self.budget_probability,
            losses=losses,
            samples=samples,
            seed=self.seed,
            progress=progress,
        )

    def settled(
        self, mechanism: RangeMechanism, market: Market, progress: FractionDone | None = None
    ) -> tuple[RangeMechanism, BudgetPlan | None]:
        """A mechanism of these rules with its loss weight for this market; beside it what the budget buys, if any."""
        if isinstance(mechanism, ByHalves) and self.budget is not None:
            if self.budget_probability is not None:
                raise InputError(f"a budget with a probability is not there for prior {HALVES}; give the budget alone")
            return mechanism.within(self.budget, market), None
        bought = self.budget_plan(
            market.num_clients,
            mechanism=mechanism,
            prior=market.prior,
            losses=market.losses,
            samples=market.samples,
            progress=progress,
        )
        loss_weight = self.loss_weight if bought is None else bought.loss_weight
        return (mechanism if loss_weight is None else mechanism.with_loss_weight(loss_weight)), bought

    def contract(self, market: Market, *, payments: bool = True) -> Contract:
        """The plan for these reports under these rules."""
        mechanism, _ = self.settled(self.mechanism_at(1.0), market)
        return self.planned(mechanism, market, payments=payments)

    def planned(
        self, mechanism: RangeMechanism, market: Market, *, payments: bool = True, progress: Progress | None = None
    ) -> Contract:
        """The plan of a mechanism that `settled` gave; the contract names the budget of these rules."""
        contract = mechanism.plan(market, payments=payments, progress=progress)
        if contract.num_selected == 0:
            most = "" if self.budget is None else f" of {self.budget:g}"
            raise InputError(f"{contract.mechanism} buys from nobody: no client sells within the budget{most}")
        return dataclasses.replace(contract, budget=self.budget)

    def as_dict(self) -> dict[str, Any]:
        """All settings by name."""
        settings = dataclasses.asdict(self)
        return {name: value for name, value in settings.items() if value is not None or name not in LATER}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any], where: str = "rules") -> Rules:
        """The rules that `as_dict` gave; `where` names their source in error messages."""
        known = [field.name for field in fields(cls)]
        unknown = [key for key in stored if key not in known]
        if unknown:
            raise InputError(f"{where}: unknown setting {unknown[0]!r}; allowed: {' '.join(known)}")
        try:
            return cls(**stored)
        except InputError as error:
            raise InputError(f"{where}: {error}") from error

    def to_toml(self) -> str:
        """A file for `Rules.load`; what is not given is left out."""
        lines = [f"{key} = {json.dumps(value)}" for key, value in self.as_dict().items() if value is not None]
        return "\n".join(lines) + "\n"

    @classmethod
    def load(cls, path: Path | str, **instead: Any) -> Rules:
        """The rules in a TOML file. A setting of `instead` that is not None takes the place of the file's."""
        return cls.from_dict(merged(read_settings(path), instead), str(path))

    @property
    def digest(self) -> str:
        """A hash of all settings; equal rules have equal digests on every machine."""
        text = json.dumps(self.as_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of which a later layer's take the place of an earlier one's, unless they are None.

    A loss weight takes the place of an earlier budget, and a budget that of an earlier loss weight; likewise bias
    weight and heterogeneity.

    >>> merged({"budget": 5.0, "seed": 1}, {"loss_weight": 2.0, "seed": None})
    {'seed': 1, 'loss_weight': 2.0}
    """
    settings: dict[str, Any] = {}
    for layer in layers:
        given = {name: value for name, value in layer.items() if value is not None}
        if "loss_weight" in given and "budget" not in given:
            settings = {name: value for name, value in settings.items() if not name.startswith("budget")}
        if "budget" in given and "loss_weight" not in given:
            settings.pop("loss_weight", None)
        for name, other in (("bias_weight", "heterogeneity"), ("heterogeneity", "bias_weight")):
            if name in given and other not in given:
                settings.pop(other, None)
        settings |= given
    return settings


def read_settings(path: Path | str) -> dict[str, Any]:
    """What a TOML file of rules says, not yet checked."""
    return read_toml(path, "rules")


def _checked(name: str, value: Any) -> Any:
    """The value in the type of its field; whole numbers count as numbers, truth values do not."""
    if name in WORDS:
        if not isinstance(value, str) or not value.strip():
            raise InputError(f"{name} is {value!r}; it must be a name")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{name} is {value!r}; it must be a number")
    if name not in WHOLE:
        return float(value)
    if not isinstance(value, int) or value < 0:
        raise InputError(f"{name} is {value!r}; it must be a whole number of at least {int(name != 'seed')}")
    return value
