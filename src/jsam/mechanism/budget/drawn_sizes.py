"""Budgets of markets whose clients hold different amounts of data: every drawn market is a selection of its own.

A selection by size takes milliseconds, so there are far fewer draws than for equal data; they are spread as evenly.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from jsam.mechanism._arrays import FloatArray
from jsam.mechanism.budget.drawn_markets import CostSample, Tables
from jsam.mechanism.budget.drawn_payments import Totals
from jsam.mechanism.families.base import RangeMechanism
from jsam.mechanism.market import Market

COSTS, WITH_CAP, PAYMENTS = 128, 48, 16  # a cap on ε takes many tables
FIRST = 16


class SizedCosts(CostSample):
    """What a mechanism that selects by size spends over drawn markets."""

    def __init__(self, mechanism: RangeMechanism, template: Market, tables: Tables, rng: np.random.Generator) -> None:
        self._mechanism, self._template = mechanism, template
        active = mechanism.active(template)
        rule = replace(mechanism, loss_weight=1.0).rule(len(active))
        super().__init__(rule, tables, active, template.num_clients, WITH_CAP if mechanism.max_epsilon else COSTS, rng)

    def _take(self, v: FloatArray) -> None:
        self._v = v

    def _first_costs(self, eta: float) -> FloatArray:
        return self._spent(eta, self._v[:FIRST])

    def _costs(self, eta: float) -> FloatArray:
        return self._spent(eta, self._v)

    def _spent(self, eta: float, rows: FloatArray) -> FloatArray:
        mechanism = self._mechanism.with_loss_weight(eta)
        active = mechanism.active(self._template)
        spent = []
        for v in rows:
            eps = mechanism.answers_by_size(self._template, active, v, None).allocate().epsilons
            spent.append(float(v[eps > 0] @ eps[eps > 0]))
        return np.array(spent)


class SizedPayments:
    """Whole contracts of a few drawn markets: what may fall due."""

    def __init__(self, mechanism: RangeMechanism, template: Market, tables: Tables, rng: np.random.Generator) -> None:
        self._mechanism, self._template = mechanism, template
        self._reports, _ = tables.markets(rng.random((PAYMENTS, template.num_clients)))
        self.draws = PAYMENTS

    def totals(self, eta: float) -> Totals:
        """Σπ at η of all markets."""
        mechanism = self._mechanism.with_loss_weight(eta)
        due, errors = [], []
        for reports in self._reports:
            contract = mechanism.plan(replace(self._template, sensitivities=reports))
            assert contract.payments is not None
            due.append(float(contract.payments.sum()))
            errors.append((contract.payment_error_bound or 0.0) * len(reports))
        return Totals(amounts=np.array(due), errors=np.array(errors))
