"""Payments of many markets at once agree with contracts made one by one, within the error that they state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.stats

import jsam
from jsam.mechanism.budget.drawn_markets import Tables
from jsam.mechanism.budget.drawn_payments import DrawnPayments
from jsam.mechanism.families import RangeMechanism

BETA = scipy.stats.beta(2, 5)
STEPS = scipy.stats.rv_histogram((np.array([2.0, 5.0, 1.0]), np.array([0.1, 0.2, 0.4, 1.0])), density=False)
FREE = jsam.JSAM(loss_weight=1.0)


def drawn(mechanism: RangeMechanism, prior: Any, clients: int, draws: int) -> DrawnPayments:
    own = prior if isinstance(prior, list) else [prior] * clients
    template = jsam.Market(
        sensitivities=np.array([float(one.ppf(0.5)) for one in own]),
        prior=prior,
        losses=np.arange(clients, dtype=float),
    )
    rule = replace(mechanism, loss_weight=1.0).rule(len(mechanism.active(template)))
    return DrawnPayments(mechanism, template, rule, Tables(mechanism, template), draws, np.random.default_rng(clients))


@pytest.mark.parametrize(
    ("mechanism", "prior", "clients", "eta", "worst"),
    [
        (FREE, scipy.stats.uniform(0, 1), 2, 0.3, 1e-9),
        (FREE, scipy.stats.uniform(0, 1), 12, 4.0, 1e-9),
        (FREE, BETA, 2, 0.4, 3e-3),
        (FREE, BETA, 12, 4.0, 1e-3),
        (FREE, scipy.stats.expon(scale=0.5), 5, 1.0, 2e-3),
        (FREE, STEPS, 12, 4.0, 1e-2),
        (FREE, BETA, 90, 60.0, 1e-3),
        (jsam.JSAM(loss_weight=1.0, max_selection_prob=0.3), BETA, 5, 2.0, 2e-3),
        (jsam.JSAM(loss_weight=1.0, max_epsilon=1.0), BETA, 5, 4.0, 2e-3),
        (jsam.JSAMCI(loss_weight=1.0), BETA, 5, 2.0, 1e-3),
        (jsam.USBM(loss_weight=1.0), BETA, 4, 2.0, 1e-3),
        (jsam.FSBM(loss_weight=1.0, num_selected=3), BETA, 6, 2.0, 2e-3),
        (jsam.BBM(loss_weight=1.0, num_selected=3), scipy.stats.uniform(0, 1), 6, 2.0, 1e-3),
        (FREE, [BETA] * 3 + [scipy.stats.uniform(0.1, 0.5)] * 3, 6, 2.0, 2e-3),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_totals_are_those_of_the_contracts(
    mechanism: RangeMechanism, prior: Any, clients: int, eta: float, worst: float
) -> None:
    found = drawn(mechanism, prior, clients, 24)
    some = np.arange(6)
    totals, contracts = found.totals(eta), found._certified(eta, some)
    exact = contracts.amounts
    assert np.abs(totals.amounts[some] / exact - 1).max() < worst
    # What is counted against the budget is the total and its error: that is not less than what falls due.
    assert np.all(totals.most[some] >= exact * (1 - worst / 4))
    np.testing.assert_allclose(found.totals(eta, some).amounts, totals.amounts[some], rtol=1e-4)


def test_totals_go_with_the_root_of_the_loss_weight_where_nothing_else_can_change() -> None:
    found = drawn(jsam.FSBM(loss_weight=1.0, num_selected=3), BETA, 6, 8)
    np.testing.assert_allclose(found.totals(9.0).amounts, 3 * found.totals(1.0).amounts)
