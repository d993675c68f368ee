"""A run's folder: what is in it, written so that a kill at any moment loses nothing that was promised.

config.json is written last of the first files: a folder that has it can be resumed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jsam.errors import JsamError, RunFolderError
from jsam.files import private, read_json, read_json_lines, write_atomically

RUN_FORMAT = 1


class RunFolder:
    """Names of the files, and the few ways to read and write them."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.config = self.path / "config.json"
        self.contract = self.path / "contract.json"
        self.rules = self.path / "rules.toml"  # not there where a stored contract was trained
        self.schedule = self.path / "schedule.jsonl"
        self.metrics = self.path / "metrics.jsonl"
        self.ledger = self.path / "ledger.jsonl"
        self.checkpoint = self.path / "checkpoint.pt"
        self.server_checkpoint = self.path / "checkpoint.npz"  # of a campaign, whose store is a run's folder too
        self.model = self.path / "model.pt"
        self.noise_key = self.path / "noise.key"
        self.summary = self.path / "summary.json"
        self.audit = self.path / "audit.json"
        self.report = self.path / "report.html"

    def refuse_existing(self) -> None:
        """A folder that holds a run already is left alone."""
        if self.config.exists():
            raise RunFolderError(
                f"{self.path} holds a run already; go on with it by jsam resume, or choose another folder"
            )
        # Without config.json no run has begun, so these can only be somebody else's, or of a run whose config is lost.
        foreign = next(
            (file for file in (self.ledger, self.metrics, self.checkpoint, self.model) if file.exists()), None
        )
        if foreign is not None:
            raise RunFolderError(f"{foreign} is there but no config.json beside it; choose another folder")

    def create(self) -> None:
        """Make the folder, if it does not hold a run."""
        self.refuse_existing()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunFolderError(f"run folder {self.path} cannot be made: {error.strerror}") from error

    def read_config(self) -> dict[str, Any]:
        """The stored configuration, of this format."""
        if not self.config.is_file():
            raise RunFolderError(f"{self.path} is not a run folder: it has no config.json; {self._runs_below()}")
        stored = self.read(self.config)
        if stored.get("jsam_run") != RUN_FORMAT:
            raise RunFolderError(
                f"{self.config} is of run format {stored.get('jsam_run')!r}; this version reads {RUN_FORMAT}"
            )
        for name in ("settings", "data", "environment"):
            if not isinstance(stored.get(name), dict):
                raise RunFolderError(f"{self.config} is damaged: it lacks the object {name!r}")
        return stored

    def _runs_below(self) -> str:
        """What to name instead: the demo, or a script of many runs, puts each into a folder of its own."""
        runs = [file.parent for file in sorted(self.path.glob("*/config.json"))]
        if not runs:
            return "jsam simulate makes one"
        others = ("", f", and so is {runs[-1]}", f", and so are {len(runs) - 1} more beside it")
        return f"{runs[0]} is one{others[min(len(runs), 3) - 1]}"

    def read(self, path: Path) -> dict[str, Any]:
        """One JSON object."""
        return read_json(path, error=RunFolderError)

    def fingerprint(self, config: Mapping[str, Any]) -> str:
        """Configuration, contract and schedule in one word: a checkpoint must carry the same."""
        digest = hashlib.blake2b(json.dumps(config, sort_keys=True).encode(), digest_size=16)
        for path in (self.contract, self.schedule):
            try:
                digest.update(path.read_bytes())
            except OSError as error:
                raise RunFolderError(f"{path} cannot be read: {error.strerror}") from error
        return digest.hexdigest()

    def read_metrics(self) -> list[dict[str, Any]]:
        """One record for each round whose line is whole."""
        return [record for record in read_json_lines(self.metrics) if isinstance(record.get("round"), int)]

    def rounds_applied(self) -> int:
        """At least so many rounds have changed the model: a metrics line is written after that."""
        return max((record["round"] for record in self.read_metrics()), default=0)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Whole or not at all, the same content always the same bytes."""
    write_atomically(path, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())


class MetricsFile:
    """metrics.jsonl: one line a round, cut back to a checkpoint's length when a run is resumed."""

    def __init__(self, path: Path, *, size: int = 0) -> None:
        self.path = path
        with self._translated():
            self._file = open(path, "ab", opener=private)  # noqa: SIM115 - closed by close()
            if os.fstat(self._file.fileno()).st_size < size:
                self._file.close()
                raise RunFolderError(f"{path} is shorter than the checkpoint says: it was changed; nothing is resumed")
            os.ftruncate(self._file.fileno(), size)

    def add(self, record: Mapping[str, Any]) -> None:
        with self._translated():
            self._file.write((json.dumps(record, allow_nan=False, separators=(",", ":")) + "\n").encode())
            self._file.flush()

    def sync(self) -> int:
        """Everything so far on disk; its length."""
        with self._translated():
            os.fsync(self._file.fileno())
            return os.fstat(self._file.fileno()).st_size

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise JsamError(
                f"{self.path} cannot be written ({error.strerror}); the run can be resumed once that is mended"
            ) from error

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()

    def __enter__(self) -> MetricsFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
