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
from jsam.training.preparation import Preparation
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


def check_recorded(folder: RunFolder, preparation: Preparation, rounds_done: int) -> None:
    """Every release that a checkpoint has applied must be in the ledger, or spent privacy would be forgotten.

    Of a run that is over only whole rounds are looked for: the report on it names every single difference.
    """
    releases = read_ledger(folder.ledger) if folder.ledger.exists() else ()
    recorded = {(release.round, release.client): release for release in releases}
    rounds = {release.round for release in releases}
    goes_on = rounds_done < preparation.settings.rounds
    for index in range(rounds_done):
        due = preparation.releases(preparation.schedule.round(index)) if goes_on else ()
        other = next((release for release in due if recorded.get((index, release.client)) != release), None)
        if index in rounds and other is None:
            continue
        wrong = f"lacks round {index}" if index not in rounds else f"is not as it was in round {index}"
        raise RunFolderError(
            f"{folder.ledger} {wrong}, which the checkpoint beside it has applied; restore it to resume"
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
