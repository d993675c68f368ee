"""The fitted step: noise alone moves the weights as far as it is meant to, and other steps do worse."""

from __future__ import annotations

import importlib
import math
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import scipy.stats
import torch

import jsam
from jsam.cli import main
from jsam.runs.noise_plan import NoisePlan
from jsam.runs.noise_source import SeededNoise
from jsam.runs.run_folder import RunFolder
from jsam.runs.settings import LEARNING_RATE_SCHEDULES, TrainingSettings
from jsam.training.learning_rate import LONGEST, REACH, fitted_learning_rate, with_fitted_step
from jsam.training.round_inputs import combined_std, round_noise
from jsam.training.task import TaskSpec
from jsam.training.trials import Trial, run_trials
from tests.training.small import seeded_model, small_contract, small_settings, small_task


@pytest.mark.parametrize("schedule", LEARNING_RATE_SCHEDULES)
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_noise_alone_walks_as_far_as_it_is_meant_to(schedule: str, momentum: float) -> None:
    """The very noise of a run, summed up as the server sums it, without any data."""
    wide = torch.nn.Sequential(torch.nn.Linear(4, 4000), torch.nn.Linear(4000, 3))  # many weights, so hardly any spread
    task, contract = small_task(model=wide), small_contract(epsilon_cap=0.5)
    settings = with_fitted_step(
        contract, task, small_settings(rounds=100, learning_rate_schedule=schedule, momentum=momentum)
    )
    preparation = NoisePlan.of(contract, settings, task.partition.sizes)
    place, velocity = torch.zeros(task.num_parameters), torch.zeros(task.num_parameters)
    for drawn in preparation.schedule:
        std = combined_std(preparation.releases(drawn), preparation.update_weights(drawn), settings.per_round)
        noise = round_noise(
            std, task.num_parameters, source=SeededNoise(5), index=drawn.index, device=torch.device("cpu")
        )
        velocity = momentum * velocity + noise
        place -= settings.learning_rate_at(drawn.index) * velocity
    assert float(place.norm()) == pytest.approx(REACH * task.weights_norm, rel=0.05)


def test_where_there_is_hardly_any_noise_the_mean_step_is_bounded() -> None:
    settings = small_settings(rounds=2000, learning_rate_schedule="cosine", momentum=0.9)
    for noise in (0.0, 1e-9):
        rate = fitted_learning_rate(settings, noise_norm=noise, weights_norm=5.0)
        fitted = replace(settings, learning_rate=rate)
        mean = statistics.fmean(fitted.learning_rate_at(index) for index in range(2000))
        assert mean / (1 - 0.9) * settings.clip_norm == pytest.approx(LONGEST, rel=0.02)


def test_twice_the_noise_is_half_the_step_and_the_given_step_has_no_say() -> None:
    rates = [
        fitted_learning_rate(small_settings(learning_rate=given), noise_norm=noise, weights_norm=5.0)
        for noise, given in ((100.0, 0.1), (200.0, 0.1), (100.0, 7.0))
    ]
    assert rates[1] == pytest.approx(rates[0] / 2)
    assert rates[2] == rates[0]


def test_only_what_is_learned_counts_as_weights() -> None:
    model = seeded_model()
    whole = small_task(model=model).weights_norm
    norms = [float(value.detach().norm()) for value in model.parameters()]
    assert whole == pytest.approx(math.hypot(*norms))
    next(model.parameters()).requires_grad_(False)
    assert small_task(model=model).weights_norm == pytest.approx(math.hypot(*norms[1:]))


def test_neither_a_quarter_nor_four_times_the_fitted_step_does_as_well() -> None:
    """On data, a model and rounds that had no part in finding the rule."""
    reached: dict[float, list[float]] = {}
    for seed in range(3):
        task = TaskSpec(dataset="digits", num_clients=10, similarity=100, seed=seed).build()
        reports = scipy.stats.uniform(0, 1).rvs(10, random_state=seed)
        market = jsam.Market(sensitivities=reports, prior=scipy.stats.uniform(0, 1))
        contract = jsam.plan(market, jsam.USBM(loss_weight=40.0))
        plain = TrainingSettings(
            rounds=60, per_round=5, seed=seed, noise_seed=seed, learning_rate_schedule="cosine", threads=1
        )
        fitted = with_fitted_step(contract, task, plain)
        factors = (0.25, 1.0, 4.0)
        trials = [
            Trial(contract=contract, task=task, settings=replace(fitted, learning_rate=factor * fitted.learning_rate))
            for factor in factors
        ]
        for index, result in run_trials(trials):
            reached.setdefault(factors[index], []).append(result.accuracy)
    means = {factor: statistics.fmean(values) for factor, values in reached.items()}
    assert means[1.0] > max(means[0.25], means[4.0]) + 0.05


def test_simulate_fits_the_step_unless_one_is_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulate = ["simulate", "--dataset", "digits", "--clients", "5", "--loss-weight", "50", "--rounds", "2"]
    assert main([*simulate, "--output", str(tmp_path / "fitted")]) == 0
    fitted = RunFolder(tmp_path / "fitted").read_config()["settings"]["learning_rate"]
    assert f"a learning rate of {fitted:g} fits the noise of this contract" in capsys.readouterr().err
    assert main([*simulate, "--learning-rate", "0.25", "--output", str(tmp_path / "given")]) == 0
    assert RunFolder(tmp_path / "given").read_config()["settings"]["learning_rate"] == 0.25
    assert "fits the noise" not in capsys.readouterr().err


def test_a_simulation_loads_and_splits_its_data_once_and_plans_its_noise_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def counted(module: str, name: str) -> None:
        original = getattr(importlib.import_module(module), name)

        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            return original(*args, **kwargs)

        monkeypatch.setattr(f"{module}.{name}", call)

    for module in ("jsam.training.task", "jsam.training.data"):
        counted(module, "load_dataset")
    counted("jsam.training.task", "partition")
    counted("jsam.runs.noise_plan", "noise_multiplier")
    options = ["--dataset", "digits", "--clients", "20", "--loss-weight", "50", "--rounds", "2", "--noise-seed", "1"]
    assert main(["simulate", *options, "--output", str(tmp_path / "run")]) == 0
    assert sorted(calls) == ["load_dataset", "noise_multiplier", "partition"]
