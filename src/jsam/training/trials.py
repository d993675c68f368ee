"""Many runs whose results alone are wanted: no folders, no ledgers, no checkpoints.

What a trial spends follows from its contract, schedule and noise rule, all fixed before the first round, so it is
computed (`Preparation`) and need not be recorded.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from jsam.mechanism.contract import Contract
from jsam.privacy import Round
from jsam.runs.noise_plan import Preparation
from jsam.runs.noise_source import noise_of_trial
from jsam.runs.settings import TrainingSettings
from jsam.training.clipping import ClippedSum, ClippingEngine, cross_entropy, sample_weights
from jsam.training.clipping.precision import checked_precision
from jsam.training.environment import device_named
from jsam.training.evaluation import evaluate
from jsam.training.parallel_trials import Slots, slot_key
from jsam.training.round_noise import combined_std, round_noise
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
        key = slot_key(trial)
        if key is None and late():
            return
        if key is None:
            yield index, _Run(trial).go(tell)
        else:
            alike.setdefault(key, []).append((index, trial))
    for group in alike.values():
        if late():
            return
        yield from Slots(group, at_once or _slots_for(group[0][1])).go(tell, late)


def _slots_for(trial: Trial) -> int:
    """Large models fill a device by themselves, and take much of its memory."""
    return 5 if trial.task.num_parameters < 100_000 else 2


class _Run:
    def __init__(self, trial: Trial) -> None:
        task, self.settings = trial.task, trial.settings
        self.device = device_named(self.settings.device)
        self.noise = noise_of_trial(self.settings)
        self.preparation = Preparation.of(trial.contract, self.settings, task.partition.sizes)
        self.task, self.loss = task, task.loss or cross_entropy
        self.model = copy.deepcopy(task.model).to(self.device).train()
        self.precision = checked_precision(self.settings.precision, self.device)
        self.engine = ClippingEngine(
            self.model, clip_norm=self.settings.clip_norm, loss=self.loss, precision=self.precision
        )
        self.inputs = torch.from_numpy(task.dataset.train_inputs).to(self.device)
        self.targets = torch.from_numpy(task.dataset.train_targets).to(self.device)
        self.velocity: torch.Tensor | None = None

    def go(self, progress: Callable[[int], None]) -> TrialResult:
        began, settings = time.perf_counter(), self.settings
        curve: list[tuple[int, float]] = []
        norms: list[float] = []
        clipped: list[float] = []
        loss: float | None = None
        diverged = False
        for drawn in self.preparation.schedule:
            found = self._clipped_sum(drawn)
            norm = found.signal
            diverged = not (math.isfinite(norm) and math.isfinite(found.mean_loss))
            if diverged:
                break
            norms.append(norm)
            clipped.append(found.share_clipped)
            self._step(found, drawn)
            done = drawn.index + 1
            if done % settings.evaluate_every == 0 or done == settings.rounds:
                accuracy, loss = self._evaluation()
                curve.append((done, accuracy))
            progress(1)
        return TrialResult(
            accuracy=1 / self.task.dataset.num_classes if diverged else curve[-1][1],
            loss=None if diverged else loss,
            curve=tuple(curve),
            gradient_norm=sum(norms) / len(norms) if norms else math.nan,
            share_clipped=sum(clipped) / len(clipped) if clipped else math.nan,
            diverged=diverged,
            seconds=time.perf_counter() - began,
        )

    def _clipped_sum(self, drawn: Round) -> ClippedSum:
        held = [torch.from_numpy(self.task.partition.indices[k]) for k in drawn.clients.tolist()]
        sizes = [len(rows) for rows in held]
        weights = sample_weights(sizes, drawn.multiplicities.tolist(), self.settings.per_round, device=self.device)
        server = torch.tensor(self.preparation.update_weights(drawn), dtype=torch.float32, device=self.device)
        weights = weights * server.repeat_interleave(torch.tensor(sizes, device=self.device))
        rows = torch.cat(held).to(self.device)
        return self.engine.clipped_sum(self.inputs[rows], self.targets[rows], weights)

    @torch.no_grad()
    def _step(self, found: ClippedSum, drawn: Round) -> None:
        settings, preparation = self.settings, self.preparation
        std = combined_std(preparation.releases(drawn), preparation.update_weights(drawn), settings.per_round)
        size, source = self.engine.parameter_count, self.noise
        noise = round_noise(std, size, source=source, index=drawn.index, device=self.device)
        gradient = (found.gradient + noise).to(torch.float32)
        if settings.momentum:
            self.velocity = gradient if self.velocity is None else self.velocity.mul_(settings.momentum).add_(gradient)
            gradient = self.velocity
        parameters = dict(self.model.named_parameters())
        for name, piece in self.engine.unflatten(gradient).items():
            parameters[name].add_(piece, alpha=-settings.learning_rate_at(drawn.index))

    def _evaluation(self) -> tuple[float, float | None]:
        dataset = self.task.dataset
        inputs = torch.from_numpy(dataset.test_inputs).to(self.device)
        targets = torch.from_numpy(dataset.test_targets).to(self.device)
        found = evaluate(
            self.model, inputs, targets, num_classes=dataset.num_classes, loss=self.loss, precision=self.precision
        )
        return found.accuracy, found.loss if math.isfinite(found.loss) else None
