"""Training under a contract: rounds of clipped, weighted, noisy gradients, each in the ledger before it is applied."""

from __future__ import annotations

import contextlib
import itertools
import math
import platform
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from jsam.errors import RunFolderError, TrainingStoppedError
from jsam.files import write_atomically
from jsam.mechanism.contract import Contract
from jsam.mechanism.contract_files import load_contract, storable
from jsam.privacy import Ledger, Round, Schedule, derived_seed
from jsam.runs.noise_plan import Preparation
from jsam.runs.noise_source import NoiseSource, kept_noise, new_noise
from jsam.runs.run_folder import RUN_FORMAT, MetricsFile, RunFolder, write_json
from jsam.runs.run_integrity import check_recorded, fingerprint_of
from jsam.runs.settings import TrainingSettings, noise_words
from jsam.training.checkpoint import TrainingState, as_bytes, load_checkpoint, save_checkpoint
from jsam.training.clipping import ClippedSum, ClippingEngine, cross_entropy, sample_weights
from jsam.training.clipping.precision import checked_precision
from jsam.training.environment import (
    accelerator,
    check_accelerator,
    check_versions,
    device_named,
    threads_set_to,
    versions,
)
from jsam.training.evaluation import Evaluation, Evaluator, evaluate
from jsam.training.fitness import LOOKED_AT, check_task
from jsam.training.graphs import MEASURES, Pending
from jsam.training.queueing import blocks_between, due, graph_rounds, replayable, round_inputs
from jsam.training.round_noise import combined_std, round_noise
from jsam.training.task import Task, TaskSpec
from jsam.training.tracking import Tracker

Metrics = dict[str, Any]
RoundCallback = Callable[[Metrics], None]


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
    progress: RoundCallback | None = None,
    tracker: Tracker | None = None,
) -> RunResult:
    """Run the contract on the task; everything goes into the folder `output`, which must not hold a run yet."""
    device = device_named(settings.device)
    checked_precision(settings.precision, device)
    preparation = Preparation.of(contract, settings, task.partition.sizes)
    check_task(task, device)
    folder = RunFolder(output)
    folder.create()
    write_json(folder.contract, storable(contract))
    preparation.schedule.save(folder.schedule)
    noise, key_check = new_noise(settings, folder)
    data = task.fingerprint()
    threads = settings.threads or torch.get_num_threads()
    config = {
        "jsam_run": RUN_FORMAT,
        "settings": settings.as_dict(),
        "task": None if task.spec is None else task.spec.as_dict(),
        "data": data,
        "noise_from": noise_words(settings, simulated=True),
        "noise_key_check": key_check,
        "environment": {**versions(), "threads": threads, "machine": platform.machine(), **accelerator(device)},
    }
    write_json(folder.config, config)
    preparation.warn(data["parameters"])
    with threads_set_to(threads):
        run = _Run(preparation, task, folder, device, fingerprint_of(config, folder), noise)
        return run.go(None, progress, tracker)


def resume(
    output: Path | str,
    *,
    task: Task | None = None,
    progress: RoundCallback | None = None,
    tracker: Tracker | None = None,
) -> RunResult:
    """Go on with a run that was interrupted; it ends bit for bit as if it had not been.

    A task of your own must be given again, with the model as it was before training.
    """
    folder = RunFolder(output)
    config = folder.read_config()
    check_versions(folder.path, config["environment"])
    settings = TrainingSettings.of_run(config)
    if task is None:
        if config["task"] is None:
            raise RunFolderError(f"{folder.path} trains a task of your own; resume it from Python, giving the task")
        task = TaskSpec.from_dict(config["task"]).build()
    found = task.fingerprint()
    odd = [name for name, value in config["data"].items() if found.get(name) != value]
    if odd:
        raise RunFolderError(
            f"{folder.path} was begun with another task: {odd[0]} was {config['data'][odd[0]]}, now {found.get(odd[0])}"
        )
    device = device_named(settings.device)
    check_accelerator(folder.path, config["environment"], device)
    schedule = Schedule.load(folder.schedule)
    preparation = Preparation.of(load_contract(folder.contract), settings, task.partition.sizes, schedule)
    fingerprint = fingerprint_of(config, folder)
    state = None
    task.model.to(device)
    if folder.checkpoint.exists():
        state = load_checkpoint(folder.checkpoint, task.model, fingerprint, device)
        check_recorded(folder, preparation, state.rounds_done)
    done = state is not None and state.rounds_done == settings.rounds
    # A run that is over draws no more noise: its key may have been deleted.
    noise = None if done else kept_noise(settings, folder, config)
    with threads_set_to(config["environment"]["threads"]):
        return _Run(preparation, task, folder, device, fingerprint, noise).go(state, progress, tracker)


class _Run:
    """One run's fixed parts; `go` walks through its rounds."""

    def __init__(
        self,
        preparation: Preparation,
        task: Task,
        folder: RunFolder,
        device: torch.device,
        fingerprint: str,
        noise: NoiseSource | None,
    ) -> None:
        self.preparation, self.settings, self.folder = preparation, preparation.settings, folder
        self.device, self.fingerprint, self.dataset = device, fingerprint, task.dataset
        self._noise = noise
        self.loss = task.loss or cross_entropy
        self.model = task.model.to(device).train()
        self.engine = ClippingEngine(
            self.model,
            clip_norm=self.settings.clip_norm,
            loss=self.loss,
            precision=checked_precision(self.settings.precision, device),
        )
        self.inputs = torch.from_numpy(task.dataset.train_inputs).to(device)
        self.targets = torch.from_numpy(task.dataset.train_targets).to(device)
        self.engine.check(self.inputs[:LOOKED_AT], self.targets[:LOOKED_AT])
        self.test_inputs = torch.from_numpy(task.dataset.test_inputs).to(device)
        self.test_targets = torch.from_numpy(task.dataset.test_targets).to(device)
        self.held = [torch.from_numpy(indices) for indices in task.partition.indices]
        self.partition = task.partition

    @property
    def noise(self) -> NoiseSource:
        assert self._noise is not None, "a run that is over has no more rounds"
        return self._noise

    def go(self, state: TrainingState | None, progress: RoundCallback | None, tracker: Tracker | None) -> RunResult:
        fresh = state is None
        state = state or TrainingState(rounds_done=0, velocity=None)
        last: Metrics = {}
        began = time.perf_counter()
        # The ledger first: its lock keeps a second process from touching the other files.
        with (
            Ledger(self.folder.ledger) as ledger,
            self._metrics(state) as metrics,
            contextlib.closing(self._records(state, ledger, fresh)) as records,
        ):
            for record in records:
                metrics.add(record)
                last = record
                if tracker is not None:
                    tracker.record(record)
                if progress is not None:
                    progress(record)
                if state.rounds_done % self.settings.checkpoint_every == 0 or state.rounds_done == self.settings.rounds:
                    state.metrics_size = metrics.sync()
                    save_checkpoint(self.folder.checkpoint, self.model, state, self.fingerprint)
        if not last:
            last = self.folder.read_metrics()[-1]
        self._finish(last)
        return RunResult(
            folder=self.folder.path,
            accuracy=last["accuracy"],
            loss=last["loss"],
            rounds=self.settings.rounds,
            seconds=time.perf_counter() - began,
        )

    def _metrics(self, state: TrainingState) -> MetricsFile:
        return MetricsFile(self.folder.metrics, size=state.metrics_size)

    def _finish(self, last: Metrics) -> None:
        # Copies: a weight that is a view would be saved with all the memory that it is a view of.
        weights = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        write_atomically(self.folder.model, as_bytes(weights))
        summary = {
            "status": "complete",
            "rounds": self.settings.rounds,
            "noise_from": noise_words(self.settings, simulated=True),
            "fingerprint": self.fingerprint,
            **_evaluated(last),
        }
        write_json(self.folder.summary, summary)

    def _records(self, state: TrainingState, ledger: Ledger, fresh: bool) -> Generator[Metrics]:
        if fresh:
            yield {"round": 0, **self._evaluation()}
        if (
            self.device.type == "cuda"
            and self.engine.path == "fused"
            and replayable(self.model, self.loss, self.inputs)
        ):
            yield from self._replayed(state, ledger)
            return
        for index in range(state.rounds_done, self.settings.rounds):
            record = self._round(self.preparation.schedule.round(index), state, ledger)
            if state.rounds_done % self.settings.evaluate_every == 0 or state.rounds_done == self.settings.rounds:
                record |= self._evaluation()
            yield record

    def _round(self, drawn: Round, state: TrainingState, ledger: Ledger) -> Metrics:
        preparation, settings = self.preparation, self.settings
        found = self._clipped_sum(drawn)
        signal = found.signal
        mean_loss = found.mean_loss
        self._refuse_odd(drawn.index, mean_loss, signal)
        releases = preparation.releases(drawn)
        std = combined_std(releases, preparation.update_weights(drawn), settings.per_round)
        size, source = self.engine.parameter_count, self.noise
        noise = round_noise(std, size, source=source, index=drawn.index, device=self.device)
        noise_norm = float(torch.linalg.vector_norm(noise, dtype=torch.float64))
        ledger.append(releases)
        step = settings.learning_rate_at(drawn.index)
        # Rounded only now: what is done to the noisy sum shows nothing more, what is done to the bare one might.
        self._apply((found.gradient + noise).to(torch.float32), step, state)
        state.rounds_done = drawn.index + 1
        return {
            "round": state.rounds_done,
            "learning_rate": step,
            "distinct_clients": len(releases),
            "train_loss": mean_loss,
            "share_clipped": found.share_clipped,
            "mean_sample_norm": found.mean_norm,
            "gradient_norm": signal,
            "noise_norm": noise_norm,
            "noise_to_signal": noise_norm / signal if signal > 0 else None,
        }

    def _replayed(self, state: TrainingState, ledger: Ledger) -> Iterator[Metrics]:
        """The same on CUDA, queued block by block; the host reads a block's numbers while the next one runs.

        A block's releases are in the ledger before it is queued. Where a round is not finite the device skips it and
        all after it, so the ledger may then name releases that were not made, never the other way round.
        """
        data = self.inputs, self.targets
        rounds = graph_rounds(self.engine, *data, self.preparation, self.partition, self._evaluator())
        if state.velocity is not None:
            rounds.load(self.model.state_dict(), state.velocity)
        queued: deque[tuple[range, Pending]] = deque()
        try:
            for block in blocks_between(state.rounds_done, self.settings):
                drawn = [self.preparation.schedule.round(index) for index in block]
                releases = [self.preparation.releases(single) for single in drawn]
                ledger.append(itertools.chain.from_iterable(releases))
                evaluate = due(block.stop, self.settings.evaluate_every, self.settings.rounds)
                keep = due(block.stop, self.settings.checkpoint_every, self.settings.rounds)
                inputs = [
                    round_inputs(self.preparation, self.partition, *pair, self.noise)
                    for pair in zip(drawn, releases, strict=True)
                ]
                queued.append((block, rounds.launch(inputs, evaluate=evaluate, snapshot=keep)))
                if len(queued) > 1:
                    yield from self._read(*queued.popleft(), state)
            while queued:
                yield from self._read(*queued.popleft(), state)
        finally:
            # Also when interrupted: what is queued still writes to memory that the next run may be given.
            rounds.wait()

    def _read(self, block: range, pending: Pending, state: TrainingState) -> Iterator[Metrics]:
        measures = pending.measures().tolist()
        for index, values in zip(block, measures, strict=True):
            found = dict(zip(MEASURES, values, strict=True))
            signal = found["gradient_norm"]
            self._refuse_odd(index, found["train_loss"], signal)
            state.rounds_done = index + 1
            record: Metrics = {
                "round": index + 1,
                "learning_rate": self.settings.learning_rate_at(index),
                "distinct_clients": len(self.preparation.schedule.round(index).clients),
                **found,
                "noise_to_signal": found["noise_norm"] / signal if signal > 0 else None,
            }
            if index + 1 == block.stop:
                if pending.snapshot is not None:
                    state.weights, state.velocity = pending.snapshot.weights, pending.snapshot.velocity
                evaluation = pending.evaluation()
                if evaluation is not None:
                    record |= _as_metrics(evaluation)
            yield record

    def _refuse_odd(self, index: int, loss: float, signal: float) -> None:
        if not (math.isfinite(signal) and math.isfinite(loss)):
            raise TrainingStoppedError(
                f"round {index + 1} of {self.settings.rounds}: the loss is {loss}, the gradient's norm {signal}; "
                f"training stops before releasing it, all earlier rounds are kept in {self.folder.path} "
                "(a smaller learning_rate may help)"
            )

    def _evaluator(self) -> Evaluator:
        return Evaluator(
            self.test_inputs,
            self.test_targets,
            num_classes=self.dataset.num_classes,
            loss=self.loss,
            precision=self.engine.precision,
        )

    def _clipped_sum(self, drawn: Round) -> ClippedSum:
        clients = drawn.clients.tolist()
        rows = torch.cat([self.held[k] for k in clients]).to(self.device)
        sizes = [len(self.held[k]) for k in clients]
        weights = sample_weights(sizes, drawn.multiplicities.tolist(), self.settings.per_round, device=self.device)
        if self.preparation.contract.update_weights is not None:
            server = torch.tensor(self.preparation.update_weights(drawn), dtype=torch.float32, device=self.device)
            weights = weights * server.repeat_interleave(torch.tensor(sizes, device=self.device))
        # Layers that draw at random (Dropout) must draw the same when a round is repeated after a kill.
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(derived_seed(self.settings.seed, "layers", round=drawn.index))
            return self.engine.clipped_sum(self.inputs[rows], self.targets[rows], weights)

    @torch.no_grad()
    def _apply(self, gradient: Tensor, step: float, state: TrainingState) -> None:
        if self.settings.momentum:
            if state.velocity is None:
                state.velocity = torch.zeros_like(gradient)
            gradient = state.velocity.mul_(self.settings.momentum).add_(gradient)
        parameters = dict(self.model.named_parameters())
        for name, piece in self.engine.unflatten(gradient).items():
            parameters[name].add_(piece, alpha=-step)

    def _evaluation(self) -> Metrics:
        found = evaluate(
            self.model,
            self.test_inputs,
            self.test_targets,
            num_classes=self.dataset.num_classes,
            loss=self.loss,
            precision=self.engine.precision,
        )
        return _as_metrics(found)


def _as_metrics(found: Evaluation) -> Metrics:
    # The loss can overflow while the accuracy is still a number; JSON has no infinity.
    loss = found.loss if math.isfinite(found.loss) else None
    return {"accuracy": found.accuracy, "loss": loss, "class_accuracy": list(found.class_accuracy)}


def _evaluated(record: Metrics) -> Metrics:
    return {name: record[name] for name in ("accuracy", "loss", "class_accuracy")}
