"""The largest η at which what was drawn keeps to a budget."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from jsam.errors import InputError
from jsam.mechanism._arrays import FloatArray, IntArray
from jsam.mechanism.budget.binomial import most_failures
from jsam.mechanism.budget.drawn_markets import CONFIDENCE, CostSample
from jsam.mechanism.budget.drawn_payments import DrawnPayments
from jsam.mechanism.budget.expected_payments import PaymentSample

# Markets so close to the budget (relative) are paid for afresh at each η.
NEAR = 2e-3
LARGEST = 600.0  # e to this is still far from the largest double

FractionDone = Callable[[float], None]


def _unheard(done: float) -> None:
    """Takes the progress where the caller does not want to know it."""


def largest_expected(sample: CostSample | PaymentSample, budget: float, progress: FractionDone = _unheard) -> float:
    """The largest η at which the bound on the expected cost keeps to the budget.

    The cost of every draw never falls as η rises, so neither does their mean: one batch tells where to look, all of
    them decide.
    """

    def excess(cost: float) -> float:
        return math.log(cost / budget) if cost > 0 else -math.inf

    unspent = InputError(
        f"budget {budget:g} is never spent at any loss weight that can be computed: lower it, or lift the caps if there"
        " are any"
    )
    rough = crossing(
        lambda x: excess(sample.rough_cost(math.exp(x))),
        start=math.log(budget),
        step=2.0,
        near=1e-3,
        width=1e-3,
        never=unspent,
    )
    if rough < -LARGEST:
        raise InputError("it would be too small for floating-point numbers; use other units")
    progress(0.2)
    fine = crossing(
        lambda x: excess(sample.expected_cost(math.exp(x)).bound),
        start=rough,
        step=0.02,
        near=1e-8,
        never=unspent,
        progress=lambda done: progress(0.2 + 0.8 * done),
    )
    return math.exp(fine)


def largest_probable(
    payments: DrawnPayments, budget: float, probability: float, start: float, progress: FractionDone = _unheard
) -> float:
    """The largest η found at which so few drawn totals exceed the budget that the probability is as asked for.

    The drawn totals are independent, so their number over the budget is binomial. At the η that is looked for, the
    largest total but `over` of them is the budget itself.
    """
    draws = payments.draws
    over = most_failures(draws, probability, CONFIDENCE)
    assert over is not None  # there are `least_draws` or more
    never = InputError(f"no loss weight keeps the payments within {budget:g} with probability {probability:g}")
    some = np.arange(min(draws, max(64, draws // 8)))
    few = over * len(some) // draws

    def rough_excess(x: float) -> float:
        return math.log(_largest(payments.totals(math.exp(x), some).most, few) / budget)

    x = crossing(rough_excess, start=math.log(start), step=0.05, near=3e-3, width=3e-3, never=never)
    progress(0.3)
    tracked = _Tracked(payments, budget, over, x)
    progress(0.6)
    x = crossing(tracked.excess, start=tracked.guess, step=4e-3, near=1e-7, width=1e-7, never=never)
    back = 0.0
    while not tracked.holds(x - back):
        back = 4 * back + 1e-5
    return math.exp(x - back)


class _Tracked:
    """All drawn totals at one η, brought up to date at others where that can matter.

    Totals go about with √η, with dips and jumps of a few per cent. So far from the budget a market stays on its side.
    """

    def __init__(self, payments: DrawnPayments, budget: float, over: int, x: float) -> None:
        self._payments, self._budget, self._over = payments, budget, over
        self._at = np.full(payments.draws, x)
        self._excess = self._fresh(x)
        self.guess = x - 2 * _largest(self._excess, over)

    def _fresh(self, x: float, rows: IntArray | None = None) -> FloatArray:
        return np.asarray(np.log(self._payments.totals(math.exp(x), rows).most / self._budget))

    def excess(self, x: float) -> float:
        moved = (x - self._at) / 2
        expected = self._excess + moved
        near = np.abs(expected - _largest(expected, self._over)) < NEAR + 4 * np.abs(moved)
        rows = np.flatnonzero(near & (moved != 0))
        if len(rows):
            self._excess[rows], self._at[rows] = self._fresh(x, rows), x
        return _largest(self._excess + (x - self._at) / 2, self._over)

    def holds(self, x: float) -> bool:
        """Whether the promise is kept at η = exp(x), with every total computed there."""
        return int((self._payments.totals(math.exp(x)).most > self._budget).sum()) <= self._over


def _largest(values: FloatArray, but: int) -> float:
    """The largest value that is left when the `but` largest are taken out."""
    return float(np.partition(values, len(values) - 1 - but)[len(values) - 1 - but])


def crossing(
    excess: Callable[[float], float],
    *,
    start: float,
    step: float,
    near: float,
    never: Exception,
    width: float = 1e-9,
    progress: Callable[[float], None] | None = None,
) -> float:
    """Where a function that rises, but for small dips, crosses zero.

    An x with `excess` at most 0 there and more than 0 just above: by at most `near`, or at most `width` away.

    A bracket is found from `start` in growing steps, then narrowed by secants, with a halving now and then for the
    steps that the function makes. If it never exceeds 0, `never` is raised.
    """
    low = high = start
    below = above = excess(start)
    reach = step
    while below > 0:
        high, above = low, below
        low -= reach
        reach *= 2
        below = excess(low)
    reach = step
    while above <= 0:
        low, below = high, above
        if high > LARGEST:
            raise never
        high += reach
        reach *= 2
        above = excess(min(high, LARGEST + 1))
    for number in range(200):
        if below > -near or high - low < width:
            break
        if progress is not None:
            progress(1 - 0.7 ** (number + 1))
        secant = low + (high - low) * below / (below - above) if math.isfinite(below) else low
        middle = (low + high) / 2 if number % 2 or not low < secant < high else secant
        value = excess(middle)
        if value <= 0:
            low, below = middle, value
        else:
            high, above = middle, value
    return low
