"""The noise that reaches the model is the contract's, by tests that can reject."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import scipy.stats
from numpy.typing import NDArray

from tests.conftest import require

if TYPE_CHECKING:
    import torch
else:
    torch = require("torch", extra="train")

from jsam.privacy import Schedule, noise_multiplier
from jsam.runs.noise_source import SeededNoise
from jsam.training.data import dataset_from_arrays
from jsam.training.partition import Partition
from jsam.training.recorded_run import train
from jsam.training.round_inputs import round_noise
from jsam.training.task import Task
from tests.training.small import small_contract, small_settings

pytestmark = pytest.mark.filterwarnings("ignore::jsam.errors.TrainingWarning")

CLIENTS, SAMPLES, WIDTH = 16, 5, 24
CPU = torch.device("cpu")
CONTRACT = small_contract(CLIENTS)


def _updates(folder: Path, **changes: Any) -> NDArray[np.float64]:
    """What the server saw in every round of a run whose every gradient is zero: its inputs are."""
    inputs = np.zeros((CLIENTS * SAMPLES, WIDTH), dtype=np.float32)
    labels = np.zeros(len(inputs), dtype=np.int64)
    dataset = dataset_from_arrays(
        "nothing", inputs, labels, test_inputs=inputs[:2], test_targets=labels[:2], num_classes=2
    )
    held = tuple(np.arange(k * SAMPLES, (k + 1) * SAMPLES, dtype=np.int64) for k in range(CLIENTS))
    split = Partition(indices=held, num_samples=len(inputs), description="nothing", seed=0)
    model = torch.nn.Linear(WIDTH, 2, bias=False)
    torch.nn.init.zeros_(model.weight)
    task = Task(dataset=dataset, partition=split, model=model, loss=lambda outputs, _: outputs[:, 0])
    seen: list[NDArray[np.float64]] = []
    settings = small_settings(learning_rate=1.0, evaluate_every=1000, checkpoint_every=1000, **changes)
    train(
        CONTRACT, task, settings, folder, progress=lambda _: seen.append(model.weight.detach().double().numpy().copy())
    )
    return -np.diff(np.stack(seen), axis=0)


def _accepted(values: NDArray[np.float64], scale: float) -> bool:
    """Whether mean square and shape are those of N(0, scale²), each tested at one in ten thousand."""
    squares = float((values**2).sum()) / scale**2
    right_scale = 2 * min(scipy.stats.chi2.cdf(squares, values.size), scipy.stats.chi2.sf(squares, values.size)) > 1e-4
    return bool(right_scale and scipy.stats.kstest(values / scale, "norm").pvalue > 1e-4)


def test_the_noise_on_the_model_has_the_contracts_scale_and_no_other(tmp_path: Path) -> None:
    """With no signal at all the updates are the noise; 2/3 and 3/2 of the scale are rejected."""
    found = _updates(tmp_path / "run", rounds=30, per_round=4)
    schedule = Schedule.draw(CONTRACT.selection_probs, rounds=30, per_round=4, seed=5)
    sigma = noise_multiplier(CONTRACT.epsilons, 1e-5, schedule.participations) * 0.7 / SAMPLES
    expected = np.array([np.sqrt((sigma[row] ** 2).sum()) / 4 for row in schedule.draws])
    scaled = (found / expected[:, None, None]).ravel()
    assert _accepted(scaled, 1.0)
    assert not _accepted(scaled, 2 / 3)
    assert not _accepted(scaled, 3 / 2)


def test_rounds_and_coordinates_are_independent_of_each_other() -> None:
    rows = np.stack(
        [round_noise(1.0, 4000, source=SeededNoise(1), index=t, device=CPU).numpy() for t in range(20)]
    ).astype(float)
    between = np.corrcoef(rows)[np.triu_indices(20, 1)]
    assert np.abs(between).max() < 5 / np.sqrt(4000)
    assert abs(np.corrcoef(rows[:, :-1].ravel(), rows[:, 1:].ravel())[0, 1]) < 5 / np.sqrt(80_000)


def test_a_round_repeats_its_own_noise_and_scales_are_rounded_up() -> None:
    one, again = (round_noise(0.3, 50, source=SeededNoise(9), index=4, device=CPU) for _ in range(2))
    assert torch.equal(one, again)
    assert not torch.equal(one, round_noise(0.3, 50, source=SeededNoise(9), index=5, device=CPU))
    assert not torch.equal(one, round_noise(0.3, 50, source=SeededNoise(10), index=4, device=CPU))
    for std in (0.1, 1 / 3, 1e-20, 12345.6789):
        unit = round_noise(1.0, 50, source=SeededNoise(9), index=4, device=CPU).double()
        ratio = (round_noise(std, 50, source=SeededNoise(9), index=4, device=CPU).double() / unit).median()
        assert float(ratio) >= std * (1 - 1e-7)
