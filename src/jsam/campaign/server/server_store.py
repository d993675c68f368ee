"""The server's own folder: enough to go on after a kill at any moment, and to settle afterwards.

It is a run's folder like `jsam simulate` makes (config, contract, schedule, ledger, metrics, model), and besides:

published.json    what was published, before the first question
reports.json      what clients reported; once it is there nobody is asked again
rejected.json     why other answers could not be used, by name or node
nodes.json        which node gave which name
offer-1.json      the plan as it was first offered, before it was; offer-2.json: the one after declines
agreement.json    who accepted which terms and who declined; once it is there nothing is offered again
checkpoint.npz    parameters, momentum and the number of rounds that were applied
replies/          the replies to the round that is being asked for, each stored before the next is waited for
books.json        each client's account, as the server sees it
outcome.json      how the last run on this store ended
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import json
import logging
import platform
import shutil
import time
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jsam.campaign.campaign_rules import CampaignRules
from jsam.campaign.messages import Vector
from jsam.campaign.server.answers import UnusableError, checked_report, plain
from jsam.campaign.server.storage import Agreement, ModelState, Report
from jsam.campaign.terms import Terms
from jsam.errors import InputError, JsamError
from jsam.files import keep_private, make_folder, read_json, write_atomically
from jsam.mechanism.contract import Contract
from jsam.mechanism.contract_files import contract_from_dict, load_contract, storable
from jsam.privacy import Ledger, Schedule
from jsam.runs.noise_plan import NoisePlan
from jsam.runs.run_folder import RUN_FORMAT, MetricsFile, RunFolder, write_json

logger = logging.getLogger(__name__)


class ServerStore:
    """Files of one campaign on the server; whoever holds its ledger open is its only writer."""

    def __init__(self, folder: Path | str) -> None:
        self.path = Path(folder)
        self.run = RunFolder(self.path)

    def begin(self, rules: CampaignRules) -> None:
        """A new campaign, or the one that is here already, which must be the same; closed to other users either way."""
        keep_private(self.path, "store")
        stored = self._read_or_none("published.json")
        if stored is not None:
            now = rules.as_dict()
            # Some settings are left out where they are as usual, so those that were published are looked at too.
            odd = [name for name in (*now, *stored) if stored.get(name) != now.get(name)]
            if odd:
                raise InputError(
                    f"store {self.path} holds a campaign with {odd[0]} {stored.get(odd[0])!r}, not "
                    f"{now.get(odd[0])!r}; what was published cannot change"
                )
            return
        try:
            make_folder(self.path)
        except OSError as error:
            raise JsamError(f"store {self.path} cannot be made: {error.strerror}") from error
        write_json(self.path / "published.json", rules.as_dict())

    @property
    def outcome(self) -> Path:
        """There once a run on this store has ended, well or not."""
        return self.path / "outcome.json"

    @contextlib.contextmanager
    def telling_the_end(self) -> Iterator[None]:
        """Leave word of how the run ended, for those who cannot see Flower's status; a kill leaves none."""
        self.outcome.unlink(missing_ok=True)
        try:
            yield
        except BaseException as error:
            text = str(error) if isinstance(error, JsamError) else type(error).__name__
            write_json(self.outcome, {"status": "stopped", "text": text})
            raise
        write_json(self.outcome, {"status": "complete", "text": ""})

    @contextlib.contextmanager
    def writing(self, wait: float = 30.0) -> Iterator[Ledger]:
        """The server's ledger; its lock keeps a second server off the same campaign.

        A server whose SuperLink was killed takes some seconds to notice and end, so this waits a while for the lock.
        """
        deadline = time.monotonic() + wait
        while True:
            try:
                ledger = Ledger(self.run.ledger)
                break
            except InputError:
                raise
            except JsamError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.2)
        with ledger:
            yield ledger

    def reports(self, rules: CampaignRules) -> dict[str, Report] | None:
        """What clients reported; a report that would not be taken today (of an earlier version) is left out."""
        stored = self._read_or_none("reports.json")
        if stored is None:
            return None
        reports = {}
        for name, values in stored.items():
            try:
                reports[name] = checked_report(name, values["sensitivity"], values["samples"], rules)
            except UnusableError as error:
                logger.warning("the stored report of %s is left out: %s", plain(name), error)
            except (KeyError, TypeError) as error:
                raise JsamError(f"{self.path / 'reports.json'} is damaged; restore it from a copy") from error
        return reports

    def rejected(self) -> dict[str, str]:
        """Why answers to the first question could not be used."""
        return self._read_or_none("rejected.json") or {}

    def save_reports(self, reports: Mapping[str, Report], rejected: Mapping[str, str] | None = None) -> None:
        """Write the reports last, so that a store that has them is complete."""
        if rejected:
            write_json(self.path / "rejected.json", rejected)
        write_json(self.path / "reports.json", {name: dataclasses.asdict(report) for name, report in reports.items()})

    def nodes(self) -> dict[str, int]:
        return self._read_or_none("nodes.json") or {}

    def save_nodes(self, nodes: Mapping[str, int]) -> None:
        write_json(self.path / "nodes.json", nodes)

    def draft(self, rules: CampaignRules, attempt: int) -> Agreement | None:
        """A plan as it was offered, if it was."""
        name = f"offer-{attempt}.json"
        stored = self._read_or_none(name)
        if stored is None:
            return None
        contract = contract_from_dict(stored["contract"], name)
        schedule = Schedule(num_clients=contract.num_clients, draws=np.array(stored["draws"]))
        return _agreement(rules, contract, schedule, stored)

    def save_draft(self, attempt: int, draft: Agreement) -> None:
        plan = {"contract": storable(draft.contract), "draws": draft.schedule.draws.tolist()}
        write_json(self.path / f"offer-{attempt}.json", {**plan, **_as_dict(draft)})

    def agreement(self, rules: CampaignRules) -> Agreement | None:
        stored = self._read_or_none("agreement.json")
        if stored is None:
            return None
        return _agreement(rules, load_contract(self.run.contract), Schedule.load(self.run.schedule), stored)

    def save_agreement(self, rules: CampaignRules, agreement: Agreement, environment: Mapping[str, str]) -> None:
        """agreement.json last: where it is, the rest is."""
        write_json(self.run.contract, storable(agreement.contract))
        agreement.schedule.save(self.run.schedule)
        sizes = list(agreement.noise_plan.sizes)
        config = {
            "jsam_run": RUN_FORMAT,
            "settings": rules.training.as_dict(),
            "task": None,
            "data": {
                "dataset": f"model {rules.model}",
                "partition": "each client's own records",
                "num_clients": agreement.contract.num_clients,
                "num_samples": sum(sizes),
                "samples": sizes,
            },
            "environment": {**environment, "threads": 1, "machine": platform.machine()},
        }
        write_json(self.run.config, config)
        write_json(self.path / "agreement.json", _as_dict(agreement))

    def state(self) -> ModelState | None:
        path = self.path / "checkpoint.npz"
        if not path.exists():
            return None
        try:
            with np.load(path, allow_pickle=False) as stored:
                velocity = stored["velocity"]
                return ModelState(
                    rounds_done=int(stored["rounds_done"]),
                    parameters=stored["parameters"],
                    velocity=velocity if velocity.size else None,
                    answered=json.loads(str(stored["answered"])),
                    metrics_size=int(stored["metrics_size"]),
                )
        except (OSError, ValueError, KeyError) as error:
            raise JsamError(f"{path} is damaged; restore it from a copy") from error

    def save_state(self, state: ModelState) -> None:
        velocity = np.zeros(0, dtype=np.float32) if state.velocity is None else state.velocity
        _write_arrays(
            self.path / "checkpoint.npz",
            rounds_done=state.rounds_done,
            parameters=state.parameters,
            velocity=velocity,
            answered=np.array(json.dumps(state.answered)),
            metrics_size=state.metrics_size,
        )

    def replies(self, round: int) -> dict[str, Vector]:
        """Replies to this round that had arrived before a kill; one that cannot be read is asked for again."""
        releases = {}
        for path in sorted(self._round(round).glob("*.npz")):
            try:
                with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
                    releases[str(stored["client"])] = stored["release"]
            except (OSError, ValueError, LookupError, TypeError, EOFError, MemoryError, zipfile.BadZipFile) as error:
                logger.warning("the stored reply %s cannot be read (%s)", path, type(error).__name__)
        return releases

    def keep_reply(self, round: int, client: str, release: Vector) -> None:
        folder = self._round(round)
        make_folder(folder.parent)
        make_folder(folder)
        name = hashlib.sha256(client.encode()).hexdigest()[:32]
        _write_arrays(folder / f"{name}.npz", client=np.array(client), release=release)

    def drop_replies(self) -> None:
        """They are in the model now."""
        shutil.rmtree(self.path / "replies", ignore_errors=True)

    def metrics(self, size: int) -> MetricsFile:
        """The records of rounds, cut back to `size` bytes."""
        return MetricsFile(self.run.metrics, size=size)

    def read_metrics(self) -> list[dict[str, Any]]:
        return self.run.read_metrics()

    def finish(self, model: bytes, summary: Mapping[str, Any]) -> None:
        """The trained model, and in a few numbers what it is worth."""
        write_atomically(self.run.model, model)
        write_json(self.run.summary, summary)

    def books(self) -> dict[str, Any]:
        """Empty before anything was agreed on."""
        return self._read_or_none("books.json") or {}

    def save_books(self, books: Mapping[str, Any]) -> None:
        write_json(self.path / "books.json", books)

    def _round(self, round: int) -> Path:
        return self.path / "replies" / str(round)

    def _read_or_none(self, name: str) -> dict[str, Any] | None:
        path = self.path / name
        return read_json(path, error=JsamError, advice="restore it from a copy") if path.exists() else None


def _write_arrays(path: Path, **arrays: Any) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    write_atomically(path, buffer.getvalue())


def _as_dict(agreement: Agreement) -> dict[str, Any]:
    return {
        "samples": list(agreement.noise_plan.sizes),
        "terms": {name: terms.as_dict() for name, terms in agreement.terms.items()},
        "declined": dict(agreement.declined),
    }


def _agreement(rules: CampaignRules, contract: Contract, schedule: Schedule, stored: Mapping[str, Any]) -> Agreement:
    noise_plan = NoisePlan.of(contract, rules.training, tuple(stored["samples"]), schedule)
    terms = {name: Terms.from_dict(values) for name, values in stored["terms"].items()}
    return Agreement(noise_plan=noise_plan, terms=terms, declined=stored["declined"])
