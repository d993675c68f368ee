"""Private federated training under a contract: data, models, clipping and the loop.

    task = TaskSpec(dataset="mnist", num_clients=100, similarity=50).build()
    train(contract, task, TrainingSettings(rounds=100), "runs/a")
    settle("runs/a").kept

Names are loaded when they are first used, so that settling a ledger or dealing out data does not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jsam.mechanism.contract_files import load_contract
    from jsam.runs.publishing import publish
    from jsam.runs.settings import TrainingSettings
    from jsam.runs.settlement import Settlement, settle
    from jsam.training.data import dataset_from_arrays, load_dataset
    from jsam.training.learning_rate import with_fitted_step
    from jsam.training.partition import Partition
    from jsam.training.recorded_run import RunResult, resume, train
    from jsam.training.task import Task, TaskSpec

_HOMES = {
    "load_contract": "jsam.mechanism.contract_files",
    "dataset_from_arrays": "jsam.training.data",
    "load_dataset": "jsam.training.data",
    "RunResult": "jsam.training.recorded_run",
    "resume": "jsam.training.recorded_run",
    "train": "jsam.training.recorded_run",
    "Partition": "jsam.training.partition",
    "publish": "jsam.runs.publishing",
    "TrainingSettings": "jsam.runs.settings",
    "Settlement": "jsam.runs.settlement",
    "settle": "jsam.runs.settlement",
    "Task": "jsam.training.task",
    "TaskSpec": "jsam.training.task",
    "with_fitted_step": "jsam.training.learning_rate",
}

__all__ = [
    "Partition",
    "RunResult",
    "Settlement",
    "Task",
    "TaskSpec",
    "TrainingSettings",
    "dataset_from_arrays",
    "load_contract",
    "load_dataset",
    "publish",
    "resume",
    "settle",
    "train",
    "with_fitted_step",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
