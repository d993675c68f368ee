"""After (or during) a run: hold its ledger against its contract, release by release. Needs no torch and no data."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jsam.errors import RunFolderError
from jsam.mechanism.contract import Contract
from jsam.mechanism.contract_files import load_contract
from jsam.privacy import ContractReport, Query, Release, Schedule, check_contract, read_ledger, sold_in_all
from jsam.privacy.expected_releases import Demands, differences
from jsam.runs.evidence import Evidence
from jsam.runs.label_counts import LabelCounts
from jsam.runs.publishing import files_of
from jsam.runs.run_folder import RunFolder, write_json
from jsam.runs.settings import NOT_PRIVATE, TrainingSettings, noise_words, simulated

_SHOWN = 5
_DIGITS = 1e-9  # to which a contract holds the root of ζ²


@dataclass(frozen=True, kw_only=True)
class Settlement:
    """What each client sold, what was spent of it, and in what the ledger is not the one that the contract demands."""

    contract: Contract
    settings: TrainingSettings
    report: ContractReport
    problems: tuple[str, ...]
    rounds_recorded: int
    simulated: bool = True
    labels: LabelCounts | None = None

    @property
    def kept(self) -> bool:
        return self.report.kept and not self.problems

    @property
    def noise(self) -> str:
        """Where the noise comes from, and whether that makes it public."""
        return noise_words(self.settings, simulated=self.simulated)

    def lines(self) -> list[str]:
        """The verdict first, then what is wrong, a line each; at the end, if it is so, that the run is not private."""
        public = [f"{NOT_PRIVATE} in config.json"] if self.settings.noise_seed is not None else []
        if self.problems and self.report.kept:
            # What was spent by such a ledger is no news of what was spent.
            return ["the ledger is NOT the one that the contract demands", *self.problems, *public]
        return [*self.report.lines(), *self.problems, *public]

    def as_dict(self) -> dict[str, Any]:
        payments = self.contract.payments
        labels, parts = self.labels, self._parts()
        amounts = [None] * self.contract.num_clients if payments is None else payments.tolist()
        paid = dict(zip(self.contract.ids, amounts, strict=True))
        return {
            "kept": self.kept,
            "verdict": self.lines(),
            "delta": self.settings.delta,
            "adjacency": self.settings.adjacency,
            "adjacency_words": None if self.report.adjacency is None else self.report.adjacency.words,
            "noise": self.settings.noise,
            "c2": self.settings.c2,
            "noise_from": self.noise,
            "private": self.settings.noise_seed is None,
            "rounds": self.settings.rounds,
            "rounds_recorded": self.rounds_recorded,
            # Of a run on one machine nobody drops out; a campaign's books have what is due to whom (its terms say how).
            "payment_is": "agreed for the whole contract",
            **({} if labels is None else {"label_counts": labels.as_dict()}),
            "clients": [
                {
                    "id": str(entry.client),
                    "bought": _finite(entry.bought),
                    **parts.get(str(entry.client), {}),
                    "spent": _finite(entry.spent),
                    "second_opinion": None if entry.second_opinion is None else _finite(entry.second_opinion),
                    "participations": entry.participations,
                    "releases": entry.releases,
                    "payment": paid.get(str(entry.client)),
                    "over": entry.over,
                }
                for entry in self.report.clients
            ],
            "files": [asdict(file) for file in files_of(simulated=self.simulated)],
        }

    def _parts(self) -> dict[str, dict[str, float]]:
        """What of each client's ε and payment is for what, where label counts were bought beside the training."""
        labels = self.labels
        if labels is None:
            return {}
        bought = {"bought_for_labels": labels.epsilon, "label_payment": labels.payment}
        return {
            name: {"bought_for_training": epsilon, **bought}
            for name, epsilon in zip(self.contract.ids, self.contract.epsilons.tolist(), strict=True)
        }


def settle(folder: Path | str, *, second_opinion: bool = True) -> Settlement:
    """Recompute everybody's spent ε from the ledger and write audit.json into the folder."""
    run = RunFolder(folder)
    config = run.read_config()
    settings = TrainingSettings.of_run(config)
    contract = load_contract(run.contract)
    schedule = _schedule(run, contract, settings)
    releases = read_ledger(run.ledger)
    evidence = Evidence(run, config, settings)
    labels = LabelCounts.of_run(config)
    demands = _demands(contract, schedule, settings, config["data"], evidence.applied, labels)
    settlement = Settlement(
        contract=contract,
        settings=settings,
        report=check_contract(
            releases,
            _sold(contract, labels, settings),
            settings.delta,
            accountant=settings.rule_of_noise.accountant,
            second_opinion=second_opinion,
        ),
        problems=_problems(
            releases, demands, schedule, contract, settings, [*evidence.problems, *_unlike(labels, contract)]
        ),
        rounds_recorded=len({release.round for release in releases if release.query is Query.GRADIENT}),
        simulated=simulated(config),
        labels=labels,
    )
    write_json(run.audit, settlement.as_dict())
    return settlement


def _schedule(run: RunFolder, contract: Contract, settings: TrainingSettings) -> Schedule:
    """The stored one, of the size that contract and settings say."""
    schedule = Schedule.load(run.schedule)
    stored = schedule.num_clients, schedule.rounds, schedule.per_round
    due = contract.num_clients, settings.rounds, settings.per_round
    if stored != due:
        words = "{} clients, {} rounds of {} draws"
        raise RunFolderError(
            f"{run.schedule} is of {words.format(*stored)}; contract.json and config.json are of {words.format(*due)}"
        )
    return schedule


def _demands(
    contract: Contract,
    schedule: Schedule,
    settings: TrainingSettings,
    data: Mapping[str, Any],
    applied: int,
    labels: LabelCounts | None,
) -> Demands:
    samples = _samples(contract, data)
    draws = Counter(
        (index, contract.ids[k]) for index, drawn in enumerate(schedule.draws.tolist()) for k in sorted(drawn)
    )
    return Demands(
        epsilons=dict(zip(contract.ids, contract.epsilons.tolist(), strict=True)),
        draws=draws,
        delta=settings.delta,
        adjacency=settings.adjacency,
        clip_norm=settings.clip_norm,
        noise=settings.noise,
        c2=settings.c2,
        samples=dict(zip(contract.ids, samples, strict=True)),
        applied=applied,
        label_epsilon=None if labels is None else labels.epsilon,
    )


def _sold(contract: Contract, labels: LabelCounts | None, settings: TrainingSettings) -> dict[str, float]:
    """What each client sold in all: the ε of its training, or of that and its label counts together."""
    epsilons = contract.epsilons
    if labels is not None:
        epsilons = sold_in_all(epsilons, labels.epsilon, settings.delta)
    return dict(zip(contract.ids, epsilons.tolist(), strict=True))


def _unlike(labels: LabelCounts | None, contract: Contract) -> list[str]:
    """Where the contract is not that of the label counts."""
    if labels is None:
        return []
    problems = []
    if labels.num_clients != contract.num_clients:
        problems.append(f"label counts are of {labels.num_clients} clients; the contract of {contract.num_clients}")
    if not math.isclose(contract.bias_weight**2, labels.heterogeneity, rel_tol=_DIGITS):
        problems.append(
            f"contract.json has ζ² = {contract.bias_weight**2:.6g}; the label counts of config.json gave"
            f" {labels.heterogeneity:.6g}"
        )
    return problems


def _samples(contract: Contract, data: Mapping[str, Any]) -> list[int]:
    """How many records each client has: all noise is measured by it, so it is not taken from the ledger."""
    samples = data.get("samples")
    if not isinstance(samples, list) or not all(type(count) is int and count > 0 for count in samples):
        raise RunFolderError("config.json is damaged: data.samples must be the clients' numbers of records")
    if len(samples) != contract.num_clients:
        raise RunFolderError(f"config.json has samples of {len(samples)} clients; contract.json {contract.num_clients}")
    if sum(samples) != data.get("num_samples"):
        raise RunFolderError(
            f"config.json is damaged: data.samples add up to {sum(samples)}, data.num_samples is "
            f"{data.get('num_samples')}"
        )
    return samples


def _problems(
    releases: Sequence[Release],
    demands: Demands,
    schedule: Schedule,
    contract: Contract,
    settings: TrainingSettings,
    disagreements: Sequence[str],
) -> tuple[str, ...]:
    drawn = Schedule.draw(
        contract.selection_probs, rounds=settings.rounds, per_round=settings.per_round, seed=settings.seed
    )
    problems = list(disagreements)
    if not np.array_equal(drawn.draws, schedule.draws):
        problems.append(f"the schedule is not the one that seed {settings.seed} draws from the contract")
    problems += differences(releases, demands)
    rest = len(problems) - _SHOWN
    return tuple(problems[:_SHOWN] + ([f"... and {rest} more differences from the contract"] if rest > 0 else []))


def _finite(value: float) -> float | None:
    # JSON has no infinity; null stands for it, and `over` says what to think of it.
    return value if math.isfinite(value) else None
