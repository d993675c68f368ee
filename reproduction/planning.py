"""Contracts of runs, and the two things about them that take long: η for a cost, and losses of the first weights.

Both are kept in small files, so that a machine with an accelerator need only train.
"""

from __future__ import annotations

import json
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from jsam.errors import InputError
from jsam.mechanism._arrays import FloatArray
from jsam.mechanism.bound import loss_bound
from jsam.mechanism.contract import Contract
from jsam.mechanism.families import plan
from jsam.mechanism.families.base import RangeMechanism
from jsam.mechanism.families.description import LOSSES
from jsam.mechanism.market import Market
from jsam.mechanism.priors import parse_prior
from jsam.mechanism.registry import description_of
from jsam.mechanism.rules import Rules
from jsam.report.output_files import write_result
from jsam.runs.drawn_sensitivities import draw_sensitivities
from reproduction.config import PRIOR as PRIOR_NAME
from reproduction.config import RunConfig
from reproduction.tasks import task_of

PRIOR = parse_prior(PRIOR_NAME)
LOSS_WEIGHTS, LOCAL_LOSSES = "loss-weights.json", "local-losses.json"


def rules_of(config: RunConfig, mechanism: str) -> Rules:
    """The rules of a run for one of its two mechanisms: the one that is planned, or the one whose cost gives η.

    A cap on p is for the mechanisms that choose p; stored runs of others were made without it.
    """
    cap = config.max_selection_prob if description_of(mechanism).chooses_probs else None
    return replace(config.rules, mechanism=mechanism, max_selection_prob=cap)


def _by_losses(mechanism: str) -> bool:
    return LOSSES in description_of(mechanism).needs


@dataclass(kw_only=True)
class Plans:
    """What is known of η and of local losses. What is found goes first, and is added to the files of a folder."""

    folder: Path
    loss_weights: ChainMap[str, float] = field(default_factory=ChainMap)
    local_losses: ChainMap[str, list[float]] = field(default_factory=ChainMap)

    @classmethod
    def load(cls, folder: Path, known: Path | None = None) -> Plans:
        """What `known` holds counts before what the folder holds."""
        folders = [folder] if known is None else [known, folder]
        return cls(
            folder=folder,
            loss_weights=ChainMap({}, *(_read(place / LOSS_WEIGHTS) for place in folders)),
            local_losses=ChainMap({}, *(_read(place / LOCAL_LOSSES) for place in folders)),
        )

    def loss_weight(self, config: RunConfig) -> float:
        """η, found and saved if need be (seconds); it depends on the prior and the number of clients, on no report."""
        if config.rules.spends_budget:
            return 1.0  # it decides nothing: the mechanism divides the cost itself
        key = _loss_weight_key(config)
        if key not in self.loss_weights:
            # Who is drawn does not matter to a mean over clients drawn alike, so any losses will do for BBM.
            losses = np.arange(config.num_clients, dtype=np.float64) if _by_losses(config.cost_of) else None
            bought = rules_of(config, config.cost_of).budget_plan(config.num_clients, losses=losses)
            assert bought is not None
            self.loss_weights[key] = bought.loss_weight
            _add(self.folder / LOSS_WEIGHTS, self.loss_weights.maps[0])
        return self.loss_weights[key]

    def known_loss_weight(self, config: RunConfig) -> float | None:
        if config.rules.spends_budget:
            return 1.0
        return self.loss_weights.get(_loss_weight_key(config))

    def losses(self, config: RunConfig) -> FloatArray:
        """Each client's mean loss under the first weights, by which BBM selects; found and saved if need be."""
        key = _losses_key(config)
        if key not in self.local_losses:
            self.local_losses[key] = [float(f"{value:.7g}") for value in _local_losses(config)]
            _add(self.folder / LOCAL_LOSSES, self.local_losses.maps[0])
        return np.array(self.local_losses[key])

    def prepare(self, configs: Sequence[RunConfig], *, losses: bool = True, tell: Callable[[str], None]) -> None:
        """Find everything that these runs will need: first every η, then the losses."""
        for config in configs:
            if self.known_loss_weight(config) is None:
                tell(f"η of {config.cost_of} for cost {config.cost:g} at Q {config.noise_weight:g}")
                self.loss_weight(config)
        for config in configs:
            if losses and _by_losses(config.mechanism) and _losses_key(config) not in self.local_losses:
                tell(f"local losses of {_losses_key(config)}")
                self.losses(config)

    def contract(self, config: RunConfig) -> Contract:
        """Who is drawn how often, what each sells and is paid."""
        market = Market(
            sensitivities=draw_sensitivities(PRIOR, config.num_clients, config.seed),
            prior=PRIOR,
            losses=self.losses(config) if _by_losses(config.mechanism) else None,
        )
        mechanism = rules_of(config, config.mechanism).mechanism_at(self.loss_weight(config))
        if config.straggler_epsilon is not None:
            return with_straggler(market, mechanism, config.straggler_epsilon)
        return plan(market, mechanism)


def with_straggler(market: Market, mechanism: RangeMechanism, epsilon: float) -> Contract:
    """The contract when the most sensitive client sells at most `epsilon`, which the server knows beforehand.

    A mechanism that fixes who is drawn goes on drawing it. JSAM leaves it out where that lowers its objective. Nothing
    is paid in this made-up market.
    """
    last = int(np.argmax(market.sensitivities))
    whole = plan(market, mechanism, payments=False)
    limited = whole.epsilons.copy()
    limited[last] = min(limited[last], epsilon)
    keeping = replace(whole, epsilons=limited)
    if not description_of(mechanism.name).chooses_probs:
        return keeping
    others = np.delete(np.arange(market.num_clients), last)
    rest = plan(replace(market, sensitivities=market.sensitivities[others]), mechanism, payments=False)
    p, eps = np.zeros(market.num_clients), np.zeros(market.num_clients)
    p[others], eps[others] = rest.selection_probs, rest.epsilons
    dropping = replace(whole, selection_probs=p, epsilons=eps)
    return min((dropping, keeping), key=lambda contract: _objective(contract, mechanism))


def _objective(contract: Contract, mechanism: RangeMechanism) -> float:
    bound = loss_bound(
        contract.selection_probs,
        contract.epsilons,
        noise_weight=mechanism.noise_weight,
        bias_weight=mechanism.bias_weight,
    )
    return mechanism.loss_weight * bound + contract.expected_cost


def _loss_weight_key(config: RunConfig) -> str:
    cap = "" if config.max_selection_prob is None else f"/cap{config.max_selection_prob!r}"
    cap += "" if config.max_epsilon is None else f"/epsilon{config.max_epsilon!r}"
    zeta = config.bias_weight if config.heterogeneity is None else round(config.rules.zeta, 9)
    weights = f"Q{config.noise_weight!r}/zeta{zeta!r}{cap}"
    return f"{config.cost_of}/{config.num_clients}/{weights}/cost{config.cost!r}"


def _losses_key(config: RunConfig) -> str:
    held = "/held-out" if config.held_out else ""
    return f"{config.dataset}/s{config.similarity:g}/{config.num_clients}/seed{config.seed}{held}"


def _local_losses(config: RunConfig) -> list[float]:
    import torch

    from jsam.training.clipping import cross_entropy

    task = task_of(config)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = task.model.to(device).eval()
    losses = []
    with torch.no_grad():
        for rows in task.partition.indices:
            inputs = torch.from_numpy(task.dataset.train_inputs[rows]).to(device)
            targets = torch.from_numpy(task.dataset.train_targets[rows]).to(device)
            losses.append(float(cross_entropy(model(inputs), targets).mean(dtype=torch.float64)))
    task.model.to("cpu").train()
    return losses


def merge_plans(source: Path, target: Path) -> None:
    """Bring the plans of one folder into another, whose own stay as they are."""
    for name in (LOSS_WEIGHTS, LOCAL_LOSSES):
        _add(target / name, _read(source / name))


def _add(path: Path, found: Mapping[str, Any]) -> None:
    stored = _read(path)
    values = {**found, **stored}
    if len(values) > len(stored):
        lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(values[key])}" for key in sorted(values))
        write_result(path, f"{{\n{lines}\n}}\n".encode())


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(stored, dict):
            raise ValueError("not a table")
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}; remove it to have it made again") from error
    return stored
