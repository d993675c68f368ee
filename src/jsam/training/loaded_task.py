"""A task on its device: its data uploaded once, its model in training mode, and the engine that clips gradients."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from jsam.runs.settings import TrainingSettings
from jsam.training.clipping import ClippingEngine, cross_entropy
from jsam.training.clipping.precision import checked_precision
from jsam.training.data import Dataset
from jsam.training.evaluation import Evaluation, Evaluator
from jsam.training.task import Task
from jsam.training.task_check import LOOKED_AT


class DeviceData(NamedTuple):
    """The examples of a data set in the memory of a device; tasks may share them."""

    inputs: Tensor
    targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor

    @classmethod
    def of(cls, dataset: Dataset, device: torch.device) -> DeviceData:
        train, test = (dataset.train_inputs, dataset.train_targets), (dataset.test_inputs, dataset.test_targets)
        return cls(*(torch.from_numpy(values).to(device) for values in (*train, *test)))


class LoadedTask:
    """The model is the task's own, moved to `device`; `data` is given where several tasks share one upload."""

    def __init__(
        self, task: Task, settings: TrainingSettings, device: torch.device, data: DeviceData | None = None
    ) -> None:
        self.partition, self.device = task.partition, device
        self.loss = task.loss or cross_entropy
        self.data = data or DeviceData.of(task.dataset, device)
        self.model = task.model.to(device).train()
        precision = checked_precision(settings.precision, device)
        self.engine = ClippingEngine(self.model, clip_norm=settings.clip_norm, loss=self.loss, precision=precision)
        self.engine.check(self.data.inputs[:LOOKED_AT], self.data.targets[:LOOKED_AT])
        self.evaluator = Evaluator(
            self.data.test_inputs,
            self.data.test_targets,
            num_classes=task.dataset.num_classes,
            loss=self.loss,
            precision=precision,
        )

    def evaluation(self) -> Evaluation:
        """How good the model is now on the test data."""
        self.evaluator.run(self.model)
        return Evaluator.read(self.evaluator.result.cpu())
