"""Making the runs that are missing, and keeping each result as soon as it is there."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np

from jsam.errors import InputError
from jsam.mechanism.contract import Contract
from jsam.privacy import Adjacency, epsilon_of
from jsam.report.output_files import check_target
from jsam.runs.noise_plan import NoisePlan
from jsam.runs.settings import TrainingSettings
from jsam.sweeps.device_time import CPU, FILE, add_sweep
from jsam.training.clipping.precision import checked_precision
from jsam.training.environment import accelerator, device_named
from jsam.training.learning_rate import with_fitted_step
from jsam.training.trials import Trial, TrialResult, run_trials
from reproduction.config import RunConfig
from reproduction.economics import current_planner, run_planner
from reproduction.paths import Places
from reproduction.planning import Plans
from reproduction.prerequisites import waiting_lines
from reproduction.reuse import Twins, twin_record
from reproduction.spec import Spec
from reproduction.store import Record, append, read_places, read_records, write_sorted
from reproduction.stored_numbers import contract_numbers, rounded
from reproduction.tasks import task_of
from reproduction.tuned_settings import Chosen

Tell = Callable[[str], None]
CURVE_POINTS = 10
ON_A_CPU = (
    "this trains on the CPU, where a run takes minutes on MNIST and hours on CIFAR-10; the times in "
    "docs/reproduction.md are those of an H200 (--device cuda)"
)
QUIET_SECONDS = 20.0  # longer than this nobody waits without a word


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a call went: `taken` runs had been made before, under another Q; `left` are still to be made: time was up."""

    made: int
    left: int
    seconds: float
    taken: int = 0

    def __str__(self) -> str:
        made = f"{self.made} run{'' if self.made == 1 else 's'} made in {self.seconds:.0f} s"
        taken = f", {self.taken} taken over from runs with the same contract" if self.taken else ""
        return f"{made}{taken}, {self.left} left"


def missing(configs: Iterable[RunConfig], places: Places, only: Sequence[str] = ()) -> list[RunConfig]:
    """The runs that neither results nor output hold, of those whose name or key fits one of the patterns."""
    known = read_places(places)
    return [config for config in configs if config.key not in known and _fits(config, only)]


def _fits(config: RunConfig, only: Sequence[str]) -> bool:
    return not only or any(fnmatch(config.name, glob) or fnmatch(config.key, glob) for glob in only)


def run_specs(
    specs: Sequence[Spec],
    places: Places,
    *,
    device: str = "cpu",
    precision: str = "fp32",
    only: Sequence[str] = (),
    limit_seconds: float = math.inf,
    tell: Tell,
    at_once: int = 1000,
) -> Outcome:
    """Make what is missing, spec by spec, until all is there or time is up; runs under way then are finished."""
    # Before η or losses are looked for: on a machine without the device that would be minutes for nothing.
    checked_precision(precision, device_named(device))
    if not limit_seconds > 0:
        raise InputError(f"limit_seconds is {limit_seconds:g}; it must be above 0")
    check_target(places.output / FILE)
    began, made, taken, left = time.perf_counter(), 0, 0, 0
    chosen, plans = Chosen.load(places.chosen), Plans.load(places.new_plans, places.plans)
    trained = [config for spec in specs if spec.kind != "planner" for config in spec.runs(chosen)]
    waiting = waiting_lines(specs, chosen, places)
    if waiting and not trained and all(spec.id in waiting for spec in specs):
        raise InputError("; ".join(waiting.values()))
    if only and not any(_fits(config, only) for config in trained):
        some = f"; one is {trained[0].name}" if trained else ""
        raise InputError(f"no run is named {' or '.join(map(repr, only))}{some}")

    def late() -> bool:
        return time.perf_counter() - began >= limit_seconds

    for line in waiting.values():
        tell(line)
    on_a_cpu = device_named(device).type == "cpu"
    for spec in specs:
        if spec.kind == "planner":
            if not only and current_planner(spec, chosen, places) is None:
                if late():
                    left += 1
                    continue
                tell(f"{spec.id}: computing")
                run_planner(spec, chosen, places)
                made += 1
            continue
        path = places.output / f"{spec.id}.jsonl"
        wanted = missing(spec.runs(chosen), places, only)
        known = _take_over(wanted, Twins(read_places(places).values(), plans), path, late)
        if known:
            tell(f"{spec.id}: {len(known)} runs are those of stored ones with the same contract")
        taken += len(known)
        wanted = [config for config in wanted if config.key not in known]
        done, start = 0, time.perf_counter()
        while done < len(wanted) and not late():
            if on_a_cpu:
                tell(ON_A_CPU)
                on_a_cpu = False
            batch = wanted[done : done + at_once]
            tell(f"{spec.id}: {len(wanted) - done} runs to make")
            trials = [_trial(config, plans.contract(config), device, precision) for config in batch]
            clock = _Clock(len(wanted) - done, sum(c.rounds for c in batch), spec.id, tell)
            for index, result in run_trials(trials, progress=clock.rounds, late=late):
                append(path, Record(config=batch[index], result=stored_result(trials[index], result)))
                made, done = made + 1, done + 1
                clock.one_more(batch[index], result)
        left += len(wanted) - done
        if done:
            add_sweep(
                places.output,
                spec.id,
                runs=done,
                seconds=time.perf_counter() - start,
                device=f"{_card(device)} {precision}",
            )
        if path.exists():
            write_sorted(path, read_records(path))
    return Outcome(made=made, taken=taken, left=left, seconds=time.perf_counter() - began)


def _take_over(configs: Iterable[RunConfig], twins: Twins, path: Path, late: Callable[[], bool]) -> set[str]:
    """Store those runs whose contract was run before, until time is up; their keys."""
    taken = set()
    for config in configs:
        if late():
            break
        twin = twins.of(config)
        if twin is not None:
            append(path, twin_record(config, *twin))
            taken.add(config.key)
    return taken


def _card(device: str) -> str:
    return accelerator(device_named(device)).get("card", CPU)


def _trial(config: RunConfig, contract: Contract, device: str, precision: str) -> Trial:
    task, settings = task_of(config), settings_of(config, device, precision)
    if config.learning_rate == 0:
        settings = with_fitted_step(contract, task, settings)
    return Trial(contract=contract, task=task, settings=settings)


def settings_of(config: RunConfig, device: str, precision: str = "fp32") -> TrainingSettings:
    every = max(1, config.rounds // CURVE_POINTS)
    return TrainingSettings(
        rounds=config.rounds,
        per_round=config.per_round,
        clip_norm=config.clip_norm,
        learning_rate=config.learning_rate or 1.0,  # the fitted one takes its place
        learning_rate_schedule=config.learning_rate_schedule,
        momentum=config.momentum,
        delta=config.delta,
        noise=config.noise,
        c2=config.c2,
        adjacency=config.adjacency,
        seed=config.seed,
        # Results that anybody can repeat: the noise is known, so no model of these runs is private.
        noise_seed=config.seed,
        evaluate_every=every,
        checkpoint_every=every,
        device=device,
        precision=precision,
    )


def stored_result(trial: Trial, result: TrialResult) -> dict[str, Any]:
    """Plain numbers: of the contract, of what it truly spends, of the training."""
    import torch

    drawn = NoisePlan.of(trial.contract, trial.settings, trial.task.partition.sizes)
    numbers = {
        "epsilon_exact_max": spent_epsilon_max(drawn),
        "noise_ratio": drawn.noise_ratio(trial.task.num_parameters),
        "accuracy": result.accuracy,
        "loss": result.loss,
        "gradient_norm": result.gradient_norm,
        "share_clipped": result.share_clipped,
        "learning_rate": trial.settings.learning_rate,
        "seconds": result.seconds,
    }
    curve = [[done, rounded(accuracy)] for done, accuracy in result.curve]
    made_on = f"{trial.settings.device}, {trial.settings.precision}, torch {torch.__version__}"
    return {
        **contract_numbers(trial.contract),
        **{name: rounded(value) for name, value in numbers.items()},
        "curve": curve,
        "diverged": result.diverged,
        "made_on": made_on,
    }


def spent_epsilon_max(drawn: NoisePlan) -> float:
    """The largest ε that the exact accountant gives to any client: T_k releases are one Gaussian of μ = Δ√T_k/std."""
    times = drawn.schedule.participations
    some = times > 0
    factor = Adjacency.of(drawn.settings.adjacency).factor
    mus = factor * np.sqrt(times[some]) / drawn.noise_multipliers[some]
    return float(epsilon_of(mus, drawn.settings.delta).max())


class _Clock:
    """Says after each run, and now and then within long ones, how much longer the rest will take."""

    def __init__(self, runs: int, rounds: int, label: str, tell: Tell) -> None:
        self._runs, self._rounds, self._label, self._tell = runs, rounds, label, tell
        self._began = self._said = time.perf_counter()
        self._runs_done = self._rounds_done = 0

    def one_more(self, config: RunConfig, result: TrialResult) -> None:
        self._runs_done += 1
        end = "diverged" if result.diverged else f"{result.accuracy:.2%}"
        self._say(f"{self._label} {self._runs_done}/{self._runs}: {config.name} {end}; {self._left()} left")

    def rounds(self, more: int) -> None:
        self._rounds_done += more
        if time.perf_counter() - self._said >= QUIET_SECONDS:
            share = self._rounds_done / self._rounds
            self._say(f"{self._label}: {self._rounds_done} of {self._rounds} rounds, {share:.0%}; {self._left()} left")

    def _left(self) -> str:
        share = max(self._rounds_done / self._rounds, self._runs_done / self._runs)
        rest = (time.perf_counter() - self._began) * (1 / share - 1)
        return f"{rest / 60:.0f} min" if rest > 90 else f"{rest:.0f} s"

    def _say(self, line: str) -> None:
        self._said = time.perf_counter()
        self._tell(line)
