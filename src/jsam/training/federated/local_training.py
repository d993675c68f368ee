"""What a campaign's client computes with torch: clipped gradients of installed models on its own records."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from jsam.errors import InputError
from jsam.training.federated import fit_records, parameters
from jsam.training.federated.fit_records import RecordFiles
from jsam.training.federated.installed_models import check_model

logger = logging.getLogger(__name__)


class RecordsForm(Protocol):
    """A model's name, and number and form of records: numpy's name of their type, and the shapes of both arrays."""

    @property
    def model(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def labels(self) -> tuple[int, ...]: ...


class InstalledTraining:
    """Fits `jsam.campaign.client.answering.LocalTraining`."""

    def knows(self, model: str) -> bool:
        """Whether a model of this name is installed here."""
        try:
            check_model(model)
        except InputError:
            return False
        return True

    def check(self, model: str, inputs: NDArray[Any]) -> None:
        """Refuse, by `InputError`, a model that cannot be trained on such inputs; looks at no value of them."""
        parameters.check_trains(model, inputs)

    def try_records(self, model: str, files: RecordFiles) -> None:
        """Find out which records the model does not take, and say in this machine's own log how many."""
        inputs, targets = files.records()
        known, fit = parameters.known_labels(model, inputs, targets), fit_records.fit_records(files, model)
        words = {"have labels that model %s has no class for": ~known, "cannot be computed by model %s": known & ~fit}
        for what, odd in words.items():
            if odd.any():
                message = f"%d of %d records {what}; they will count as nothing"
                logger.warning(message, int(odd.sum()), len(targets), model)

    def fits(self, model: str, vector: parameters.Vector) -> bool:
        """Whether these can be the model's parameters."""
        return parameters.fits(model, vector)

    def clipped_mean(
        self, model: str, vector: parameters.Vector, files: RecordFiles, clip_norm: float
    ) -> NDArray[np.float64]:
        """The mean of all records' clipped gradients, before noise. It does not fail for any record's sake."""
        fit = fit_records.fit_records(files, model)
        return fit_records.mean_of_fit(model, vector, *files.records(), clip_norm, fit)


def measured(work: RecordsForm, now: Callable[[], float] = time.monotonic) -> float:
    """Seconds that a reply's computation takes on made-up records and with a made-up model."""
    rng = np.random.default_rng(0)
    inputs = rng.random(work.shape, dtype=np.float32).astype(np.dtype(work.kind), copy=False)
    targets = np.zeros(work.labels, dtype=np.int64)
    # With all that is built for it: under a SuperNode each message comes to a new process.
    began = now()
    vector = parameters.flattened(parameters.initial_model(work.model, 0))
    fit_records.mean_of_fit(work.model, vector, inputs, targets, 1.0, np.ones(len(targets), dtype=np.bool_))
    return now() - began
