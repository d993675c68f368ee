"""Trials give what a recorded run gives, leave their task as it was, and may share it."""

from __future__ import annotations

import dataclasses
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jsam.training.trials import Trial, run_trials
from tests.training.small import run, small_contract, small_settings, small_task


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_a_trial_ends_like_a_recorded_run(tmp_path: Path, momentum: float, dropout: float) -> None:
    """Also where layers draw at random."""
    changes: dict[str, Any] = {"momentum": momentum, "learning_rate_schedule": "cosine"}
    recorded = run(tmp_path / "run", task=small_task(dropout=dropout), **changes)
    task = small_task(dropout=dropout)
    trial = Trial(contract=small_contract(), task=task, settings=small_settings(**changes))
    ((_, found),) = list(run_trials([trial]))
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert found.accuracy == recorded.accuracy
    assert found.loss == pytest.approx(recorded.loss, rel=1e-5)
    assert found.curve == tuple((m["round"], m["accuracy"]) for m in metrics if m["round"] and "accuracy" in m)
    norms = [m["gradient_norm"] for m in metrics if "gradient_norm" in m]
    assert found.gradient_norm == pytest.approx(statistics.fmean(norms), rel=1e-5)
    clipped = [m["share_clipped"] for m in metrics if "share_clipped" in m]
    assert found.share_clipped == pytest.approx(statistics.fmean(clipped), rel=1e-5)
    assert not found.diverged


def test_trials_share_a_task_without_touching_it() -> None:
    task = small_task()
    before = {name: value.clone() for name, value in task.model.state_dict().items()}
    trials = [Trial(contract=small_contract(), task=task, settings=small_settings(seed=seed)) for seed in (5, 6)]
    rounds: list[int] = []
    results = dict(run_trials(trials, progress=rounds.append))
    assert sorted(results) == [0, 1]
    assert sum(rounds) == 2 * 8
    ((_, again),) = list(run_trials(trials[:1]))
    assert results[0].loss == again.loss
    assert results[0].loss != results[1].loss
    assert all(bool((before[name] == value).all()) for name, value in task.model.state_dict().items())


def test_trials_that_must_come_to_the_same_are_run_once() -> None:
    """Payments do not matter to training; budgets, probabilities, settings and weights on updates do."""
    task, contract = small_task(), small_contract()
    unpaid = dataclasses.replace(contract, payments=np.zeros_like(contract.payments))
    others = [
        dataclasses.replace(contract, epsilons=2 * contract.epsilons),
        dataclasses.replace(contract, update_weights=np.full(contract.num_clients, 0.5)),
    ]
    trials = [Trial(contract=c, task=task, settings=small_settings()) for c in (contract, *others, unpaid)]
    trials.append(Trial(contract=contract, task=task, settings=small_settings(learning_rate=0.01)))
    rounds: list[int] = []
    results = dict(run_trials(trials, progress=rounds.append))
    assert results[3] is results[0]
    assert len({id(result) for result in results.values()}) == len({r.loss for r in results.values()}) == 4
    assert sum(rounds) == 5 * 8


def test_when_it_is_late_nothing_is_begun_and_nothing_that_was_is_lost() -> None:
    """It gets late in the midst of the first trial: its twin, which costs nothing, comes too."""
    task, contract = small_task(), small_contract()
    seeds = (5, 6, 5)
    trials = [Trial(contract=contract, task=task, settings=small_settings(seed=seed)) for seed in seeds]
    rounds: list[int] = []
    results = dict(run_trials(trials, progress=rounds.append, late=lambda: len(rounds) > 3))
    assert sorted(results) == [0, 2]
    assert not dict(run_trials(trials, late=lambda: True))
