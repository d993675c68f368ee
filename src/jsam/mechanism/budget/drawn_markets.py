"""What a mechanism spends over markets drawn from the prior: the mean cost, and how far it can be off.

The draws are spread evenly over the quantiles of every client, so their mean varies much less than that of plain draws.
They come in independent batches: the spread of the batches' means says how exact the mean of all of them is, however
the draws within a batch depend on each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from jsam.mechanism._arrays import FloatArray, IntArray
from jsam.mechanism.budget.quantiles import LEAST, QuantileTable
from jsam.mechanism.families.base import RangeMechanism
from jsam.mechanism.market import Market
from jsam.mechanism.solver.allocation import CHUNK, Rule, minimise
from jsam.mechanism.solver.rows import SortedRows

CONFIDENCE = 0.999
# One-sided quantiles of Student's t at that confidence, for 1, 2, … degrees of freedom.
STUDENT = (318.309, 22.327, 10.215, 7.173, 5.893, 5.208, 4.785, 4.501, 4.297, 4.144, 4.025, 3.930, 3.852, 3.787, 3.733)
BATCHES = len(STUDENT) + 1
FULL_GRID = 3  # up to so many clients a batch fills a grid of cells over all of them together
# Where costs have no bound, one draw in so many looks far into the tail of one client, and counts for less.
TAIL_EVERY, TAIL_POWER = 8, 6


@dataclass(frozen=True, kw_only=True)
class ExpectedCost:
    """The mean over the draws, its standard error, and what the true mean exceeds with probability 1 − CONFIDENCE."""

    mean: float
    error: float
    bound: float


class Tables:
    """The priors of a market's clients as tables, at the price that the mechanism counts with."""

    def __init__(self, mechanism: RangeMechanism, template: Market) -> None:
        self.groups: list[tuple[QuantileTable, IntArray]] = []
        self.unbounded = False
        for cost, members in template.cost_groups:
            table = QuantileTable.of(mechanism.price(cost))
            self.groups.append((table, members))
            self.unbounded |= table.heavy
        self.error = max(table.error for table, _ in self.groups)
        self.untold = max(table.untold for table, _ in self.groups)

    def markets(self, quantiles: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Sensitivities and virtual costs at the quantiles (one row for each market)."""
        c, v = np.empty(quantiles.shape), np.empty(quantiles.shape)
        for table, members in self.groups:
            c[:, members] = table.report(quantiles[:, members])
            v[:, members] = table.virtual_cost(c[:, members])
        return c, v


class CostSample:
    """Markets drawn once, on which every η is tried."""

    def __init__(
        self, rule: Rule, tables: Tables, active: IntArray, num_clients: int, draws: int, rng: np.random.Generator
    ) -> None:
        self._rule, self._error = rule, tables.error
        if int(rule.profiles.num_selected.min()) == len(active):
            # Nobody can be dropped. A cost goes with (Σ v^(2/3))^(3/4), which is between N^(−1/4) Σ √v and Σ √v.
            self._error += tables.untold * len(active) ** 0.25
        self._batches = min(BATCHES, draws)
        self._size = draws // self._batches
        parts = [_batch(rng, self._size, num_clients, tables.unbounded) for _ in range(self._batches)]
        # A cell of a grid is a whole number, so a batch may come out smaller than asked.
        self._size = len(parts[0][1])
        _, v = tables.markets(np.concatenate([quantiles for quantiles, _ in parts]))
        self._weights = np.concatenate([weights for _, weights in parts])
        self._take(v[:, active])

    def _take(self, v: FloatArray) -> None:
        """Keep the markets' virtual costs as they are needed."""
        rows = np.sort(v, axis=1)
        step = max(1, CHUNK // max(rows.shape[1], len(self._rule.profiles)))
        self._first_size = min(len(rows), max(self._size, 16))
        self._first = SortedRows(rows[: self._first_size])
        self._rows = [rows[start : start + step] for start in range(0, len(rows), step)]
        self._ranked = [SortedRows(part) for part in self._rows]

    @property
    def draws(self) -> int:
        return self._batches * self._size

    def _first_costs(self, eta: float) -> FloatArray:
        """Σ v ε of the first of the draws."""
        return minimise(self._at(eta), self._first, self._first_size).cost

    def _costs(self, eta: float) -> FloatArray:
        """Σ v ε of all draws."""
        parts = zip(self._ranked, self._rows, strict=True)
        return np.concatenate([minimise(self._at(eta), ranked, len(rows)).cost for ranked, rows in parts])

    def _at(self, eta: float) -> Rule:
        return replace(self._rule, weights=replace(self._rule.weights, loss_weight=eta))

    def rough_cost(self, eta: float) -> float:
        """The mean over the first of the draws, to know where to look."""
        if eta == 0:  # too small for a double: nothing is bought
            return 0.0
        costs = self._first_costs(eta)
        weights = self._weights[: len(costs)]
        return float(costs @ weights / weights.sum())

    def expected_cost(self, eta: float) -> ExpectedCost:
        """E[Σ v ε] at η, with a bound from above."""
        costs = self._costs(eta)
        weights = self._weights.reshape(self._batches, self._size).mean(axis=1)
        means = (costs * self._weights).reshape(self._batches, self._size).mean(axis=1)
        # The weights' own mean is 1 but for their noise, which a quotient takes out.
        mean = float(means.sum() / weights.sum())
        error = float((means - mean * weights).std(ddof=1) / weights.mean() / math.sqrt(self._batches))
        bound = (mean + STUDENT[self._batches - 2] * error) * (1 + self._error)
        return ExpectedCost(mean=mean, error=error, bound=bound)


def _batch(rng: np.random.Generator, size: int, clients: int, unbounded: bool) -> tuple[FloatArray, FloatArray]:
    """Quantiles of one batch, one row for each market, and what each row counts."""
    far = size // TAIL_EVERY if unbounded else 0
    quantiles = _spread(rng, size - far, clients)
    if far == 0:
        return quantiles, np.ones(len(quantiles))
    tail = _spread(rng, far, clients, whole=False)
    who = rng.permutation(np.arange(far) % clients)
    above = ((rng.permutation(far) + rng.random(far)) / far) ** TAIL_POWER
    tail[np.arange(far), who] = 1 - np.maximum(above, LEAST)
    quantiles = np.concatenate([quantiles, tail])
    # Each row counts by how much rarer it is under the prior than among rows of both kinds together.
    share = far / len(quantiles)
    denser = (np.maximum(1 - quantiles, LEAST) ** (1 / TAIL_POWER - 1) / TAIL_POWER).mean(axis=1)
    return quantiles, 1 / (1 - share + share * denser)


def _spread(rng: np.random.Generator, size: int, clients: int, *, whole: bool = True) -> FloatArray:
    """One draw in each cell of a grid over all clients if they are few; else one in each of `size` cells per client."""
    if clients <= FULL_GRID and whole:
        side = max(1, math.floor(size ** (1 / clients) + 1e-9))
        axes = np.meshgrid(*[np.arange(side)] * clients, indexing="ij")
        cells, count = np.stack([axis.ravel() for axis in axes], axis=1), side
    else:
        cells, count = rng.permuted(np.tile(np.arange(size)[:, None], (1, clients)), axis=0), size
    return np.asarray((cells + rng.random(cells.shape)) / count)
