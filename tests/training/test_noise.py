"""The noise that reaches the model is the contract's: its scale by a test that can reject, its worth by an attack."""

from __future__ import annotations

import os
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

from jsam.privacy import Schedule, gdp_mu, noise_multiplier
from jsam.training import loop
from jsam.training.data import dataset_from_arrays
from jsam.training.noise import round_noise
from jsam.training.partition import Partition
from jsam.training.task import Task
from tests.training.small import small_contract, small_settings

pytestmark = pytest.mark.filterwarnings("ignore::jsam.training.errors.TrainingWarning")

CLIENTS, SAMPLES, WIDTH = 16, 5, 24
CPU = torch.device("cpu")
EPSILON = 4.0
# Equal ε for all: every client's release is one more look at the same μ.
CONTRACT = small_contract(CLIENTS, epsilons=np.full(CLIENTS, EPSILON))


def _task(*, canaries: bool) -> tuple[Task, NDArray[np.float64]]:
    """The loss is the first output of a linear model, so a sample's gradient is the sample itself.

    All samples are zero but, where asked for, the first of each client, which is far longer than any clipping norm: the
    worst case that the sensitivity is made for. Also returns everybody's direction.
    """
    directions = np.random.default_rng(8).normal(size=(CLIENTS, WIDTH))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    inputs = np.zeros((CLIENTS * SAMPLES, WIDTH), dtype=np.float32)
    if canaries:
        inputs[::SAMPLES] = 50.0 * directions
    labels = np.zeros(len(inputs), dtype=np.int64)
    dataset = dataset_from_arrays(
        "canaries", inputs, labels, test_inputs=inputs[:2], test_targets=labels[:2], num_classes=2
    )
    held = tuple(np.arange(k * SAMPLES, (k + 1) * SAMPLES, dtype=np.int64) for k in range(CLIENTS))
    split = Partition(indices=held, num_samples=len(inputs), description="canaries", seed=0)
    model = torch.nn.Linear(WIDTH, 2, bias=False)
    torch.nn.init.zeros_(model.weight)
    return Task(dataset=dataset, partition=split, model=model, loss=lambda outputs, _: outputs[:, 0]), directions


def _weight(task: Task) -> torch.Tensor:
    return next(task.model.parameters()).detach().double()


def _updates(folder: Path, *, canaries: bool, **changes: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """What the server saw in every round (mean gradients, both outputs), and the canaries' directions."""
    task, directions = _task(canaries=canaries)
    seen = []
    settings = small_settings(learning_rate=1.0, evaluate_every=1000, checkpoint_every=1000, **changes)
    loop.train(
        CONTRACT,
        task,
        settings,
        folder,
        progress=lambda record: seen.append(_weight(task).numpy().copy()),
    )
    return -np.diff(np.stack(seen), axis=0), directions


def _accepted(values: NDArray[np.float64], scale: float) -> bool:
    """Whether mean square and shape are those of N(0, scale²), each tested at one in ten thousand."""
    squares = float((values**2).sum()) / scale**2
    right_scale = 2 * min(scipy.stats.chi2.cdf(squares, values.size), scipy.stats.chi2.sf(squares, values.size)) > 1e-4
    return bool(right_scale and scipy.stats.kstest(values / scale, "norm").pvalue > 1e-4)


def test_the_noise_on_the_model_has_the_contracts_scale_and_no_other(tmp_path: Path) -> None:
    """With no signal at all the updates are the noise; 2/3 and 3/2 of the scale are rejected."""
    found, _ = _updates(tmp_path / "run", canaries=False, rounds=30, per_round=4)
    schedule = Schedule.draw(CONTRACT.selection_probs, rounds=30, per_round=4, seed=5)
    sigma = noise_multiplier(CONTRACT.epsilons, 1e-5, schedule.participations) * 0.7 / SAMPLES
    expected = np.array([np.sqrt((sigma[row] ** 2).sum()) / 4 for row in schedule.draws])
    scaled = (found / expected[:, None, None]).ravel()
    assert _accepted(scaled, 1.0)
    assert not _accepted(scaled, 2 / 3)
    assert not _accepted(scaled, 3 / 2)


def test_rounds_and_coordinates_are_independent_of_each_other() -> None:
    rows = np.stack([round_noise(1.0, 4000, seed=1, index=t, device=CPU).numpy() for t in range(20)]).astype(float)
    between = np.corrcoef(rows)[np.triu_indices(20, 1)]
    assert np.abs(between).max() < 5 / np.sqrt(4000)
    assert abs(np.corrcoef(rows[:, :-1].ravel(), rows[:, 1:].ravel())[0, 1]) < 5 / np.sqrt(80_000)


def test_a_round_repeats_its_own_noise_and_scales_are_rounded_up() -> None:
    one, again = (round_noise(0.3, 50, seed=9, index=4, device=CPU) for _ in range(2))
    assert torch.equal(one, again)
    assert not torch.equal(one, round_noise(0.3, 50, seed=9, index=5, device=CPU))
    assert not torch.equal(one, round_noise(0.3, 50, seed=10, index=4, device=CPU))
    for std in (0.1, 1 / 3, 1e-20, 12345.6789):
        unit = round_noise(1.0, 50, seed=9, index=4, device=CPU).double()
        ratio = (round_noise(std, 50, seed=9, index=4, device=CPU).double() / unit).median()
        assert float(ratio) >= std * (1 - 1e-7)


def _statistics(folder: Path, *, canaries: bool, runs: int = 6) -> NDArray[np.float64]:
    """The best an attacker can do who sees every update and the schedule: each client's own direction, added up.

    One number a client and run, over the standard deviation that the contract's noise has.
    """
    numbers = []
    for number in range(runs):
        name = folder / f"{canaries}-{number}"
        # Seeds of its own for either world: with common noise the difference would be too good an estimate.
        seed = number + 1000 * canaries
        found, directions = _updates(name, canaries=canaries, rounds=48, per_round=1, seed=seed)
        schedule = Schedule.load(name / "schedule.jsonl")
        times = schedule.participations
        sigma = noise_multiplier(CONTRACT.epsilons, 1e-5, times) * 0.7 / SAMPLES
        for k in np.flatnonzero(times):
            rounds = np.flatnonzero(schedule.draws[:, 0] == k)
            numbers.append((found[rounds, 0] @ directions[k]).sum() / (np.sqrt(times[k]) * sigma[k]))
    return np.array(numbers)


def _interval(with_canary: NDArray[np.float64], without: NDArray[np.float64]) -> tuple[float, float]:
    """99% interval of μ, the shift in units of the spread that the attacker observes."""
    spread = float(np.concatenate([with_canary - with_canary.mean(), without - without.mean()]).std())
    middle = float(with_canary.mean() - without.mean()) / spread
    variance = 1 / len(with_canary) + 1 / len(without) + middle**2 / 2 / (len(with_canary) + len(without))
    return middle - 2.576 * variance**0.5, middle + 2.576 * variance**0.5


def test_an_attack_with_a_canary_learns_no_more_than_was_sold_and_more_if_the_noise_is_halved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attack is the best there is and the noise no more than needed, so it must also get near what was sold."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    sold = gdp_mu(EPSILON, 1e-5)
    low, high = _interval(_statistics(tmp_path, canaries=True), _statistics(tmp_path, canaries=False))
    assert low <= sold
    assert high >= sold * 0.95

    monkeypatch.setattr(loop, "round_noise", lambda std, size, **rest: round_noise(std / 2, size, **rest))
    half = tmp_path / "half"
    assert _interval(_statistics(half, canaries=True), _statistics(half, canaries=False))[0] > sold
