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
    from jsam.mechanism.contract_files import load_contract as load_contract
    from jsam.runs.publishing import publish as publish
    from jsam.runs.settings import TrainingSettings as TrainingSettings
    from jsam.runs.settlement import Settlement as Settlement
    from jsam.runs.settlement import settle as settle
    from jsam.training.data import dataset_from_arrays as dataset_from_arrays
    from jsam.training.data import load_dataset as load_dataset
    from jsam.training.learning_rate import with_fitted_step as with_fitted_step
    from jsam.training.partition import Partition as Partition
    from jsam.training.recorded_run import RunResult as RunResult
    from jsam.training.recorded_run import resume as resume
    from jsam.training.recorded_run import train as train
    from jsam.training.task import Task as Task
    from jsam.training.task import TaskSpec as TaskSpec

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

__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
