"""How far a run got, by all its files but the ledger: who empties the ledger would have to change all of them alike.

Needs no torch: of a checkpoint only two entries are read, and nothing in it is executed.
"""

from __future__ import annotations

import pickletools
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jsam.runs.run_folder import RunFolder
from jsam.runs.settings import TrainingSettings

_MEMO = ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE")
_LARGEST = 2**24


class Evidence:
    """`applied` rounds have changed the model, by whichever file says most; `problems` are where files disagree."""

    def __init__(self, run: RunFolder, config: Mapping[str, Any], settings: TrainingSettings) -> None:
        self.run, self.rounds, self.fingerprint = run, settings.rounds, run.fingerprint(config)
        # What each file says, gathered while it is judged.
        self.said: dict[str, int] = {}
        self.problems = tuple(self._judged())
        self.applied = max(self.said.values(), default=0)

    def _judged(self) -> Iterator[str]:
        yield from self._of_checkpoints()
        yield from self._of_the_end()
        yield from self._of_metrics()
        for name, count in self.said.items():
            if count > self.rounds:
                yield f"{name} says that {count} rounds are done; config.json has {self.rounds}"

    def _of_checkpoints(self) -> Iterator[str]:
        for path, facts in ((self.run.checkpoint, _torch_facts), (self.run.server_checkpoint, _numpy_facts)):
            if not path.exists():
                continue
            try:
                checkpoint = facts(path)
                self.said[path.name] = int(checkpoint["rounds_done"])
            except (OSError, LookupError, ValueError, TypeError, zipfile.BadZipFile, StopIteration) as error:
                yield f"{path.name} is damaged: how many rounds it has applied cannot be told ({type(error).__name__})"
                continue
            yield from self._changed_since(path, checkpoint.get("fingerprint"))

    def _of_the_end(self) -> Iterator[str]:
        if self.run.summary.exists():
            summary = self.run.read(self.run.summary)
            rounds = summary.get("rounds")
            if isinstance(rounds, int):
                self.said[self.run.summary.name] = rounds
            if rounds != self.rounds:
                yield f"summary.json is of {rounds} rounds; config.json has {self.rounds}"
            yield from self._changed_since(self.run.summary, summary.get("fingerprint"))
        if self.run.model.exists():  # it is written once the last round is done
            self.said[self.run.model.name] = self.rounds

    def _of_metrics(self) -> Iterator[str]:
        if not self.run.metrics.exists():
            return
        done, most = self.run.rounds_applied(), max(self.said.values(), default=0)
        # They are on disk before a checkpoint is, so they may be ahead of it and never behind.
        if done < most:
            name = next(name for name, count in self.said.items() if count == most)
            yield f"metrics.jsonl ends with round {done}; {name} says that {most} are done"
        self.said[self.run.metrics.name] = done

    def _changed_since(self, path: Path, fingerprint: object) -> Iterator[str]:
        if fingerprint is not None and fingerprint != self.fingerprint:
            yield f"config.json, contract.json or schedule.jsonl has changed since {path.name} was written"


def _torch_facts(path: Path) -> dict[str, Any]:
    """The number of rounds and the fingerprint, from the opcodes of the pickle inside."""
    with zipfile.ZipFile(path) as archive:
        inside = next(item for item in archive.infolist() if item.filename.endswith("/data.pkl"))
        if inside.file_size > _LARGEST:
            raise ValueError("too large")
        content = archive.read(inside)
    entries: dict[str, Any] = {}
    name = ""
    for code, value, _ in pickletools.genops(content):
        if code.name in _MEMO:
            continue
        if name:
            entries[name] = value
        name = value if value in ("rounds_done", "fingerprint") else ""
    return entries


def _numpy_facts(path: Path) -> dict[str, Any]:
    """The number of rounds in the checkpoint of a campaign's server."""
    with np.load(path, allow_pickle=False) as stored:
        return {"rounds_done": stored["rounds_done"]}
