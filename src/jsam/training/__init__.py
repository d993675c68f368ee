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
    from jsam.training.contracts import load_contract
    from jsam.training.data import dataset_from_arrays, load_dataset
    from jsam.training.loop import RunResult, resume, train
    from jsam.training.partition import Partition
    from jsam.training.publishing import publish
    from jsam.training.settings import TrainingSettings
    from jsam.training.settlement import Settlement, settle
    from jsam.training.steps import with_fitted_step
    from jsam.training.task import Task, TaskSpec

_HOMES = {
    "load_contract": "contracts",
    "dataset_from_arrays": "data",
    "load_dataset": "data",
    "RunResult": "loop",
    "resume": "loop",
    "train": "loop",
    "Partition": "partition",
    "publish": "publishing",
    "TrainingSettings": "settings",
    "Settlement": "settlement",
    "settle": "settlement",
    "Task": "task",
    "TaskSpec": "task",
    "with_fitted_step": "steps",
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
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
