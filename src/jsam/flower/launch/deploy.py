"""A campaign in a federation on this machine: data dealt out, processes, a run, and everybody's accounts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jsam.campaign.campaign_rules import CampaignRules
from jsam.campaign.client.client_files import client_folder, write_client
from jsam.campaign.identity import Certificates
from jsam.campaign.server.server_options import ServerOptions
from jsam.campaign.server.server_store import ServerStore
from jsam.campaign.statement import Statement
from jsam.errors import InputError
from jsam.files import make_folder
from jsam.flower.launch.federation import LocalFederation, RunStatus
from jsam.flower.launch.processes import ProcessError
from jsam.runs.drawn_sensitivities import draw_sensitivities
from jsam.training.data import Dataset, load_dataset
from jsam.training.partition import Partition
from jsam.training.task import TaskSpec

Progress = Callable[[str, dict[str, Any]], None]


@dataclass(frozen=True, kw_only=True)
class LocalResult:
    """How a run ended, by Flower's own word, and what the clients' and the server's books say.

    `failure` says in one line why a run did not come to its end; clients may have spent something all the same.
    """

    run: RunStatus
    store: Path
    statements: Mapping[str, Statement | None]
    books: Mapping[str, Any]
    failure: str | None = None

    @property
    def kept(self) -> bool:
        """Nobody overspent, by either side's books."""
        sides = [not entry.overspent for entry in self.statements.values() if entry is not None]
        return all(sides) and bool(self.books.get("kept", True))

    def as_dict(self) -> dict[str, Any]:
        return {
            "run_id": self.run.run_id,
            "status": self.run.status,
            "failure": self.failure,
            "kept": self.kept,
            "store": str(self.store),
            "clients": [_account(name, entry) for name, entry in self.statements.items()],
            "server": dict(self.books),
        }


def _account(name: str, entry: Statement | None) -> dict[str, Any]:
    """A client that sold nothing has no campaign in its ledger."""
    names = ("samples", "epsilon_bought", "epsilon_spent", "participations", "releases", "payment", "payment_agreed")
    return {"id": name, **{field: 0 if entry is None else getattr(entry, field) for field in names}}


def dealing(dataset: str, *, clients: int, sizes: str | tuple[int, ...] | None = None, seed: int) -> TaskSpec:
    """How data are dealt out to the clients of a federation on this machine."""
    if clients < 1:
        raise InputError(f"clients is {clients}; it must be at least 1")
    return TaskSpec(dataset=dataset, num_clients=clients, sizes=sizes, seed=seed)


@dataclass(frozen=True, kw_only=True, eq=False)
class Shares:
    """What each client of a federation on this machine gets: its records and a sensitivity drawn from the prior."""

    rules: CampaignRules
    dataset_name: str
    dataset: Dataset
    split: Partition
    sensitivities: NDArray[np.float64]

    @classmethod
    def deal(
        cls, rules: CampaignRules, *, clients: int, dataset: str, sizes: str | tuple[int, ...] | None = None
    ) -> Shares:
        """Load the data and split them, once; `sizes` as in a `TaskSpec`.

        Data that cannot be dealt out to so many clients are refused, and a mechanism that cannot plan for them
        (fsbm-9 for three).
        """
        data, spec = load_dataset(dataset), dealing(dataset, clients=clients, sizes=sizes, seed=rules.rules.seed)
        return cls.of(rules, dataset, data, spec.split(data))

    @classmethod
    def of(cls, rules: CampaignRules, name: str, data: Dataset, split: Partition) -> Shares:
        """The same of data that are loaded and split already; `name` is that of the data set."""
        sensitivities = draw_sensitivities(rules.rules.prior_of_all(), split.num_clients, rules.rules.seed)
        market, mechanism = rules.rules.market(sensitivities), rules.rules.mechanism_at(1.0)
        mechanism.rule(len(mechanism.active(market)))
        return cls(rules=rules, dataset_name=name, dataset=data, split=split, sensitivities=sensitivities)

    @property
    def names(self) -> list[str]:
        return [f"client-{k}" for k in range(len(self.sensitivities))]

    def write(self, folder: Path, policy: str | None = None) -> list[Path]:
        """A folder for each client; the client files."""
        make_folder(folder)
        return [
            write_client(
                client_folder(folder, k),
                name=name,
                sensitivity=float(self.sensitivities[k]),
                inputs=self.dataset.train_inputs[held],
                targets=self.dataset.train_targets[held],
                policy=policy,
            )
            for k, (name, held) in enumerate(zip(self.names, self.split.indices, strict=True))
        ]


def run_local(
    folder: Path,
    shares: Shares,
    *,
    tls: bool = False,
    policy: str | None = None,
    limit: float | None = None,
    progress: Progress = lambda stage, record: None,
) -> LocalResult:
    """Everything from the first folder to the last statement; all processes have ended when this returns.

    After `limit` seconds a run that was submitted is given up; by default after all that the server itself may wait.
    """
    if limit is not None and not 0 < limit < float("inf"):
        raise InputError(f"limit is {limit:g} s; it must be finite and above 0")
    folder, rules, names = folder.absolute(), shares.rules, shares.names
    clients = len(names)
    files = shares.write(folder / "clients", policy)
    certificates = Certificates.make(folder / "certificates", names) if tls else None
    store = ServerStore(folder / "server")
    with LocalFederation(folder, certificates=certificates) as federation:
        progress("superlink", {"port": federation.port})
        for name, file in zip(names, files, strict=True):
            if tls:
                federation.register(name)
            federation.add_node(name, file)
        progress("nodes", {"clients": clients})
        # Without keys a node that restarts is a new node, so only then may a name move.
        values = {**rules.as_dict(), "clients": clients, "store": str(store.path), "rebind": not tls}
        if certificates is not None:
            values["keys"] = str(certificates.folder)
        run_id = federation.submit({**values, "dataset": shares.dataset_name})
        progress("submitted", {"run_id": run_id})
        watch = _Watch(store, progress)
        seconds = longest(rules, clients) if limit is None else limit
        try:
            run = federation.wait(run_id, timeout=seconds, over=watch.over)
        except ProcessError as error:
            run = RunStatus(run_id=run_id, status="lost", details=str(error))
        watch.over()
    # Now that the last process has ended nobody's books change any more.
    statements = {
        name: next((entry for entry in entries if entry.campaign == rules.campaign), None)
        for name, entries in federation.statements().items()
    }
    failure = None
    if not run.completed:
        if run.status.startswith("finished") or run.status == "lost":
            why = f"the run ended as {run.status}: {_why(store, run)}"
        else:
            by = "" if limit is None else " (--limit)"
            why = f"given up after {seconds:g} s{by}; the run was still {run.status}"
        failure = f"{why} (logs: {folder / 'logs'})"
    return LocalResult(run=run, store=store.path, statements=statements, books=store.books(), failure=failure)


def longest(rules: CampaignRules, clients: int) -> float:
    """Seconds after which a server with the usual timeouts has certainly given up by itself."""
    usual = ServerOptions(clients=clients, store="-")
    agreement = usual.wait_seconds + usual.elicit_seconds + 4 * usual.offer_seconds
    return agreement + rules.training.rounds * usual.round_seconds + 60.0


def _why(store: ServerStore, run: RunStatus) -> str:
    outcome = json.loads(store.outcome.read_text(encoding="utf-8")) if store.outcome.exists() else {}
    return str(outcome.get("text") or run.details or "no reason was given")


class _Watch:
    """Progress read off the server's store while the run goes on."""

    def __init__(self, store: ServerStore, progress: Progress) -> None:
        self._store, self._progress = store, progress
        self._stages, self._rounds = ["reports", "agreement"], 0

    def over(self) -> bool:
        while self._stages and (self._store.path / f"{self._stages[0]}.json").exists():
            self._progress(self._stages.pop(0), {})
        records = self._store.run.read_metrics()
        for record in records[self._rounds :]:
            self._progress("round", record)
        self._rounds = len(records)
        return self._store.outcome.exists()
