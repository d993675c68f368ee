"""The task of a run: data, partition, first weights. Data sets are loaded once for all runs."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from jsam.privacy import derived_seed, generator
from jsam.training.data import Dataset, load_dataset
from jsam.training.task import Task, TaskSpec
from reproduction.config import RunConfig

if TYPE_CHECKING:
    from torch import nn

HELD_OUT = 5000


@lru_cache(maxsize=4)
def dataset_of(name: str, held_out: bool, folder: Path | None = None) -> Dataset:
    """The data set; with `held_out`, 5,000 training images stand in for the test set and are not trained on."""
    if not held_out:
        return load_dataset(name, folder)
    whole = dataset_of(name, False, folder)
    order = generator(0, "held out").permutation(whole.num_train)
    kept, aside = np.sort(order[HELD_OUT:]), np.sort(order[:HELD_OUT])
    return Dataset(
        name=f"{name}-held-out",
        train_inputs=whole.train_inputs[kept],
        train_targets=whole.train_targets[kept],
        test_inputs=whole.train_inputs[aside],
        test_targets=whole.train_targets[aside],
        num_classes=whole.num_classes,
    )


@lru_cache(maxsize=64)
def _task(dataset: str, num_clients: int, similarity: float, seed: int, held_out: bool) -> Task:
    data = dataset_of(dataset, held_out)
    spec = TaskSpec(dataset=dataset, num_clients=num_clients, similarity=similarity, seed=seed)
    # Not `spec=spec`: a task on held-out images is not the one that the spec would build.
    return Task(dataset=data, partition=spec.split(data), model=first_model(dataset, seed))


def first_model(dataset: str, seed: int) -> nn.Module:
    """The model of a run, with the weights that it begins with."""
    from jsam.training.models import build_model

    return build_model(dataset, derived_seed(seed, "model"))


def task_of(config: RunConfig) -> Task:
    """Runs that differ in mechanism, cost or noise only share one task."""
    return _task(config.dataset, config.num_clients, config.similarity, config.seed, config.held_out)
