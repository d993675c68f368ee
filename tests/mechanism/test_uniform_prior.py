"""The uniform prior that needs no scipy.stats is scipy's in everything that the planner uses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.stats

import jsam
from jsam.errors import InputError
from jsam.mechanism.budget.budget_cache import BudgetCache
from jsam.mechanism.budget.loss_weight import loss_weight_for_budget
from jsam.mechanism.priors import UniformPrior

OURS, SCIPYS = UniformPrior(bottom=0.5, top=2.0), scipy.stats.uniform(0.5, 1.5)


def test_it_has_scipys_values() -> None:
    x, q = np.array([-1.0, 0.5, 0.7, 1.9, 2.0, 3.0]), np.array([0.0, 0.1, 0.5, 1.0])
    assert OURS.support() == SCIPYS.support()
    np.testing.assert_allclose(OURS.logpdf(x), SCIPYS.logpdf(x), rtol=1e-15)
    np.testing.assert_allclose(OURS.logcdf(x), SCIPYS.logcdf(x), rtol=1e-14, atol=1e-16)
    np.testing.assert_allclose(OURS.ppf(q), SCIPYS.ppf(q), rtol=1e-15)
    np.testing.assert_allclose(OURS.isf(q), SCIPYS.isf(q), rtol=1e-15)


def test_it_draws_what_scipy_draws() -> None:
    drawn = OURS.rvs(size=(3, 4), random_state=np.random.default_rng(1))
    np.testing.assert_array_equal(drawn, SCIPYS.rvs(size=(3, 4), random_state=np.random.default_rng(1)))


def test_plans_and_budgets_are_the_same() -> None:
    reports = np.random.default_rng(2).uniform(0.5, 2.0, 30)
    ours, scipys = (
        jsam.plan(jsam.Market(sensitivities=reports, prior=prior), jsam.JSAM(loss_weight=5.0))
        for prior in (OURS, SCIPYS)
    )
    assert ours.as_dict() == scipys.as_dict()
    mine, theirs = (
        loss_weight_for_budget(
            jsam.JSAM(loss_weight=1.0), 3.0, prior=prior, num_clients=5, draws=200, cache=BudgetCache(None)
        )
        for prior in (OURS, SCIPYS)
    )
    assert mine == theirs


def test_its_budgets_are_cached(tmp_path: Path) -> None:
    cache = BudgetCache(tmp_path)
    first = loss_weight_for_budget(jsam.USBM(loss_weight=1.0), 3.0, prior=OURS, num_clients=3, draws=50, cache=cache)
    again = loss_weight_for_budget(
        jsam.USBM(loss_weight=1.0), 3.0, prior=UniformPrior(bottom=0.5, top=2.0), num_clients=3, draws=50, cache=cache
    )
    assert first == again
    assert len(list(tmp_path.iterdir())) == 1


def test_ends_must_stand_in_order() -> None:
    with pytest.raises(InputError, match="second end"):
        UniformPrior(bottom=1.0, top=1.0)
