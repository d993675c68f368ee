"""An attack on one client: what the server learns about a single sample is no more than that client sold."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import scipy.stats
from numpy.typing import NDArray

from tests.conftest import require

if TYPE_CHECKING:
    import torch
else:
    torch = require("torch", extra="train")

from jsam.privacy import gdp_mu, read_ledger
from jsam.training import eager_rounds
from jsam.training.data import dataset_from_arrays
from jsam.training.partition import Partition
from jsam.training.recorded_run import train
from jsam.training.round_inputs import round_noise
from jsam.training.task import Task
from tests.training.small import small_contract, small_settings

pytestmark = pytest.mark.filterwarnings("ignore::jsam.errors.TrainingWarning")

RUNS = 60
ROUNDS, PER_ROUND, CLIP_NORM = 5, 2, 0.7
SIZES = (6, 4, 5)
TARGET, EPSILON = 1, 8.0
# The others sell so much that their noise hardly hides the target's release, and they hold data of their own.
CONTRACT = small_contract(
    len(SIZES), epsilons=np.array([300.0, EPSILON, 200.0]), selection_probs=np.array([0.2, 0.6, 0.2])
)
CANARY = np.array([0.6, -0.8, 0.0, 0.0], dtype=np.float32)


def _task(*, canary: bool) -> Task:
    """The loss is the first output of a linear model, so a sample's gradient is the sample itself, clipped.

    The target's other samples are zero and the canary is far longer than the clipping norm: the worst case.
    """
    inputs = np.random.default_rng(8).normal(size=(sum(SIZES), len(CANARY))).astype(np.float32)
    cuts = list(itertools.pairwise(np.cumsum((0, *SIZES)).tolist()))
    first, end = cuts[TARGET]
    inputs[first:end] = 0.0
    if canary:
        inputs[first] = 50.0 * CANARY
    labels = np.zeros(len(inputs), dtype=np.int64)
    dataset = dataset_from_arrays(
        "canary", inputs, labels, test_inputs=inputs[:2], test_targets=labels[:2], num_classes=2
    )
    held = tuple(np.arange(a, b, dtype=np.int64) for a, b in cuts)
    split = Partition(indices=held, num_samples=len(inputs), description="canary", seed=0)
    model = torch.nn.Linear(len(CANARY), 2, bias=False)
    torch.nn.init.zeros_(model.weight)
    return Task(dataset=dataset, partition=split, model=model, loss=lambda outputs, _: outputs[:, 0])


def _seen(folder: Path, *, canary: bool, seed: int) -> NDArray[np.float64]:
    """All that the server sees of a run: the mean update of every round, here its part along the canary."""
    task, weights = _task(canary=canary), []
    settings = small_settings(
        rounds=ROUNDS, per_round=PER_ROUND, clip_norm=CLIP_NORM, learning_rate=1.0, seed=seed, noise_seed=seed,
        evaluate_every=ROUNDS, checkpoint_every=ROUNDS,
    )  # fmt: skip
    weight = next(task.model.parameters()).detach()
    train(CONTRACT, task, settings, folder, progress=lambda _: weights.append(weight[0].double().numpy().copy()))
    return -np.diff(np.stack(weights), axis=0) @ CANARY.astype(np.float64)


def _others(releases: list[list[tuple[str, int]]]) -> NDArray[np.float64]:
    """What the other clients add along the canary; the attacker may know everybody else's data."""
    inputs = _task(canary=False).dataset.train_inputs.astype(np.float64)
    norms = np.linalg.norm(inputs, axis=1, keepdims=True)
    clipped = inputs * np.minimum(1.0, CLIP_NORM / np.maximum(norms, 1e-12))
    cuts = np.cumsum((0, *SIZES))
    means = {str(k): clipped[cuts[k] : cuts[k + 1]].mean(axis=0) @ CANARY for k in range(len(SIZES))}
    return np.array([sum(m * means[name] for name, m in drawn) / PER_ROUND for drawn in releases])


def _says_canary(folder: Path, *, canary: bool, seed: int) -> bool | None:
    """The likelihood-ratio test at its middle, the best there is; None if the target was never drawn."""
    seen = _seen(folder, canary=canary, seed=seed)
    rounds = [[r for r in read_ledger(folder / "ledger.jsonl") if r.round == t] for t in range(ROUNDS)]
    target = CONTRACT.ids[TARGET]
    draws = np.array([sum(r.multiplicity for r in found if r.client == target) for found in rounds])
    if not draws.any():
        return None
    shift = draws * CLIP_NORM / SIZES[TARGET] / PER_ROUND
    std = np.array([np.sqrt(sum((r.multiplicity * r.noise_std) ** 2 for r in found)) for found in rounds]) / PER_ROUND
    rest = seen - _others(
        [[(str(CONTRACT.ids.index(str(r.client))), r.multiplicity) for r in found] for found in rounds]
    )
    return bool((shift * (rest - shift / 2) / std**2).sum() > 0)


def _least_mu(folder: Path, runs: int = RUNS) -> float:
    """99% sure: the client's μ is at least this. No assumption about the noise's shape is made.

    μ-GDP allows no test with errors (α, β) below Φ⁻¹(1 − α) − Φ⁻¹(β) = μ; each error is bounded from above
    (Clopper and Pearson) at half a percent.
    """
    errors, counts = {}, {}
    for canary in (False, True):
        # Seeds of its own for either world: with common noise the attack would look better than it is.
        answers = [_says_canary(folder / f"{canary}-{i}", canary=canary, seed=2 * i + canary) for i in range(runs)]
        given = [answer for answer in answers if answer is not None]
        errors[canary], counts[canary] = sum(answer != canary for answer in given), len(given)
    worst = {w: scipy.stats.beta.ppf(0.995, errors[w] + 1, counts[w] - errors[w]) for w in errors}
    return float(scipy.stats.norm.isf(worst[False]) + scipy.stats.norm.isf(worst[True]))


@pytest.fixture
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.mark.usefixtures("quick_disk")
def test_one_clients_canary_shows_no_more_than_the_client_sold(tmp_path: Path) -> None:
    sold = gdp_mu(EPSILON, 1e-5)
    found = _least_mu(tmp_path)
    # Not above, and so near that the attack is worth its name.
    assert 0.3 * sold < found <= sold


@pytest.mark.usefixtures("quick_disk")
def test_the_same_attack_proves_it_when_the_noise_is_half_of_what_was_sold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eager_rounds, "round_noise", lambda std, size, **rest: round_noise(std / 2, size, **rest))
    assert _least_mu(tmp_path) > gdp_mu(EPSILON, 1e-5)
