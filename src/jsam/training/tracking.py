"""What ties a checkpoint to its run, and where metrics go besides their file."""

from __future__ import annotations

import hashlib
import importlib
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from jsam.errors import NotSupportedError
from jsam.privacy import read_ledger
from jsam.training.errors import RunFolderError
from jsam.training.records import RunFolder


class Tracker(Protocol):
    """Sees every line of metrics.jsonl as it is written."""

    def record(self, metrics: Mapping[str, Any]) -> None: ...


class TensorBoard:
    """All numbers of a run as TensorBoard scalars, in a folder of their own."""

    def __init__(self, folder: Path | str) -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                module = importlib.import_module("torch.utils.tensorboard")
        except ImportError:
            raise NotSupportedError("--tensorboard needs tensorboard: pip install tensorboard") from None
        self._writer: Any = module.SummaryWriter(log_dir=str(folder))

    def record(self, metrics: Mapping[str, Any]) -> None:
        for name, value in metrics.items():
            if name != "round" and isinstance(value, int | float):
                self._writer.add_scalar(name, value, metrics["round"])
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def check_recorded(folder: RunFolder, rounds_done: int) -> None:
    """Every round that a checkpoint has applied must be in the ledger, or spent privacy would be forgotten."""
    releases = read_ledger(folder.ledger) if folder.ledger.exists() else []
    recorded = {release.round for release in releases}
    lost = next((index for index in range(rounds_done) if index not in recorded), None)
    if lost is not None:
        raise RunFolderError(
            f"{folder.ledger} lacks round {lost}, which the checkpoint beside it has applied; restore it to resume"
        )


def fingerprint_of(config: Mapping[str, Any], folder: RunFolder) -> str:
    """Configuration, contract and schedule in one word: a checkpoint must carry the same."""
    digest = hashlib.blake2b(json.dumps(config, sort_keys=True).encode(), digest_size=16)
    for path in (folder.contract, folder.schedule):
        try:
            digest.update(path.read_bytes())
        except OSError as error:
            raise RunFolderError(f"{path} cannot be read: {error.strerror}") from error
    return digest.hexdigest()
