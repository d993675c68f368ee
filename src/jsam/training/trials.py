"""Many runs whose results alone are wanted: no folders, no ledgers, no checkpoints.

What a trial spends follows from its contract, schedule and noise rule, all fixed before the first round, so it is
computed (`NoisePlan`) and need not be recorded. On a GPU a few slots of device memory work through trials, each on a
stream of its own: a slot's graphs are recorded once and serve every trial of the same shape that comes after, and while
one slot's small kernels leave the device half empty, the others' fill it.
"""

from __future__ import annotations

import copy
import math
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jsam.mechanism.contract import Contract
from jsam.runs.noise_plan import NoisePlan
from jsam.runs.noise_source import NoiseSource, noise_of_trial
from jsam.runs.settings import TrainingSettings
from jsam.training.clipping import cross_entropy
from jsam.training.clipping.model_checks import obstacle, trainable_owners
from jsam.training.eager_rounds import EagerRounds
from jsam.training.environment import device_named
from jsam.training.graphs import GraphRounds, ReplayedRounds, batch_sizes, longest_block, replayable
from jsam.training.loaded_task import DeviceData, LoadedTask
from jsam.training.partition import Partition
from jsam.training.round_loop import NotFiniteError, RoundMaker, made_rounds
from jsam.training.task import Task


@dataclass(frozen=True, kw_only=True, eq=False)
class Trial:
    """One run to be made. Trials may share a task: its model is where each of them begins and is left as it was."""

    contract: Contract
    task: Task
    settings: TrainingSettings


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """What a run came to. One that diverged has the accuracy of guessing.

    `curve` has (round, accuracy); `gradient_norm` is the mean over rounds of the norm of the clipped mean gradient.
    """

    accuracy: float
    loss: float | None
    curve: tuple[tuple[int, float], ...]
    gradient_norm: float
    share_clipped: float
    diverged: bool
    seconds: float


RunningTrial = Generator[None, None, TrialResult]
"""A trial under way: it goes on by a round whenever it is asked for the next thing, and nothing is stored."""


def _running(trial: Trial, maker: Callable[[NoisePlan, NoiseSource], RoundMaker]) -> RunningTrial:
    began = time.perf_counter()
    plan = NoisePlan.of(trial.contract, trial.settings, trial.task.partition.sizes)
    curve: list[tuple[int, float]] = []
    loss: float | None = None
    norms, clipped, diverged = [], [], False
    try:
        for made in made_rounds(maker(plan, noise_of_trial(trial.settings))):
            metrics = made.metrics
            norms.append(metrics["gradient_norm"])
            clipped.append(metrics["share_clipped"])
            if "accuracy" in metrics:
                curve.append((made.rounds_done, metrics["accuracy"]))
                loss = metrics["loss"]
            yield
    except NotFiniteError:
        diverged = True
    return TrialResult(
        accuracy=1 / trial.task.dataset.num_classes if diverged else curve[-1][1],
        loss=None if diverged else loss,
        curve=tuple(curve),
        gradient_norm=_mean(norms),
        share_clipped=_mean(clipped),
        diverged=diverged,
        seconds=time.perf_counter() - began,
    )


def _advanced(running: RunningTrial) -> TrialResult | None:
    """What the trial came to, where there was no other round to make."""
    try:
        next(running)
    except StopIteration as over:
        result: TrialResult = over.value
        return result
    return None


def run_trials(
    trials: Sequence[Trial],
    *,
    progress: Callable[[int], None] | None = None,
    at_once: int | None = None,
    late: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[int, TrialResult]]:
    """(index, result) of each trial as it finishes; `progress` is told how many more rounds have been made.

    On CUDA, trials of one shape go side by side, `at_once` of them. Trials that must come to the same are run once.
    When it is `late` no further trial is begun; those under way are finished.
    """
    tell = progress or (lambda rounds: None)
    twins: dict[Any, list[int]] = {}
    for index, trial in enumerate(trials):
        # Noise from secret keys makes no two of them alike.
        own = index if trial.settings.noise_seed is None else None
        twins.setdefault((own, *_what_matters(trial)), []).append(index)
    others = {first: rest for first, *rest in twins.values()}
    for first, result in _run_distinct([(index, trials[index]) for index in others], tell, at_once, late):
        yield first, result
        for index in others[first]:
            tell(trials[index].settings.rounds)
            yield index, result


def _what_matters(trial: Trial) -> tuple[Any, ...]:
    """All that a run depends on: two mechanisms may come to one contract, and differ in what they pay."""
    contract = trial.contract
    weights = contract.update_weights
    drawn = contract.selection_probs.tobytes(), contract.epsilons.tobytes()
    return id(trial.task), trial.settings, *drawn, None if weights is None else weights.tobytes()


def _run_distinct(
    trials: Sequence[tuple[int, Trial]],
    tell: Callable[[int], None],
    at_once: int | None,
    late: Callable[[], bool],
) -> Iterator[tuple[int, TrialResult]]:
    alike: dict[Any, list[tuple[int, Trial]]] = {}
    for index, trial in trials:
        key = _slot_key(trial)
        if key is None and late():
            return
        if key is None:
            yield index, _run_alone(trial, tell)
        else:
            alike.setdefault(key, []).append((index, trial))
    for group in alike.values():
        if late():
            return
        # Large models fill a device by themselves, and take much of its memory.
        slots = at_once or (5 if group[0][1].task.num_parameters < 100_000 else 2)
        yield from _side_by_side(group, slots, tell, late)


def _run_alone(trial: Trial, tell: Callable[[int], None]) -> TrialResult:
    task = LoadedTask(_own_task(trial), trial.settings, device_named(trial.settings.device))
    running = _running(trial, lambda plan, noise: EagerRounds(plan, task, noise))
    while (result := _advanced(running)) is None:
        tell(1)
    return result


def _side_by_side(
    trials: Sequence[tuple[int, Trial]], count: int, tell: Callable[[int], None], late: Callable[[], bool]
) -> Iterator[tuple[int, TrialResult]]:
    """Results as they come, of trials that agree in all that a graph fixes (`_slot_key`).

    Each of `count` slots has a block queued at all times. When it is late, what waits is left.
    """
    waiting, first = deque(trials), trials[0][1]
    device = device_named(first.settings.device)
    data = DeviceData.of(first.task.dataset, device)
    sizes = {n for _, trial in trials for n in _batch_size_counts(trial.task.partition, trial.settings.per_round)}
    slots = [
        GraphRounds(
            LoadedTask(_own_task(first), first.settings, device, data),
            sizes=batch_sizes(tuple(sizes)),
            block=max(longest_block(trial.settings) for _, trial in trials),
            momentum=first.settings.momentum,
        )
        for _ in range(min(count, len(trials)))
    ]
    running: dict[int, tuple[int, RunningTrial]] = {}
    try:
        while waiting or running:
            for number, slot in enumerate(slots):
                if late():
                    waiting.clear()
                if number not in running and waiting:
                    index, trial = waiting.popleft()
                    running[number] = index, _begun(trial, slot)
                if number not in running:
                    continue
                index, under_way = running[number]
                result = _advanced(under_way)
                if result is None:
                    tell(1)
                else:
                    yield index, result
                    del running[number]
    finally:
        for slot in slots:
            slot.wait()


def _begun(trial: Trial, slot: GraphRounds) -> RunningTrial:
    weights = trial.task.model.state_dict()
    return _running(trial, lambda plan, noise: ReplayedRounds(plan, trial.task.partition, noise, slot, weights=weights))


def _batch_size_counts(partition: Partition, per_round: int) -> tuple[int, ...]:
    """Batch sizes that any schedule can have, where all clients are of one size; else a few that cover them."""
    largest = sorted(partition.sizes)[-per_round:]
    sizes = range(1, len(largest) + 1)
    return tuple(sum(largest[-count:]) for count in sizes)


def _slot_key(trial: Trial) -> tuple[Any, ...] | None:
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


def _own_task(trial: Trial) -> Task:
    """The trial's task with a copy of its model."""
    return replace(trial.task, model=copy.deepcopy(trial.task.model))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
