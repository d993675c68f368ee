"""Which of a client's records a model takes, and a mean in which the others count as nothing.

A model may fail at a record: a token that its vocabulary lacks, a label that it has no class for, a check of its own.
An answer that fails for such a record would be an answer without noise. So every record is tried once, by itself, when
an offer comes, with first weights that are no server's. What is found stays on this machine. In a round a made-up
record of weight 0 stands in for each that the model does not take, so that a round costs the same with it as without.

Where a server finds parameters at which a model fails for some record all the same, that record counts as nothing too,
in the one pass that there is (`parameters.clipped_mean`), and the noise leaves as ever. What a record adds to a mean is
then still its own affair, and no more is computed than without it.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from jsam.errors import JsamError
from jsam.files import make_folder, write_atomically
from jsam.training.clipping import cross_entropy
from jsam.training.clipping.capture import watched_losses
from jsam.training.clipping.isolation import copied
from jsam.training.clipping.rowwise import is_rowwise
from jsam.training.clipping.sample_gradients import begin, generators_kept
from jsam.training.federated import parameters as vectors
from jsam.training.models import build_model

Mask = NDArray[np.bool_]

logger = logging.getLogger(__name__)


class RecordFiles(Protocol):
    """A client's records, the file that they are in, and a folder for what is found out about them."""

    @property
    def data(self) -> Path: ...
    @property
    def ledger(self) -> Path: ...
    def records(self) -> tuple[NDArray[Any], NDArray[np.int64]]: ...


def fit_records(files: RecordFiles, model_name: str) -> Mask:
    """Which records the model takes, as far as its first weights tell. Tried once, then kept beside the books."""
    inputs, targets = files.records()
    model = build_model(model_name, 0).train()
    if is_rowwise(model, inputs.ndim) and inputs.dtype == np.float32:
        # Numbers go through all known modules alike, whatever they are; labels are looked at in every round.
        return np.ones(len(targets), dtype=np.bool_)
    path = files.ledger / "fit" / f"{_key(files, model_name, model)}.npy"
    fit = _stored(path, len(targets))
    if fit is None:
        fit = _tried(inputs, targets, lambda x, y: _forward(model, x, y))
        try:
            make_folder(files.ledger, mode=0o700)
            make_folder(path.parent, mode=0o700)
            write_atomically(path, fit.tobytes())
        except (JsamError, OSError):
            logger.warning("which records fit the model could not be stored; it is found out again next time")
    return fit


def mean_of_fit(
    model_name: str,
    parameters: vectors.Vector,
    inputs: NDArray[Any],
    targets: NDArray[np.int64],
    clip_norm: float,
    fit: Mask,
) -> NDArray[np.float64]:
    """`parameters.clipped_mean` of all records, in which those that are not fit count as nothing; it does not fail for
    a record's sake. What it raises for want of memory hangs on the number and shape of records, which the server knows.
    """
    try:
        return vectors.clipped_mean(model_name, parameters, *_replaced(inputs, targets, fit), clip_norm)
    except MemoryError:
        raise
    except Exception:
        logger.exception("a round failed for no record's sake; noise alone is released")
        return np.zeros(len(parameters))


def _replaced(inputs: NDArray[Any], targets: NDArray[np.int64], fit: Mask) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """A made-up record, with a label that counts as nothing, for each that is not fit."""
    made_up = vectors.made_up_records(inputs.shape[1:], inputs.dtype.str).numpy()[0]
    kept = fit.reshape(-1, *[1] * (inputs.ndim - 1))
    labels = fit.reshape(-1, *[1] * (targets.ndim - 1))
    return np.where(kept, inputs, made_up), np.where(labels, targets, -1)


def _forward(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    with generators_kept(x.device), torch.no_grad():
        begin(0, x.device)
        watched_losses(copied(model), x, y, cross_entropy)


def _tried(
    inputs: NDArray[Any], targets: NDArray[np.int64], run: Callable[[torch.Tensor, torch.Tensor], object]
) -> Mask:
    """For which records `run` does not raise, each by itself."""
    taken = np.ones(len(targets), dtype=np.bool_)
    for i in range(len(targets)):
        try:
            run(torch.from_numpy(inputs[i : i + 1]), torch.from_numpy(targets[i : i + 1]))
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a model raises
            logger.debug("record %d: %s", i, error)
            taken[i] = False
    return taken


def _key(files: RecordFiles, model_name: str, model: nn.Module) -> str:
    """Other data, or another model under the same name, are tried anew."""
    data = files.data.stat()
    known = f"{model_name}|{data.st_size}|{data.st_mtime_ns}|{model}"
    return hashlib.sha256(known.encode() + vectors.flattened(model).tobytes()).hexdigest()


def _stored(path: Path, count: int) -> Mask | None:
    try:
        stored = path.read_bytes()
    except OSError:
        return None
    mask = np.frombuffer(stored, dtype=np.uint8)
    return mask.astype(np.bool_) if len(mask) == count else None
