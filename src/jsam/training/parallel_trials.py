"""Many trials on one GPU: a few slots of device memory, each working through trials on a stream of its own.

A slot's graphs are recorded once and serve every trial of the same shape that comes after; while one slot's small
kernels leave the device half empty, the others' fill it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jsam.training.clipping import cross_entropy
from jsam.training.clipping.inspection import obstacle, trainable_owners
from jsam.training.environment import device_named
from jsam.training.graphs import GraphRounds, ReplayedRounds, batch_sizes, longest_block, replayable
from jsam.training.loaded_task import DeviceData, LoadedTask
from jsam.training.partition import Partition
from jsam.training.running_trial import RunningTrial, Trial, TrialResult, own_task


class Slots:
    """Trials that agree in all that a graph fixes: data, model, clip norm, momentum, precision and batch sizes."""

    def __init__(self, trials: Sequence[tuple[int, Trial]], count: int) -> None:
        self._waiting = deque(trials)
        first = trials[0][1]
        device = device_named(first.settings.device)
        data = DeviceData.of(first.task.dataset, device)
        sizes = {n for _, trial in trials for n in _batch_size_counts(trial.task.partition, trial.settings.per_round)}
        self._slots = [
            GraphRounds(
                LoadedTask(own_task(first), first.settings, device, data),
                sizes=batch_sizes(tuple(sizes)),
                block=max(longest_block(trial.settings) for _, trial in trials),
                momentum=first.settings.momentum,
            )
            for _ in range(min(count, len(trials)))
        ]

    def go(self, progress: Callable[[int], None], late: Callable[[], bool]) -> Iterator[tuple[int, TrialResult]]:
        """Results as they come; each slot has a block queued at all times. When it is late, what waits is left."""
        running: dict[int, tuple[int, RunningTrial]] = {}
        try:
            while self._waiting or running:
                for number, slot in enumerate(self._slots):
                    if late():
                        self._waiting.clear()
                    if number not in running and self._waiting:
                        index, trial = self._waiting.popleft()
                        running[number] = index, _begun(trial, slot)
                    if number not in running:
                        continue
                    index, under_way = running[number]
                    if under_way.advance():
                        progress(1)
                    else:
                        yield index, under_way.result()
                        del running[number]
        finally:
            for slot in self._slots:
                slot.wait()


def _begun(trial: Trial, slot: GraphRounds) -> RunningTrial:
    weights = trial.task.model.state_dict()
    return RunningTrial(
        trial, lambda plan, noise: ReplayedRounds(plan, trial.task.partition, noise, slot, weights=weights)
    )


def _batch_size_counts(partition: Partition, per_round: int) -> tuple[int, ...]:
    """Batch sizes that any schedule can have, where all clients are of one size; else a few that cover them."""
    largest = sorted(partition.sizes)[-per_round:]
    sizes = range(1, len(largest) + 1)
    return tuple(sum(largest[-count:]) for count in sizes)


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
