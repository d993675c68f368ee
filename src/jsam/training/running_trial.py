"""One run whose result alone is wanted, and what it comes to."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from jsam.mechanism.contract import Contract
from jsam.runs.noise_plan import NoisePlan
from jsam.runs.noise_source import NoiseSource, noise_of_trial
from jsam.runs.settings import TrainingSettings
from jsam.training.rounds import NotFiniteError, RoundMaker, made_rounds
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


class RunningTrial:
    """A trial under way; `advance` makes its next round, and nothing is stored."""

    def __init__(self, trial: Trial, maker: Callable[[NoisePlan, NoiseSource], RoundMaker]) -> None:
        self._trial, self._began = trial, time.perf_counter()
        plan = NoisePlan.of(trial.contract, trial.settings, trial.task.partition.sizes)
        self._rounds = made_rounds(maker(plan, noise_of_trial(trial.settings)))
        self._curve: list[tuple[int, float]] = []
        self._loss: float | None = None
        self._norms: list[float] = []
        self._clipped: list[float] = []
        self._diverged = False

    def advance(self) -> bool:
        """Whether there was another round."""
        try:
            made = next(self._rounds, None)
        except NotFiniteError:
            self._diverged = True
            return False
        if made is None:
            return False
        metrics = made.metrics
        self._norms.append(metrics["gradient_norm"])
        self._clipped.append(metrics["share_clipped"])
        if "accuracy" in metrics:
            self._curve.append((made.rounds_done, metrics["accuracy"]))
            self._loss = metrics["loss"]
        return True

    def result(self) -> TrialResult:
        return TrialResult(
            accuracy=1 / self._trial.task.dataset.num_classes if self._diverged else self._curve[-1][1],
            loss=None if self._diverged else self._loss,
            curve=tuple(self._curve),
            gradient_norm=_mean(self._norms),
            share_clipped=_mean(self._clipped),
            diverged=self._diverged,
            seconds=time.perf_counter() - self._began,
        )


def own_task(trial: Trial) -> Task:
    """The trial's task with a copy of its model."""
    return replace(trial.task, model=copy.deepcopy(trial.task.model))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
