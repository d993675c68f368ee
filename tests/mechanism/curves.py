"""A client's ε as a function of its own report by solving every market anew, and priors that scipy.stats has not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import jsam
from jsam.mechanism._arrays import FloatArray
from jsam.mechanism.families import RangeMechanism
from jsam.mechanism.solver.allocation import budgets, minimise, probs_at
from jsam.mechanism.solver.rows import SortedRows

Curve = Callable[[FloatArray], FloatArray]
ROWS = 2048


def replanned(mechanism: RangeMechanism, market: jsam.Market, client: int) -> Curve:
    """ε(z) from whole markets, sorted and solved over the whole range each: nothing of the payments' short cuts.

    It knows caps and ties, which `oracles.exact_curve` does not, but leans on the solver. Ties go by position.
    """
    N = market.num_clients
    rule = mechanism.rule(N)
    v = np.array([float(mechanism.price(market.cost_of(k))(market.sensitivities[k : k + 1])[0]) for k in range(N)])
    own = mechanism.price(market.cost_of(client))

    def some(reports: FloatArray) -> FloatArray:
        rows = np.tile(v, (len(reports), 1))
        rows[:, client] = own(reports)
        order = np.argsort(rows, axis=1, kind="stable")
        rank = (order == client).argmax(axis=1)
        best = minimise(rule, SortedRows(np.take_along_axis(rows, order, axis=1)), len(rows))
        return budgets(probs_at(rule, best, rank), rows[:, client], best.scale, rule.weights.max_epsilon)

    def epsilon(reports: FloatArray) -> FloatArray:
        return np.concatenate([some(reports[i : i + ROWS]) for i in range(0, len(reports), ROWS)] or [np.zeros(0)])

    return epsilon


class Mixture:
    """An even mixture of frozen distributions: several peaks, or gaps, make its virtual cost fall somewhere."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def support(self) -> tuple[float, float]:
        return min(float(p.support()[0]) for p in self.parts), max(float(p.support()[1]) for p in self.parts)

    def pdf(self, x: Any) -> Any:
        return np.mean([p.pdf(x) for p in self.parts], axis=0)

    def cdf(self, x: Any) -> Any:
        return np.mean([p.cdf(x) for p in self.parts], axis=0)

    def sf(self, x: Any) -> Any:
        return np.mean([p.sf(x) for p in self.parts], axis=0)

    def logpdf(self, x: Any) -> Any:
        with np.errstate(divide="ignore"):
            return np.log(self.pdf(x))

    def logcdf(self, x: Any) -> Any:
        with np.errstate(divide="ignore"):
            return np.log(self.cdf(x))

    def ppf(self, q: Any) -> Any:
        return self._invert(lambda x: self.cdf(x) >= q, np.shape(q))

    def isf(self, q: Any) -> Any:
        return self._invert(lambda x: self.sf(x) <= q, np.shape(q))

    def _invert(self, reached: Callable[[FloatArray], Any], shape: tuple[int, ...]) -> Any:
        low, high = np.full(shape, self.support()[0]), np.full(shape, min(self.support()[1], 1e300))
        for _ in range(1100):
            middle = np.where(high > 4 * low, np.sqrt(np.maximum(low, 1e-300)) * np.sqrt(high), 0.5 * (low + high))
            if np.all((middle <= low) | (middle >= high)):
                break
            above = reached(middle)
            low, high = np.where(above, low, middle), np.where(above, middle, high)
        return high[()]

    def rvs(self, size: Any = 1, random_state: Any = None) -> Any:
        rng = np.random.default_rng(random_state)
        draws = np.array([p.rvs(size=size, random_state=rng) for p in self.parts])
        return np.take_along_axis(draws, rng.integers(len(self.parts), size=(1, *np.shape(draws)[1:])), axis=0)[0]
