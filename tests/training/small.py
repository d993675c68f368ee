"""A task that trains in milliseconds, and contracts for it."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats
import torch
from torch import nn

import jsam
from jsam.mechanism.contract import Contract
from jsam.runs.settings import TrainingSettings
from jsam.training.data import dataset_from_arrays
from jsam.training.partition import Partition
from jsam.training.recorded_run import RunResult, train
from jsam.training.task import Task

SIZES = (12, 30, 18, 30, 24, 30)


def seeded_model(*, dropout: float = 0.0, seed: int = 3) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 3))


def small_task(*, sizes: tuple[int, ...] = SIZES, dropout: float = 0.0, model: nn.Module | None = None) -> Task:
    """Three clouds of points, dealt out in pieces of the given sizes."""
    rng = np.random.default_rng(11)
    total = sum(sizes)
    labels = rng.integers(0, 3, size=total + 60)
    points = rng.normal(size=(total + 60, 4)) + 2.0 * np.eye(4)[labels]
    dataset = dataset_from_arrays(
        "clouds", points[:total], labels[:total], test_inputs=points[total:], test_targets=labels[total:], num_classes=3
    )
    cuts = np.cumsum((0, *sizes))
    held = tuple(np.arange(a, b, dtype=np.int64) for a, b in itertools.pairwise(cuts))
    split = Partition(indices=held, num_samples=total, description="pieces", seed=0)
    return Task(dataset=dataset, partition=split, model=model or seeded_model(dropout=dropout))


def small_contract(num_clients: int = len(SIZES), *, epsilon_cap: float = 8.0, **changes: Any) -> Contract:
    """Every client under contract, at different ε."""
    reports = np.linspace(0.15, 0.9, num_clients)
    market = jsam.Market(sensitivities=reports, prior=scipy.stats.uniform(0, 1))
    contract = jsam.plan(market, jsam.USBM(loss_weight=40.0, max_epsilon=epsilon_cap))
    return dataclasses.replace(contract, **changes)


def small_settings(**changes: Any) -> TrainingSettings:
    given: dict[str, Any] = {
        "rounds": 8,
        "per_round": 4,
        "clip_norm": 0.7,
        "learning_rate": 0.3,
        "evaluate_every": 3,
        "checkpoint_every": 3,
        "seed": 5,
        # Known noise, so that tests can repeat a run; runs with a secret key ask for None.
        "noise_seed": 5,
        "threads": 1,
    }
    return TrainingSettings(**{**given, **changes})


def run(folder: Path, *, contract: Contract | None = None, task: Task | None = None, **changes: Any) -> RunResult:
    task = task or small_task()
    return train(contract or small_contract(task.partition.num_clients), task, small_settings(**changes), folder)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a run."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
