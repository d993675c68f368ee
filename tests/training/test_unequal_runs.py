"""Unequal data end to end: what a plan by size sold is what the releases cost, whatever each client holds.

Nothing here is taken from the calibration: each client's releases are composed by hand, and ε follows from the δ of a
Gaussian mechanism, δ(ε, μ) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ), by bisection.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import scipy.stats

from tests.conftest import require

if not TYPE_CHECKING:
    require("torch", extra="train")
    require("dp_accounting", extra="train")

import jsam
from jsam.errors import InputError
from jsam.mechanism.contract import Contract
from jsam.privacy import read_ledger
from jsam.runs.run_folder import RunFolder
from jsam.runs.settlement import settle
from tests.training.small import run, small_settings, small_task

pytestmark = pytest.mark.filterwarnings("ignore::jsam.errors.TrainingWarning")

SIZES = (5, 140, 18, 60, 24, 300)


def contract_by_size(mechanism: Any, sizes: tuple[int, ...] = SIZES) -> Contract:
    reports = np.linspace(0.15, 0.9, len(sizes))
    return jsam.plan(jsam.Market(sensitivities=reports, prior=scipy.stats.uniform(0, 1), samples=sizes), mechanism)


def epsilon_by_hand(mu: float, delta: float) -> float:
    low, high = 0.0, 1000.0
    for _ in range(200):
        eps = (low + high) / 2
        second = math.exp(eps + scipy.stats.norm.logcdf(-mu / 2 - eps / mu))
        low, high = (eps, high) if scipy.stats.norm.cdf(mu / 2 - eps / mu) - second > delta else (low, eps)
    return high


@pytest.mark.parametrize(
    "mechanism",
    [
        jsam.EvenJSAM(loss_weight=60.0, noise_weight=3.0, max_epsilon=8.0),
        jsam.JSAM(loss_weight=60.0, bias_weight=0.4),
        jsam.USBM(loss_weight=40.0, max_epsilon=8.0),
    ],
)
def test_each_release_has_the_noise_of_its_own_number_of_records(mechanism: Any, tmp_path: Path) -> None:
    contract, settings = contract_by_size(mechanism), small_settings()
    run(tmp_path / "run", contract=contract, task=small_task(sizes=SIZES))
    releases = read_ledger(RunFolder(tmp_path / "run").ledger)
    assert {int(str(entry.client)) for entry in releases} <= set(np.flatnonzero(contract.selection_probs))
    for k, size in enumerate(SIZES):
        own = [entry for entry in releases if entry.client == str(k)]
        if not own:
            continue
        assert {entry.samples for entry in own} == {size}
        # One record moves the mean of M clipped gradients by C/M: its distance in standard deviations, all rounds.
        mu = math.sqrt(sum((settings.clip_norm / size / entry.noise_std) ** 2 for entry in own))
        assert epsilon_by_hand(mu, settings.delta) == pytest.approx(contract.epsilons[k], rel=1e-4)
    settlement = settle(tmp_path / "run")
    assert settlement.kept
    assert not settlement.problems


def test_draws_follow_the_shares_of_the_data_that_are_kept() -> None:
    """p ∝ M among the kept, to the last digit, also where the selection is made by rounded sizes."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(10_000, 1_000_000, 60)
    market = jsam.Market(sensitivities=rng.random(60), prior=scipy.stats.uniform(0, 1), samples=sizes.tolist())
    for cap in (None, 2.0):
        contract = jsam.plan(market, jsam.EvenJSAM(loss_weight=5.0, bias_weight=0.3, max_epsilon=cap), payments=False)
        kept = contract.selection_probs > 0
        assert 1 < kept.sum() < 60
        assert contract.selection_probs[kept] == pytest.approx(sizes[kept] / sizes[kept].sum(), rel=1e-12)


def test_a_cap_holds_though_the_selection_is_made_by_rounded_sizes() -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        sizes = rng.integers(1_000, 1_000_000, 40)
        market = jsam.Market(sensitivities=rng.random(40), prior=scipy.stats.uniform(0, 1), samples=sizes.tolist())
        cap = float(rng.uniform(1.2, 3) * sizes.max() / sizes.sum())
        mechanism = jsam.EvenJSAM(loss_weight=1.0, max_epsilon=2.0, max_selection_prob=cap)
        assert jsam.plan(market, mechanism, payments=False).selection_probs.max() <= cap * (1 + 1e-9)


def test_where_true_shares_would_break_a_cap_or_a_floor_the_rounded_ones_stay() -> None:
    market = jsam.Market(sensitivities=np.array([0.1, 0.2, 0.3]), prior=scipy.stats.uniform(0, 1), samples=[52, 48, 90])
    rounded = np.array([0.5, 0.5, 0.0])
    for bounds in ({}, {"max_selection_prob": 0.52}, {"min_selection_prob": 0.48}):
        free = jsam.EvenJSAM(loss_weight=1.0, **bounds)
        assert free.probs_by_size(market, rounded) == pytest.approx([0.52, 0.48, 0.0])
    for bounds in ({"max_selection_prob": 0.51}, {"min_selection_prob": 0.49}):
        tight = jsam.EvenJSAM(loss_weight=1.0, **bounds)
        assert tight.probs_by_size(market, rounded).tolist() == [0.5, 0.5, 0.0]


def test_a_contract_for_other_numbers_of_clients_is_refused(tmp_path: Path) -> None:
    contract = contract_by_size(jsam.USBM(loss_weight=40.0))
    with pytest.raises(InputError, match="the contract has 6 clients and the partition 5"):
        run(tmp_path / "run", contract=contract, task=small_task(sizes=SIZES[:5]))
