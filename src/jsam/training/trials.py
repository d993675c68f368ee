"""Many runs whose results alone are wanted: no folders, no ledgers, no checkpoints.

What a trial spends follows from its contract, schedule and noise rule, all fixed before the first round, so it is
computed (`NoisePlan`) and need not be recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jsam.training.eager_rounds import EagerRounds
from jsam.training.environment import device_named
from jsam.training.loaded_task import LoadedTask
from jsam.training.parallel_trials import Slots, slot_key
from jsam.training.running_trial import RunningTrial, Trial, TrialResult, own_task

__all__ = ["Trial", "TrialResult", "run_trials"]


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
            yield index, _run_alone(trial, tell)
        else:
            alike.setdefault(key, []).append((index, trial))
    for group in alike.values():
        if late():
            return
        yield from Slots(group, at_once or _slots_for(group[0][1])).go(tell, late)


def _slots_for(trial: Trial) -> int:
    """Large models fill a device by themselves, and take much of its memory."""
    return 5 if trial.task.num_parameters < 100_000 else 2


def _run_alone(trial: Trial, tell: Callable[[int], None]) -> TrialResult:
    task = LoadedTask(own_task(trial), trial.settings, device_named(trial.settings.device))
    running = RunningTrial(trial, lambda plan, noise: EagerRounds(plan, task, noise))
    while running.advance():
        tell(1)
    return running.result()
