"""Training under a contract into a folder: each round is in the ledger before it changes the model."""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from jsam.errors import InputError, RunFolderError, TrainingStoppedError
from jsam.files import write_atomically
from jsam.mechanism.contract import Contract
from jsam.mechanism.contract_files import load_contract, storable
from jsam.mechanism.rules import Rules
from jsam.privacy import Ledger, Query, Release, Schedule, read_ledger
from jsam.runs.label_counts import CONFIG_KEY, LabelCounts
from jsam.runs.noise_plan import NoisePlan
from jsam.runs.noise_source import NoiseSource, kept_noise, new_noise
from jsam.runs.run_folder import RUN_FORMAT, MetricsFile, RunFolder, write_json
from jsam.runs.settings import TrainingSettings, noise_words
from jsam.training.checkpoint import Progress, as_bytes, load_checkpoint, save_checkpoint
from jsam.training.clipping.precision import checked_precision
from jsam.training.eager_rounds import EagerRounds
from jsam.training.environment import accelerator, check_same, device_named, threads_set_to, versions
from jsam.training.features.record_features import Counted
from jsam.training.graphs import ReplayedRounds, graphs_for, replayable
from jsam.training.label_survey import LabelSurvey
from jsam.training.loaded_task import LoadedTask
from jsam.training.round_loop import MadeRound, Metrics, NotFiniteError, RoundMaker, as_metrics, made_rounds
from jsam.training.task import Task, TaskSpec
from jsam.training.task_check import check_task

RoundCallback = Callable[[Metrics], None]


class Tracker(Protocol):
    """Sees every line of metrics.jsonl as it is written."""

    def record(self, metrics: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """A finished run; `seconds` is the time of this call's rounds and stands in no file."""

    folder: Path
    accuracy: float
    loss: float
    rounds: int
    seconds: float


def train(
    contract: Contract,
    task: Task,
    settings: TrainingSettings,
    output: Path | str,
    *,
    plan: NoisePlan | None = None,
    rules: Rules | None = None,
    survey: LabelSurvey | None = None,
    progress: RoundCallback | None = None,
    tracker: Tracker | None = None,
) -> RunResult:
    """Run the contract on the task; everything goes into the folder `output`, which must not hold a run yet.

    `plan` is the noise of this contract and these settings, where it is computed already; `rules` are those that the
    contract follows, to be kept beside it. `survey` is what this very folder was begun with, where label counts were
    bought for the contract under the same settings for the privacy and the noise.
    """
    device = device_named(settings.device)
    checked_precision(settings.precision, device)
    if plan is None:
        plan = NoisePlan.of(contract, settings, task.partition.sizes)
    elif plan.contract is not contract or plan.settings != settings or plan.sizes != task.partition.sizes:
        raise InputError("plan is of another contract, of other settings or of another partition; leave it out")
    check_task(task, device)
    folder = RunFolder(output)
    if survey is None:
        folder.create()
    else:
        survey.check(folder, settings)
    write_json(folder.contract, storable(plan.contract))
    if rules is not None:
        write_atomically(folder.rules, rules.to_toml().encode())
    plan.schedule.save(folder.schedule)
    noise, key_check = new_noise(settings, folder) if survey is None else (survey.noise, survey.key_check)
    data = task.fingerprint()
    threads = settings.threads or torch.get_num_threads()
    config = {
        "jsam_run": RUN_FORMAT,
        "settings": settings.as_dict(),
        "task": None if task.spec is None else asdict(task.spec),
        "data": data,
        "noise_from": noise_words(settings, simulated=True),
        "noise_key_check": key_check,
        **({} if survey is None else {CONFIG_KEY: survey.labels.as_dict()}),
        "environment": {**versions(), "threads": threads, "machine": platform.machine(), **accelerator(device)},
    }
    write_json(folder.config, config)
    plan.warn(data["parameters"])
    with threads_set_to(threads):
        run = _Run(plan, LoadedTask(task, settings, device), folder, folder.fingerprint(config), noise)
        return run.go(None, progress, tracker)


def resume(
    output: Path | str,
    *,
    task: Task | None = None,
    preparing: Counted | None = None,
    progress: RoundCallback | None = None,
    tracker: Tracker | None = None,
) -> RunResult:
    """Go on with a run that was interrupted; it ends bit for bit as if it had not been.

    A task of your own must be given again, with the model as it was before training. `preparing` hears how many records
    have their features, where the model is trained on features that the cache lacks.
    """
    folder = RunFolder(output)
    config = folder.read_config()
    check_same(folder.path, config["environment"], versions())
    settings = TrainingSettings.of_run(config)
    if task is None:
        if config["task"] is None:
            raise RunFolderError(f"{folder.path} trains a task of your own; resume it from Python, giving the task")
        task = TaskSpec.from_dict(config["task"]).build(device=settings.device, progress=preparing)
    data = task.fingerprint()
    odd = [name for name, value in config["data"].items() if data.get(name) != value]
    if odd:
        raise RunFolderError(
            f"{folder.path} was begun with another task: {odd[0]} was {config['data'][odd[0]]}, now {data.get(odd[0])}"
        )
    device = device_named(settings.device)
    check_same(folder.path, config["environment"], accelerator(device))
    schedule = Schedule.load(folder.schedule)
    plan = NoisePlan.of(load_contract(folder.contract), settings, task.partition.sizes, schedule)
    fingerprint = folder.fingerprint(config)
    _check_charged(folder, plan, LabelCounts.of_run(config))
    start = None
    task.model.to(device)
    if folder.checkpoint.exists():
        start = load_checkpoint(folder.checkpoint, task.model, fingerprint, device)
        _check_recorded(folder, plan, start.rounds_done)
    over = start is not None and start.rounds_done == settings.rounds
    # A run that is over draws no more noise: its key may have been deleted.
    noise = None if over else kept_noise(settings, folder, config)
    with threads_set_to(config["environment"]["threads"]):
        return _Run(plan, LoadedTask(task, settings, device), folder, fingerprint, noise).go(start, progress, tracker)


def _check_charged(folder: RunFolder, plan: NoisePlan, labels: LabelCounts | None) -> None:
    """Label counts are charged before a run has its first file, so a ledger without them has lost them."""
    due = () if labels is None else labels.releases(plan.contract.ids, plan.sizes, plan.settings)
    recorded = {release.key: release for release in _recorded(folder)} if due else {}
    for release in due:
        if recorded.get(release.key) != release:
            raise RunFolderError(
                f"{folder.ledger} lacks the charge for the label counts of client {release.client}, which the contract"
                " rests on; restore it to resume"
            )


def _recorded(folder: RunFolder) -> tuple[Release, ...]:
    return read_ledger(folder.ledger) if folder.ledger.exists() else ()


def _check_recorded(folder: RunFolder, plan: NoisePlan, rounds_done: int) -> None:
    """Every release that a checkpoint has applied must be in the ledger, or spent privacy would be forgotten.

    Of a run that is over only whole rounds are looked for: the report on it names every single difference.
    """
    releases = [release for release in _recorded(folder) if release.query is Query.GRADIENT]
    recorded = {(release.round, release.client): release for release in releases}
    rounds = {release.round for release in releases}
    goes_on = rounds_done < plan.settings.rounds
    for index in range(rounds_done):
        due = plan.releases(plan.schedule.round(index)) if goes_on else ()
        other = next((release for release in due if recorded.get((index, release.client)) != release), None)
        if index in rounds and other is None:
            continue
        wrong = f"lacks round {index}" if index not in rounds else f"is not as it was in round {index}"
        raise RunFolderError(
            f"{folder.ledger} {wrong}, which the checkpoint beside it has applied; restore it to resume"
        )


@dataclass(frozen=True, eq=False)
class _Run:
    """A run and its folder; without `noise` it is over, and only its last files are written again."""

    plan: NoisePlan
    task: LoadedTask
    folder: RunFolder
    fingerprint: str
    noise: NoiseSource | None

    def go(self, start: Progress | None, progress: RoundCallback | None, tracker: Tracker | None) -> RunResult:
        """Make the rounds after `start`, or all of them where it is None."""
        done = start or Progress()
        began = time.perf_counter()
        # The ledger first: its lock keeps a second process from touching the other files.
        with (
            Ledger(self.folder.ledger) as ledger,
            MetricsFile(self.folder.metrics, size=done.metrics_size) as metrics,
        ):
            listeners: list[RoundCallback] = [metrics.add]
            if tracker is not None:
                listeners.append(tracker.record)
            if progress is not None:
                listeners.append(progress)

            def observe(made: MadeRound) -> None:
                for listener in listeners:
                    listener(made.metrics)
                if made.snapshot is not None:
                    save_checkpoint(
                        self.folder.checkpoint,
                        made.snapshot,
                        rounds_done=made.rounds_done,
                        metrics_size=metrics.sync(),
                        fingerprint=self.fingerprint,
                    )

            if start is None:
                observe(MadeRound(metrics={"round": 0, **as_metrics(self.task.evaluation())}))
            if self.noise is not None:
                self._make_rounds(self._maker(self.noise, done), done, ledger, observe)
        last = self.folder.read_metrics()[-1]
        self._finish(last)
        return RunResult(
            folder=self.folder.path,
            accuracy=last["accuracy"],
            loss=last["loss"],
            rounds=self.plan.settings.rounds,
            seconds=time.perf_counter() - began,
        )

    def _maker(self, noise: NoiseSource, start: Progress) -> RoundMaker:
        task = self.task
        replays = (
            task.device.type == "cuda"
            and task.engine.path == "fused"
            and replayable(task.model, task.loss, task.data.inputs)
        )
        if not replays:
            return EagerRounds(self.plan, task, noise, velocity=start.velocity)
        graphs, weights = graphs_for(task, self.plan), task.model.state_dict()
        return ReplayedRounds(self.plan, task.partition, noise, graphs, weights=weights, velocity=start.velocity)

    def _make_rounds(
        self, maker: RoundMaker, start: Progress, ledger: Ledger, observe: Callable[[MadeRound], None]
    ) -> None:
        rounds = made_rounds(maker, done=start.rounds_done, announce=ledger.append, snapshots=True)
        try:
            with contextlib.closing(rounds):
                for made in rounds:
                    observe(made)
        except NotFiniteError as error:
            raise TrainingStoppedError(
                f"{error}; training stops before releasing it, all earlier rounds are kept in {self.folder.path} "
                "(a smaller learning_rate may help)"
            ) from None

    def _finish(self, last: Metrics) -> None:
        # Copies: a weight that is a view would be saved with all the memory that it is a view of.
        weights = {name: value.detach().clone() for name, value in self.task.model.state_dict().items()}
        write_atomically(self.folder.model, as_bytes(weights))
        summary = {
            "status": "complete",
            "rounds": self.plan.settings.rounds,
            "noise_from": noise_words(self.plan.settings, simulated=True),
            "fingerprint": self.fingerprint,
            **{name: last[name] for name in ("accuracy", "loss", "class_accuracy")},
        }
        write_json(self.folder.summary, summary)
