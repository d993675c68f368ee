"""After (or during) a run: hold its ledger against its contract and its schedule. Needs no torch and no data."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsam.mechanism.contract import Contract
from jsam.privacy import ContractReport, Release, Schedule, check_contract, read_ledger
from jsam.training.contracts import load_contract
from jsam.training.records import RunFolder, write_json
from jsam.training.settings import TrainingSettings

_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Settlement:
    """What each client sold, what was spent of it, and whether the ledger is that of the schedule."""

    contract: Contract
    settings: TrainingSettings
    report: ContractReport
    problems: tuple[str, ...]
    rounds_recorded: int

    @property
    def kept(self) -> bool:
        return self.report.kept and not self.problems

    def lines(self) -> list[str]:
        """The verdict first, then what is wrong, a line each."""
        return [*self.report.lines(), *self.problems]

    def as_dict(self) -> dict[str, Any]:
        payments = self.contract.payments
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
            "rounds": self.settings.rounds,
            "rounds_recorded": self.rounds_recorded,
            "clients": [
                {
                    "id": str(entry.client),
                    "bought": _finite(entry.bought),
                    "spent": _finite(entry.spent),
                    "second_opinion": None if entry.second_opinion is None else _finite(entry.second_opinion),
                    "participations": entry.participations,
                    "releases": entry.releases,
                    "payment": paid.get(str(entry.client)),
                    "over": entry.over,
                }
                for entry in self.report.clients
            ],
        }


def settle(folder: Path | str, *, second_opinion: bool = True) -> Settlement:
    """Recompute everybody's spent ε from the ledger and write audit.json into the folder."""
    run = RunFolder(folder)
    settings = TrainingSettings.from_dict(run.read_config()["settings"])
    contract = load_contract(run.contract)
    schedule = Schedule.load(run.schedule)
    releases = read_ledger(run.ledger)
    epsilons = dict(zip(contract.ids, contract.epsilons.tolist(), strict=True))
    settlement = Settlement(
        contract=contract,
        settings=settings,
        report=check_contract(releases, epsilons, settings.delta, second_opinion=second_opinion),
        problems=tuple(_disagreements(releases, schedule, contract)),
        rounds_recorded=len({release.round for release in releases}),
    )
    write_json(run.audit, settlement.as_dict())
    return settlement


def _disagreements(releases: Iterable[Release], schedule: Schedule, contract: Contract) -> list[str]:
    """Releases that the schedule does not know, or knows and lacks; a last round may be incomplete after a kill."""
    recorded = {(release.round, release.client): release.multiplicity for release in releases}
    last = max((index for index, _ in recorded), default=-1)
    expected = {
        (drawn.index, contract.ids[k]): int(m)
        for drawn in (schedule.round(index) for index in range(min(last + 1, schedule.rounds)))
        for k, m in zip(drawn.clients, drawn.multiplicities, strict=True)
    }
    found = [
        f"the ledger has client {client} in round {index} drawn {m} times; in the schedule it is "
        f"{expected.get((index, client), 0)}"
        for (index, client), m in recorded.items()
        if expected.get((index, client), 0) != m
    ]
    found += [
        f"the ledger lacks the release of client {client} in round {index}"
        for (index, client) in expected
        if (index, client) not in recorded and index < last
    ]
    rest = len(found) - _SHOWN
    return found[:_SHOWN] + ([f"... and {rest} more disagreements between ledger and schedule"] if rest > 0 else [])


def _finite(value: float) -> float | None:
    # JSON has no infinity; null stands for it, and `over` says what to think of it.
    return value if math.isfinite(value) else None
