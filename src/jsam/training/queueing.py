"""From a prepared run to what a CUDA device is given: blocks of rounds with their rows and weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from jsam.privacy import Release, Round
from jsam.runs.noise_plan import Preparation
from jsam.runs.noise_source import NoiseSource
from jsam.runs.settings import TrainingSettings
from jsam.training.clipping import ClippingEngine, PerSampleLoss, cross_entropy, sample_weights
from jsam.training.clipping.inspection import draws_at_random
from jsam.training.clipping.rowwise import is_rowwise
from jsam.training.evaluation import Evaluator
from jsam.training.graphs import GraphRounds, RoundInputs, batch_sizes
from jsam.training.partition import Partition
from jsam.training.round_noise import combined_std, rounded_up


def replayable(model: nn.Module, loss: PerSampleLoss, inputs: Tensor | NDArray[Any]) -> bool:
    """Whether a round can be recorded as a CUDA graph: the model is known for such inputs, and draws no numbers."""
    return loss is cross_entropy and is_rowwise(model, inputs.ndim) and not draws_at_random(model)


def due(rounds_done: int, every: int, rounds: int) -> bool:
    return rounds_done % every == 0 or rounds_done == rounds


def blocks_between(done: int, settings: TrainingSettings) -> Iterator[range]:
    """The rounds still to do, cut where something is evaluated or kept."""
    start = done
    while start < settings.rounds:
        stop = start + 1
        while not (
            due(stop, settings.evaluate_every, settings.rounds) or due(stop, settings.checkpoint_every, settings.rounds)
        ):
            stop += 1
        yield range(start, stop)
        start = stop


def round_inputs(
    preparation: Preparation, partition: Partition, drawn: Round, releases: Sequence[Release], noise: NoiseSource
) -> RoundInputs:
    """One round as the device needs it; its noise is that of the very releases recorded."""
    settings, clients = preparation.settings, drawn.clients.tolist()
    sizes = [preparation.sizes[k] for k in clients]
    weights = sample_weights(sizes, drawn.multiplicities.tolist(), settings.per_round)
    shares = preparation.update_weights(drawn)
    if preparation.contract.update_weights is not None:
        weights = weights * torch.tensor(shares, dtype=torch.float32).repeat_interleave(torch.tensor(sizes))
    std = combined_std(releases, shares, settings.per_round)
    return RoundInputs(
        rows=np.concatenate([partition.indices[k] for k in clients]),
        weights=weights,
        noise_scale=float(rounded_up(std)),
        noise_seed=noise.device_seed(drawn.index),
        step=settings.learning_rate_at(drawn.index),
    )


def batch_size_counts(partition: Partition, per_round: int) -> tuple[int, ...]:
    """Batch sizes that any schedule can have, where all clients are of one size; else a few that cover them."""
    largest = sorted(partition.sizes)[-per_round:]
    sizes = range(1, len(largest) + 1)
    return tuple(sum(largest[-count:]) for count in sizes)


def graph_rounds(
    engine: ClippingEngine,
    inputs: Tensor,
    targets: Tensor,
    preparation: Preparation,
    partition: Partition,
    evaluator: Evaluator,
) -> GraphRounds:
    """The memory and graphs for this run's rounds."""
    settings = preparation.settings
    rows = [sum(partition.sizes[k] for k in drawn.clients) for drawn in preparation.schedule]
    return GraphRounds(
        engine.model,
        engine,
        inputs,
        targets,
        sizes=batch_sizes(rows),
        block=max(len(block) for block in blocks_between(0, settings)),
        momentum=settings.momentum,
        evaluator=evaluator,
    )
