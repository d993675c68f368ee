"""The mean of what falls due, over markets drawn from the prior, for a mechanism that selects by something else.

Where a mechanism selects by the virtual cost v, the mean of Σ v ε is the mean of the payments, and varies less. Where
it selects by c it may buy much at a huge v, and a sample's mean of Σ v ε says little: then payments are summed.
"""

from __future__ import annotations

import math

import numpy as np

from jsam.mechanism.budget.drawn_markets import CONFIDENCE, ExpectedCost
from jsam.mechanism.budget.drawn_payments import DrawnPayments

FIRST = 16  # markets that tell where to look


class PaymentSample:
    """Markets drawn once, on whose payments every η is tried."""

    def __init__(self, payments: DrawnPayments) -> None:
        self._payments = payments

    @property
    def draws(self) -> int:
        return self._payments.draws

    def rough_cost(self, eta: float) -> float:
        """The mean over the first of the draws, to know where to look."""
        if eta == 0:  # too small for a double: nothing is bought
            return 0.0
        return float(self._payments.totals(eta, np.arange(min(FIRST, self.draws))).amounts.mean())

    def expected_cost(self, eta: float) -> ExpectedCost:
        """E[Σ π] at η, with a bound from above."""
        import scipy.stats  # slow to load, and only wanted here

        totals = self._payments.totals(eta)
        error = float(totals.amounts.std(ddof=1)) / math.sqrt(self.draws)
        student = float(scipy.stats.t.ppf(CONFIDENCE, self.draws - 1))
        return ExpectedCost(
            mean=float(totals.amounts.mean()), error=error, bound=float(totals.most.mean()) + student * error
        )
