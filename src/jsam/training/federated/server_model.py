"""What a campaign's server computes with torch: first parameters, and what a model is worth on test data."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn

from jsam.training.checkpoint import as_bytes
from jsam.training.clipping import cross_entropy
from jsam.training.data import Dataset, load_dataset
from jsam.training.environment import versions
from jsam.training.evaluation import evaluate
from jsam.training.federated.parameters import Vector, flattened, initial_model, put_into
from jsam.training.models import check_model
from jsam.training.round_loop import as_metrics


class InstalledModel:
    """A model that is installed here. Fits `jsam.campaign.server.rounds.ServerModel`."""

    def __init__(self, name: str, *, seed: int, dataset: str = "") -> None:
        """`dataset` names the server's own test data; without it nothing is evaluated."""
        check_model(name)
        self._name, self._seed, self._dataset_name = name, seed, dataset
        self._dataset: Dataset | None = None

    def load(self) -> None:
        """Load the test data, which may be missing."""
        self._dataset = load_dataset(self._dataset_name) if self._dataset_name else None

    def first(self) -> Vector:
        """The parameters before the first round: the same as the simulator's for this seed."""
        return flattened(self._model)

    def environment(self) -> dict[str, str]:
        """The versions of whatever the model's numbers depend on."""
        return versions()

    def evaluate(self, parameters: Vector) -> dict[str, Any]:
        """Accuracy and loss on the test data; empty where there are none."""
        if self._dataset is None:
            return {}
        put_into(self._model, parameters)
        result = evaluate(
            self._model,
            torch.from_numpy(self._dataset.test_inputs),
            torch.from_numpy(self._dataset.test_targets),
            num_classes=self._dataset.num_classes,
            loss=cross_entropy,
        )
        return as_metrics(result)

    def stored(self, parameters: Vector) -> bytes:
        """The content of a file from which torch loads the model's weights."""
        put_into(self._model, parameters)
        return as_bytes(self._model.state_dict())

    @functools.cached_property
    def _model(self) -> nn.Module:
        return initial_model(self._name, self._seed)
