"""The noise of a round: one draw for all clients of it, with the variance that their releases add up to.

A sum of independent Gaussians is one Gaussian (docs/theory.md), so the simulator draws the sum itself. What the
server sees, the mean update, has the same distribution as if each client had added its own; the ledger records each
client's release, at its own scale, and those are what accountants judge. The draw is a function of the noise's source
and the round, so a round repeated on resume repeats its very releases.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from jsam.privacy import Release
from jsam.runs.noise_source import NoiseSource


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
