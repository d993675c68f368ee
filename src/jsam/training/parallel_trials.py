"""Many trials on one GPU: a few slots of device memory, each working through trials on a stream of its own.

A slot's graphs are recorded once and serve every trial of the same shape that comes after; while one slot's small
kernels leave the device half empty, the others' fill it.
"""

from __future__ import annotations

import copy
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from jsam.runs.noise_plan import Preparation
from jsam.runs.noise_source import noise_of_trial
from jsam.training.clipping import ClippingEngine, cross_entropy
from jsam.training.clipping.inspection import obstacle, trainable_owners
from jsam.training.clipping.precision import checked_precision
from jsam.training.data import Dataset
from jsam.training.environment import device_named
from jsam.training.evaluation import Evaluator
from jsam.training.graphs import MEASURES, GraphRounds, Pending, batch_sizes
from jsam.training.queueing import batch_size_counts, blocks_between, due, replayable, round_inputs

if TYPE_CHECKING:
    from jsam.training.trials import Trial, TrialResult

_AHEAD = 2
_GRADIENT_NORM, _SHARE_CLIPPED, _LOSS = (
    MEASURES.index(name) for name in ("gradient_norm", "share_clipped", "train_loss")
)


class Slots:
    """Trials that agree in all that a graph fixes: data, model, clip norm, momentum, precision and batch sizes."""

    def __init__(self, trials: Sequence[tuple[int, Trial]], count: int) -> None:
        self._waiting = deque(trials)
        first = trials[0][1]
        self._device = device_named(first.settings.device)
        self._data = _on_device(first.task.dataset, self._device)
        sizes = {n for _, trial in trials for n in batch_size_counts(trial.task.partition, trial.settings.per_round)}
        self._sizes = batch_sizes(tuple(sizes))
        self._block = max(len(b) for _, trial in trials for b in blocks_between(0, trial.settings))
        self._slots = [self._slot(first) for _ in range(min(count, len(trials)))]

    def go(self, progress: Callable[[int], None], late: Callable[[], bool]) -> Iterator[tuple[int, TrialResult]]:
        """Results as they come; each slot has a couple of blocks queued at all times. What waits when late is left."""
        running: dict[int, _Course] = {}
        try:
            while self._waiting or running:
                for number, slot in enumerate(self._slots):
                    course = running.get(number)
                    if late():
                        self._waiting.clear()
                    if course is None and self._waiting:
                        course = running[number] = _Course(*self._waiting.popleft(), slot)
                    if course is None:
                        continue
                    while course.more and len(course.queued) < _AHEAD:
                        course.launch()
                    if course.queued:
                        progress(course.read())
                    if course.over:
                        yield course.index, course.result()
                        del running[number]
        finally:
            for slot in self._slots:
                slot.wait()

    def _slot(self, trial: Trial) -> GraphRounds:
        settings, loss = trial.settings, trial.task.loss or cross_entropy
        precision = checked_precision(settings.precision, self._device)
        model = copy.deepcopy(trial.task.model).to(self._device).train()
        engine = ClippingEngine(model, clip_norm=settings.clip_norm, loss=loss, precision=precision)
        inputs, targets, test_inputs, test_targets = self._data
        classes = trial.task.dataset.num_classes
        evaluator = Evaluator(test_inputs, test_targets, num_classes=classes, loss=loss, precision=precision)
        return GraphRounds(
            model,
            engine,
            inputs,
            targets,
            sizes=self._sizes,
            block=self._block,
            momentum=settings.momentum,
            evaluator=evaluator,
        )


def slot_key(trial: Trial) -> tuple[Any, ...] | None:
    """Trials of one key can share slots; None where a trial must be made by itself."""
    settings, task = trial.settings, trial.task
    device = device_named(settings.device)
    if device.type != "cuda":
        return None
    if not replayable(task.model, task.loss or cross_entropy, task.dataset.train_inputs):
        return None
    if obstacle(trainable_owners(task.model)) is not None:
        return None
    shapes = tuple((name, tuple(value.shape)) for name, value in task.model.state_dict().items())
    trained = tuple(name for name, value in task.model.named_parameters() if value.requires_grad)
    fixed = settings.clip_norm, settings.momentum, settings.precision
    return id(task.dataset), str(device), str(task.model), shapes, trained, *fixed


@dataclass
class _Course:
    """One trial on its way through a slot."""

    index: int
    trial: Trial
    slot: GraphRounds
    queued: deque[tuple[range, Pending]] = field(default_factory=deque)
    more: bool = True

    def __post_init__(self) -> None:
        self._began = time.perf_counter()
        self._preparation = Preparation.of(self.trial.contract, self.trial.settings, self.trial.task.partition.sizes)
        self._noise = noise_of_trial(self.trial.settings)
        self._blocks = list(reversed(list(blocks_between(0, self.trial.settings))))
        self._measures: list[np.ndarray[Any, np.dtype[np.float32]]] = []
        self._curve: list[tuple[int, float]] = []
        self._loss: float | None = None
        self._diverged = False
        self.slot.load(dict(self.trial.task.model.state_dict()))

    @property
    def over(self) -> bool:
        return not (self.more or self.queued)

    def launch(self) -> None:
        settings, partition = self.trial.settings, self.trial.task.partition
        block = self._blocks.pop()
        drawn = [self._preparation.schedule.round(index) for index in block]
        inputs = [
            round_inputs(self._preparation, partition, d, self._preparation.releases(d), self._noise) for d in drawn
        ]
        evaluate = due(block.stop, settings.evaluate_every, settings.rounds)
        self.queued.append((block, self.slot.launch(inputs, evaluate=evaluate, snapshot=False)))
        self.more = bool(self._blocks)

    def read(self) -> int:
        """Wait for the oldest block; how many rounds it had."""
        block, pending = self.queued.popleft()
        measures = pending.measures()
        sound = np.isfinite(measures[:, [_GRADIENT_NORM, _LOSS]]).all(axis=1)
        if not sound.all():
            self._diverged, self.more = True, False
        if self._diverged:
            return len(block)
        self._measures.append(measures)
        found = pending.evaluation()
        if found is not None:
            self._curve.append((block.stop, found.accuracy))
            self._loss = found.loss if math.isfinite(found.loss) else None
        return len(block)

    def result(self) -> TrialResult:
        from jsam.training.trials import TrialResult

        means = np.concatenate(self._measures).mean(axis=0, dtype=np.float64) if self._measures else None
        return TrialResult(
            accuracy=1 / self.trial.task.dataset.num_classes if self._diverged else self._curve[-1][1],
            loss=None if self._diverged else self._loss,
            curve=tuple(self._curve),
            gradient_norm=math.nan if means is None else float(means[_GRADIENT_NORM]),
            share_clipped=math.nan if means is None else float(means[_SHARE_CLIPPED]),
            diverged=self._diverged,
            seconds=time.perf_counter() - self._began,
        )


def _on_device(dataset: Dataset, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    arrays = dataset.train_inputs, dataset.train_targets, dataset.test_inputs, dataset.test_targets
    first, second, third, fourth = (torch.from_numpy(array).to(device) for array in arrays)
    return first, second, third, fourth
