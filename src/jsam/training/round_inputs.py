"""What a round takes in: the rows of the clients drawn, the weight of each, and one draw of noise for all of them.

A sum of independent Gaussians is one Gaussian (docs/theory.md), so the simulator draws the sum itself. What the
server sees, the mean update, has the same distribution as if each client had added its own; the ledger records each
client's release, at its own scale, and those are what accountants judge. The draw is a function of the noise's source
and the round, so a round repeated on resume repeats its very releases.
"""

from __future__ import annotations

import math
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


def rows_and_weights(plan: NoisePlan, partition: Partition, drawn: Round) -> tuple[NDArray[np.int64], Tensor]:
    """The rows of the training data that the round sums over, client after client, and the weight of each."""
    clients = drawn.clients.tolist()
    sizes = [plan.sizes[k] for k in clients]
    weights = sample_weights(sizes, drawn.multiplicities.tolist(), plan.settings.per_round)
    if plan.contract.update_weights is not None:
        server = torch.tensor(plan.update_weights(drawn), dtype=torch.float32)
        weights = weights * server.repeat_interleave(torch.tensor(sizes))
    return np.concatenate([partition.indices[k] for k in clients]), weights


def combined_std(releases: Sequence[Release], update_weights: Sequence[float], per_round: int) -> float:
    """The standard deviation on the mean update: sqrt(Σ (m w s)²)/K for releases of std s, weights w and m draws.

    It is computed from the very records that go into the ledger, so the noise and its record cannot disagree.
    """
    shares = (
        release.multiplicity * weight * release.noise_std
        for release, weight in zip(releases, update_weights, strict=True)
    )
    return math.hypot(*shares) / per_round


def rounded_up(std: float) -> np.float32:
    """In fp32, never less."""
    scale = np.float32(std)
    return np.nextafter(scale, np.float32(np.inf)) if scale < std else scale


def round_noise(std: float, size: int, *, source: NoiseSource, index: int, device: torch.device) -> Tensor:
    """The noise of round `index`: `size` independent draws of N(0, std²), the scale rounded up.

    They are fp64, and only what they have been added to may be rounded. Noise that was rounded to fp32 first lies on a
    grid, and where it nearly cancels a gradient the finer sum shows by how much the gradient misses that grid. On CUDA
    fp32 draws also end at 6.8 standard deviations, which a small δ over many coordinates and rounds would notice.
    """
    scale = float(rounded_up(std))
    if device.type == "cuda":
        # Philox takes the whole seed; torch's CPU generator would keep 32 bits of it, so it is not used there.
        own = torch.Generator(device=device).manual_seed(source.device_seed(index))
        return torch.randn(size, generator=own, device=device, dtype=torch.float64).mul_(scale)
    return torch.from_numpy(source.normals(size, index).astype(np.float64, copy=False) * scale)


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
