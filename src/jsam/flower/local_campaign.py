"""A campaign in a federation on this machine: data dealt out, processes, a run, and everybody's accounts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsam.errors import InputError, JsamError
from jsam.flower.client_files import client_folder, write_client
from jsam.flower.identity import Certificates
from jsam.flower.local import LocalFederation, RunStatus
from jsam.flower.published import Published
from jsam.flower.server_store import ServerStore
from jsam.flower.statement import Statement
from jsam.mechanism.priors import parse_prior
from jsam.training.data import load_dataset
from jsam.training.reports import draw_sensitivities
from jsam.training.task import TaskSpec

Progress = Callable[[str, dict[str, Any]], None]


@dataclass(frozen=True, kw_only=True)
class LocalResult:
    """How a run ended, by Flower's own word, and what the clients' and the server's books say."""

    run: RunStatus
    store: Path
    statements: Mapping[str, Statement | None]
    books: Mapping[str, Any]

    @property
    def kept(self) -> bool:
        """Nobody overspent, by either side's books."""
        sides = [not entry.overspent for entry in self.statements.values() if entry is not None]
        return all(sides) and bool(self.books.get("kept", True))

    def as_dict(self) -> dict[str, Any]:
        return {
            "run_id": self.run.run_id,
            "status": self.run.status,
            "kept": self.kept,
            "store": str(self.store),
            "clients": [_account(name, entry) for name, entry in self.statements.items()],
            "server": dict(self.books),
        }


def _account(name: str, entry: Statement | None) -> dict[str, Any]:
    """A client that sold nothing has no campaign in its ledger."""
    names = ("epsilon_bought", "epsilon_spent", "participations", "releases", "payment")
    if entry is None:
        return {"id": name, **dict.fromkeys(names, 0)}
    return {"id": name, **{field: getattr(entry, field) for field in names}}


def deal_out(
    folder: Path, published: Published, *, clients: int, dataset: str, policy: str | None = None
) -> list[Path]:
    """A folder for each client, with its share of the data and a sensitivity drawn from the prior; the client files."""
    data = load_dataset(dataset)
    split = TaskSpec(dataset=dataset, num_clients=clients, seed=published.seed).split(data)
    sensitivities = draw_sensitivities(parse_prior(published.prior), clients, published.seed)
    return [
        write_client(
            client_folder(folder, k),
            name=f"client-{k}",
            sensitivity=float(sensitivities[k]),
            inputs=data.train_inputs[held],
            targets=data.train_targets[held],
            policy=policy,
        )
        for k, held in enumerate(split.indices)
    ]


def run_local(
    folder: Path,
    published: Published,
    *,
    clients: int,
    dataset: str,
    tls: bool = False,
    policy: str | None = None,
    timeout: float = 3600.0,
    progress: Progress = lambda stage, record: None,
) -> LocalResult:
    """Everything from the first folder to the last statement; all processes have ended when this returns."""
    if clients < 1:
        raise InputError(f"clients is {clients}; it must be at least 1")
    folder = folder.absolute()
    files = deal_out(folder / "clients", published, clients=clients, dataset=dataset, policy=policy)
    names = [f"client-{k}" for k in range(clients)]
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
        values = {**published.as_dict(), "clients": clients, "store": str(store.path), "rebind": not tls}
        if certificates is not None:
            values["keys"] = str(certificates.folder)
        run_id = federation.submit({**values, "dataset": dataset})
        progress("submitted", {"run_id": run_id})
        watch = _Watch(store, progress)
        run = federation.wait(run_id, timeout=timeout, over=watch.over)
        watch.over()
        statements = {name: _own(entries, published) for name, entries in federation.statements().items()}
    if not run.completed:
        raise JsamError(f"the run ended as {run.status}: {_why(store, run)} (logs: {folder / 'logs'})")
    books = json.loads((store.path / "books.json").read_text(encoding="utf-8"))
    return LocalResult(run=run, store=store.path, statements=statements, books=books)


def _own(entries: tuple[Statement, ...], published: Published) -> Statement | None:
    return next((entry for entry in entries if entry.campaign == published.campaign), None)


def _why(store: ServerStore, run: RunStatus) -> str:
    if store.outcome.exists():
        return str(json.loads(store.outcome.read_text(encoding="utf-8")).get("text") or run.details)
    return run.details or "no reason was given"


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
