"""Which numbers a noisy update can be must not tell what it was before the noise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tests.conftest import require

if TYPE_CHECKING:
    import torch
else:
    torch = require("torch", extra="train")

from jsam.runs.noise_source import SecretNoise
from jsam.training.round_inputs import round_noise

SIZE, RECORDS, STD = 100_000, 100, 0.05


def _impossible(update: NDArray[np.float32], gradient: NDArray[np.float64]) -> float:
    """In which share of the entries the noise that this gradient leaves is no fp32 number, where that can be seen."""
    noise = update.astype(np.float64) - gradient
    step, seen = np.spacing(np.abs(noise).astype(np.float32)).astype(float), np.spacing(np.abs(update)).astype(float)
    fine = 4 * seen <= step
    places = noise[fine] / step[fine]
    return float((np.abs(places - np.round(places)) > seen[fine] / step[fine] / 2 + 1e-6).mean())


def test_one_record_does_not_show_in_the_grid_of_the_noise() -> None:
    """Who knows all records but one compares the update with both sums. Noise of fp32 would fit one and not the other:
    a certain answer, where μ of this release is 0.2."""
    rng = np.random.default_rng(0)
    without = rng.normal(size=SIZE)
    without *= 0.9 / np.linalg.norm(without)
    record = rng.normal(size=SIZE)
    sums = without, without + record / np.linalg.norm(record) / RECORDS
    for truth in sums:
        noise = round_noise(STD, SIZE, source=SecretNoise(bytes(16)), index=0, device=torch.device("cpu"))
        update = (torch.from_numpy(truth) + noise).to(torch.float32).numpy()
        shares = [_impossible(update, gradient) for gradient in sums]
        assert abs(shares[0] - shares[1]) < 0.05
        spoilt = (torch.from_numpy(truth) + noise.float()).to(torch.float32).numpy()
        assert min(_impossible(spoilt, gradient) for gradient in sums) == 0.0, "the attack must see noise of fp32"
        assert max(_impossible(spoilt, gradient) for gradient in sums) > 0.5
