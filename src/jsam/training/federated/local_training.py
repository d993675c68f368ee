"""What a campaign's client computes with torch: clipped gradients of installed models on its own records.

This module has the functions of `jsam.campaign.client.answering.LocalTraining`, which says what each of them does.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from jsam.errors import InputError
from jsam.training.federated import fit_records, parameters
from jsam.training.federated.fit_records import RecordFiles
from jsam.training.federated.parameters import check_trains, fits
from jsam.training.models import check_model

__all__ = ["check_trains", "clipped_mean", "fits", "knows", "measured", "try_records"]

logger = logging.getLogger(__name__)


def knows(model: str) -> bool:
    """Whether a model of this name is installed here."""
    try:
        check_model(model)
    except InputError:
        return False
    return True


def try_records(model: str, files: RecordFiles) -> None:
    """Find out which records the model does not take, and say in this machine's own log how many."""
    inputs, targets = files.records()
    known, fit = parameters.known_labels(model, inputs, targets), fit_records.fit_records(files, model)
    words = {"have labels that model %s has no class for": ~known, "cannot be computed by model %s": known & ~fit}
    for what, odd in words.items():
        if odd.any():
            message = f"%d of %d records {what}; they will count as nothing"
            logger.warning(message, int(odd.sum()), len(targets), model)


def clipped_mean(model: str, vector: parameters.Vector, files: RecordFiles, clip_norm: float) -> NDArray[np.float64]:
    """The mean of all records' clipped gradients, before noise. It does not fail for any record's sake."""
    fit = fit_records.fit_records(files, model)
    return fit_records.mean_of_fit(model, vector, *files.records(), clip_norm, fit)


def measured(
    model: str, kind: str, shape: tuple[int, ...], labels: tuple[int, ...], now: Callable[[], float] = time.monotonic
) -> float:
    """Seconds that a reply's computation takes on made-up records and with a made-up model.

    `kind` is numpy's name of the inputs' type; `shape` and `labels` are the shapes of all inputs and all targets.
    """
    inputs = np.random.default_rng(0).random(shape, dtype=np.float32).astype(np.dtype(kind), copy=False)
    targets = np.zeros(labels, dtype=np.int64)
    # With all that is built for it: under a SuperNode each message comes to a new process.
    began = now()
    vector = parameters.flattened(parameters.initial_model(model, 0))
    fit_records.mean_of_fit(model, vector, inputs, targets, 1.0, np.ones(len(targets), dtype=np.bool_))
    return now() - began
