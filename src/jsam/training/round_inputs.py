"""What a round takes in: the rows of the clients drawn, the weight of each, and for a CUDA device noise and step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from jsam.privacy import Release, Round
from jsam.runs.noise_plan import NoisePlan
from jsam.runs.noise_source import NoiseSource
from jsam.training.clipping import sample_weights
from jsam.training.partition import Partition
from jsam.training.round_noise import combined_std, rounded_up


@dataclass(frozen=True, kw_only=True)
class RoundInputs:
    """One round as a CUDA device needs it: which rows weigh how much, the scale of the noise and its seed, the step.

    `noise_seed` is as secret as the noise's key: nothing stores or shows it.
    """

    rows: NDArray[np.int64]
    weights: Tensor
    noise_scale: float
    noise_seed: int = field(repr=False)
    step: float


def rows_and_weights(plan: NoisePlan, partition: Partition, drawn: Round) -> tuple[NDArray[np.int64], Tensor]:
    """The rows of the training data that the round sums over, client after client, and the weight of each."""
    clients = drawn.clients.tolist()
    sizes = [plan.sizes[k] for k in clients]
    weights = sample_weights(sizes, drawn.multiplicities.tolist(), plan.settings.per_round)
    if plan.contract.update_weights is not None:
        server = torch.tensor(plan.update_weights(drawn), dtype=torch.float32)
        weights = weights * server.repeat_interleave(torch.tensor(sizes))
    return np.concatenate([partition.indices[k] for k in clients]), weights


def round_inputs(
    plan: NoisePlan, partition: Partition, drawn: Round, releases: Sequence[Release], noise: NoiseSource
) -> RoundInputs:
    """One round as a CUDA device needs it; its noise is that of the very releases recorded."""
    rows, weights = rows_and_weights(plan, partition, drawn)
    std = combined_std(releases, plan.update_weights(drawn), plan.settings.per_round)
    return RoundInputs(
        rows=rows,
        weights=weights,
        noise_scale=float(rounded_up(std)),
        noise_seed=noise.device_seed(drawn.index),
        step=plan.settings.learning_rate_at(drawn.index),
    )
