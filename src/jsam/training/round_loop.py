"""The one loop of training: rounds are launched block by block, read in order, and end at what is not finite.

A recorded run, a trial by itself and trials side by side all walk through `made_rounds`. What differs is who makes a
round (`EagerRounds` at once, `ReplayedRounds` as graphs on a CUDA device) and who listens.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from jsam.errors import TrainingStoppedError
from jsam.privacy import Release
from jsam.runs.noise_plan import NoisePlan
from jsam.runs.settings import TrainingSettings
from jsam.training.evaluation import Evaluation

MEASURES = ("train_loss", "share_clipped", "mean_sample_norm", "gradient_norm", "noise_norm")

Metrics = dict[str, Any]
Announce = Callable[[Iterable[Release]], object]


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Weights and momentum as they were after a block."""

    weights: Mapping[str, Tensor]
    velocity: Tensor | None


@dataclass(frozen=True, kw_only=True)
class Block:
    """What some successive rounds came to: the `MEASURES` of each, and what was asked for at their end."""

    measures: Sequence[Sequence[float]]
    evaluation: Evaluation | None = None
    snapshot: Snapshot | None = None


@dataclass(frozen=True, kw_only=True)
class MadeRound:
    """A round that has changed the model; `metrics` is its line of metrics.jsonl."""

    metrics: Metrics
    snapshot: Snapshot | None = None

    @property
    def rounds_done(self) -> int:
        return int(self.metrics["round"])


class RoundMaker(Protocol):
    """A way to make rounds on the device."""

    plan: NoisePlan
    ahead: int
    """How many blocks may be under way while the results of an earlier one are read."""

    def blocks(self, done: int) -> Iterator[range]:
        """The rounds after the first `done`, in pieces that are launched at once."""

    def launch(self, block: range, announce: Announce, *, evaluate: bool, snapshot: bool) -> Callable[[], Block]:
        """Make these rounds, or queue them; the function that is returned waits until they are made.

        `announce` is called with the releases of a round before the model is changed by them. A round whose loss or
        gradient is not finite changes nothing, and nor does any that comes after it.
        """

    def wait(self) -> None:
        """Return when all that was launched is over."""


class NotFiniteError(TrainingStoppedError):
    """A round was not made, because its loss or its gradient is not finite."""


def made_rounds(
    maker: RoundMaker, *, done: int = 0, announce: Announce = lambda releases: None, snapshots: bool = False
) -> Generator[MadeRound]:
    """Make the rounds after the first `done`; each comes when the model has been changed by it.

    With `snapshots` the weights come too, wherever a checkpoint is due. Close the generator if it is left early.
    """
    settings = maker.plan.settings
    launched: deque[tuple[range, Callable[[], Block]]] = deque()
    try:
        for block in maker.blocks(done):
            evaluate = due(block.stop, settings.evaluate_every, settings.rounds)
            keep = snapshots and due(block.stop, settings.checkpoint_every, settings.rounds)
            launched.append((block, maker.launch(block, announce, evaluate=evaluate, snapshot=keep)))
            if len(launched) > maker.ahead:
                yield from _read(maker.plan, *launched.popleft())
        while launched:
            yield from _read(maker.plan, *launched.popleft())
    finally:
        # Also when interrupted: what is queued still writes to memory that the next run may be given.
        maker.wait()


def due(rounds_done: int, every: int, rounds: int) -> bool:
    return rounds_done % every == 0 or rounds_done == rounds


def blocks_between(done: int, settings: TrainingSettings) -> Iterator[range]:
    """The rounds after the first `done`, cut where something is evaluated or kept."""
    start = done
    for stop in range(done + 1, settings.rounds + 1):
        if any(due(stop, every, settings.rounds) for every in (settings.evaluate_every, settings.checkpoint_every)):
            yield range(start, stop)
            start = stop


def as_metrics(evaluation: Evaluation) -> Metrics:
    # The loss can overflow while the accuracy is still a number; JSON has no infinity.
    loss = evaluation.loss if math.isfinite(evaluation.loss) else None
    return {"accuracy": evaluation.accuracy, "loss": loss, "class_accuracy": list(evaluation.class_accuracy)}


def _read(plan: NoisePlan, rounds: range, waited: Callable[[], Block]) -> Iterator[MadeRound]:
    block, settings = waited(), plan.settings
    for index, values in zip(rounds, block.measures, strict=True):
        measures = dict(zip(MEASURES, values, strict=True))
        loss, signal = measures["train_loss"], measures["gradient_norm"]
        if not (math.isfinite(loss) and math.isfinite(signal)):
            raise NotFiniteError(
                f"round {index + 1} of {settings.rounds}: the loss is {loss}, the gradient's norm {signal}"
            )
        metrics: Metrics = {
            "round": index + 1,
            "learning_rate": settings.learning_rate_at(index),
            "distinct_clients": len(plan.schedule.round(index).clients),
            **measures,
            "noise_to_signal": measures["noise_norm"] / signal if signal > 0 else None,
        }
        last = index + 1 == rounds.stop
        if last and block.evaluation is not None:
            metrics |= as_metrics(block.evaluation)
        yield MadeRound(metrics=metrics, snapshot=block.snapshot if last else None)
