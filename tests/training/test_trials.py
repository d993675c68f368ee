"""Trials give what a recorded run gives, leave their task as it was, and may share it."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from jsam.training.trials import Trial, run_trials
from tests.training.small import run, small_contract, small_settings, small_task


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_a_trial_ends_like_a_recorded_run(tmp_path: Path, momentum: float) -> None:
    changes: dict[str, Any] = {"momentum": momentum, "learning_rate_schedule": "cosine"}
    recorded = run(tmp_path / "run", **changes)
    task = small_task()
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
    trials = [Trial(contract=small_contract(), task=task, settings=small_settings(seed=seed)) for seed in (5, 6, 5)]
    rounds: list[int] = []
    results = dict(run_trials(trials, progress=rounds.append))
    assert sorted(results) == [0, 1, 2]
    assert sum(rounds) == 3 * 8
    assert results[0].loss == results[2].loss
    assert results[0].loss != results[1].loss
    assert all(bool((before[name] == value).all()) for name, value in task.model.state_dict().items())
