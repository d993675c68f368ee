"""The least objective for a handful of clients, by search: it knows nothing of the structure that the solver uses.

Corners of the simplex are enumerated, SLSQP runs from random points, and the best of all are improved by moving mass
between every two clients. It can only err upwards, so a contract that it beats is not optimal.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from jsam.mechanism._arrays import FloatArray, IntArray
from jsam.mechanism.weights import Weights

STARTS = 4
KEEP = 3
ROUNDS = 40
ALL_SIZES = 32
ALL_SUBSETS_UP_TO = 10
LINE = 0.5 - 0.5 * np.cos(np.linspace(0, math.pi, 25))


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """The server's problem for given virtual costs and data shares (docs/theory.md, "The problem")."""

    virtual_costs: FloatArray
    weights: Weights
    data_shares: FloatArray | None = None  # None: all hold equally much
    sample: bool = False  # whether the bias is that of a random sample of clients, for p in proportion to the shares

    @cached_property
    def shares(self) -> FloatArray:
        N = len(self.virtual_costs)
        return np.full(N, 1 / N) if self.data_shares is None else self.data_shares

    @property
    def max_selection_prob(self) -> float:
        cap = self.weights.max_selection_prob
        return 1.0 if cap is None else cap

    @property
    def max_epsilon(self) -> float:
        cap = self.weights.max_epsilon
        return math.inf if cap is None else cap

    def bias(self, p: FloatArray) -> FloatArray:
        if self.sample:
            U = np.where(p > 0, self.shares, 0.0).sum(axis=1)
            far = np.sqrt((self.shares**2).sum() * np.maximum(1 / U - 1, 0.0))
        else:
            far = np.abs(p - self.shares).sum(axis=1)
        return np.asarray(self.weights.bias_weight * far)

    def counted(self, p: FloatArray) -> FloatArray:
        """p as the noise counts it: that of a client with little data is larger."""
        return np.asarray(p / (len(self.shares) * self.shares))

    def root(self, p: FloatArray, eps: FloatArray) -> FloatArray:
        with np.errstate(divide="ignore", invalid="ignore"):
            noise = np.where(p > 0, (self.counted(p) / eps) ** 2, 0.0).sum(axis=1)
        return np.asarray(np.sqrt(self.bias(p) ** 2 + self.weights.noise_weight * noise))

    def best_epsilons(self, p: FloatArray) -> FloatArray:
        """The budgets that are best for each row of p.

        They satisfy η Q p² = R v ε³ with R = sqrt(d² + Q Σ p²/ε²), or sit at the cap. R gives ε and ε gives R; going
        round shrinks an error in log R to a third at most, and the objective feels only the square of what is left.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            e = self.counted(p)
            free = np.cbrt(self.weights.loss_weight * self.weights.noise_weight * e * e / self.virtual_costs)
        selected = p > 0
        free, capped = np.where(selected, free, math.inf), np.where(selected, self.max_epsilon, math.inf)
        d2, root = self.bias(p) ** 2, np.ones(len(p))
        for _ in range(24):
            eps = np.minimum(free / np.cbrt(root)[:, None], capped)
            root = np.sqrt(d2 + self.weights.noise_weight * ((e / eps) ** 2).sum(axis=1))
        return np.where(selected, eps, 0.0)

    def values(self, p: FloatArray, eps: FloatArray | None = None) -> FloatArray:
        """The objective of rows of p, with the best ε unless given."""
        eps = self.best_epsilons(p) if eps is None else eps
        return np.asarray(self.weights.loss_weight * (self.bias(p) + self.root(p, eps)) + eps @ self.virtual_costs)

    def slope(self, p: FloatArray) -> tuple[float, FloatArray]:
        """Logarithm of the value at one p and its gradient; ε moves along, but to first order that does not count."""
        rows = p[None, :]
        eps = self.best_epsilons(rows)
        value, root, d = float(self.values(rows, eps)[0]), self.root(rows, eps)[0], self.bias(rows)[0]
        away = self.weights.bias_weight * np.sign(p - self.shares)
        with np.errstate(divide="ignore", invalid="ignore"):
            e = self.counted(p) / (len(p) * self.shares)
            noise = np.where(p > 0, self.weights.noise_weight * e / eps[0] ** 2, 0.0)
        return math.log(value), self.weights.loss_weight * (away * (1 + d / root) + noise / root) / value


def least_objective(problem: Problem, *, seed: int = 0) -> tuple[float, FloatArray]:
    """The lowest value found and its selection probabilities."""
    N, cap = len(problem.virtual_costs), problem.max_selection_prob
    rng = np.random.default_rng(seed)
    corners = _corners(problem.shares, cap)
    descended = [_descend(problem, start) for start in _starts(N, cap, rng)]
    points = np.vstack([_best(problem, corners), _best(problem, np.array(descended))])
    points = _exchange(problem, points)
    values = problem.values(points)
    return float(values.min()), np.asarray(points[int(values.argmin())])


def least_simple_objective(problem: Problem) -> tuple[float, FloatArray]:
    """The lowest value among simple selections, for markets too large to search, and its selection probabilities.

    In the order of virtual cost: the m cheapest, drawn by their shares of the data; and h kept at their shares, the
    rest of the draws to the cheapest, as many as the cap on p asks for. Sizes m and h run through all numbers up to
    `ALL_SIZES` and then grow by steps of an eighth.
    """
    v, cap = problem.virtual_costs, problem.max_selection_prob
    N, order = len(v), np.argsort(problem.virtual_costs, kind="stable")
    u = problem.shares[order]
    rows = []
    for size in _sizes(N):
        kept = np.where(np.arange(N) < size, u, 0.0)
        left = 1 - kept.sum()
        # The cheapest are filled up to the cap, one after the other.
        room = np.minimum(np.cumsum(cap - u), left)
        if room[size - 1] >= left * (1 - 1e-12):
            rows.append(kept + np.diff(room, prepend=0.0))
        if cap * kept.sum() >= kept.max() * (1 - 1e-12):
            rows.append(kept)
    return _least_of(problem, order, rows)


def least_even_objective(problem: Problem) -> tuple[float, FloatArray]:
    """The lowest value among even shares within caps and floors: all subsets of a few clients, else the cheapest m."""
    v, w, N = problem.virtual_costs, problem.weights, len(problem.virtual_costs)
    order = np.argsort(v, kind="stable")
    if N <= ALL_SUBSETS_UP_TO:
        kept = np.array(list(itertools.product([False, True], repeat=N))[1:])
    else:
        kept = np.arange(N) < np.array(_sizes(N))[:, None]
    rows = np.where(kept, problem.shares[order], 0.0)
    rows /= rows.sum(axis=1, keepdims=True)
    # With unequal data caps and floors say which shares U may be kept, by the largest and the smallest of all clients.
    u, U = problem.shares, np.where(kept, problem.shares[order], 0.0).sum(axis=1)
    good = u.max() <= U * problem.max_selection_prob * (1 + 1e-12)
    good &= u.min() >= U * (w.min_selection_prob or 0.0) * (1 - 1e-12)
    good &= (np.sort(u)[::-1][: int(w.min_clients or 1) - 1].sum() + 1e-12 < U) | kept.all(axis=1)
    return _least_of(problem, order, list(rows[good]))


def _least_of(problem: Problem, order: IntArray, rows: list[FloatArray]) -> tuple[float, FloatArray]:
    """The best of selections that go by the order of clients."""
    best, best_p = math.inf, problem.shares
    for row in rows:
        p = np.empty(len(order))
        p[order] = row / row.sum()
        value = float(problem.values(p[None, :])[0])
        if value < best:
            best, best_p = value, p
    return best, best_p


def _sizes(N: int) -> list[int]:
    sizes = list(range(1, min(N, ALL_SIZES) + 1))
    while sizes[-1] < N:
        sizes.append(min(N, sizes[-1] + sizes[-1] // 8))
    return sizes


def _best(problem: Problem, points: FloatArray) -> FloatArray:
    return np.asarray(points[np.argsort(problem.values(points))[:KEEP]])


def _corners(shares: FloatArray, cap: float) -> FloatArray:
    """Everybody at 0, at the share or at the cap, but for one client who takes the rest, whichever it is."""
    levels = [sorted({0.0, share, cap}) for share in shares.tolist()]
    rows = []
    for k in range(len(levels)):
        for others in itertools.product(*levels[:k], *levels[k + 1 :]):
            rest = 1 - math.fsum(others)
            if -1e-12 <= rest <= cap + 1e-12:
                rows.append(np.insert(others, k, min(max(rest, 0.0), cap)))
    return np.unique(np.array(rows), axis=0)


def _starts(N: int, cap: float, rng: np.random.Generator) -> list[FloatArray]:
    """Random points of the simplex, spread out and concentrated in turn, drawn towards the centre until they fit."""
    points = [rng.dirichlet(np.full(N, 1.0 if i % 2 else 0.4)) for i in range(STARTS)]
    room = [min(1.0, (cap - 1 / N) / max(point.max() - 1 / N, 1e-12)) for point in points]
    return [1 / N + share * (point - 1 / N) for share, point in zip(room, points, strict=True)]


def _descend(problem: Problem, start: FloatArray) -> FloatArray:
    from scipy.optimize import Bounds, minimize

    result = minimize(
        problem.slope,
        start,
        jac=True,
        method="SLSQP",
        bounds=Bounds(np.full(len(start), 1e-12), np.full(len(start), problem.max_selection_prob)),
        constraints={"type": "eq", "fun": _excess, "jac": _excess_slope},
        options={"maxiter": 25, "ftol": 1e-9},
    )
    p = np.clip(result.x, 0.0, problem.max_selection_prob)
    p[p < 1e-9] = 0.0
    p /= p.sum()
    return p if np.isfinite(p).all() and p.max() <= problem.max_selection_prob * (1 + 1e-12) else start


def _excess(p: FloatArray) -> float:
    return float(p.sum()) - 1


def _excess_slope(p: FloatArray) -> FloatArray:
    return np.ones_like(p)


def _exchange(problem: Problem, points: FloatArray) -> FloatArray:
    """Move mass from one client to another, whichever move helps most, until none does."""
    N, cap = points.shape[1], problem.max_selection_prob
    if N == 1:
        return points
    pairs = list(itertools.permutations(range(N), 2))
    giver, taker = (np.array(side) for side in zip(*pairs, strict=True))
    direction = np.eye(N)[taker] - np.eye(N)[giver]
    best = []
    for p in points:
        for _ in range(ROUNDS):
            value = problem.values(p[None, :])[0]
            room = np.maximum(np.minimum(p[giver], cap - p[taker]), 0.0)
            # The bias has kinks at the shares: those amounts are tried exactly.
            u = problem.shares
            kinks = np.clip(np.stack([p[giver] - u[giver], u[taker] - p[taker]]), 0.0, room)
            amounts = np.sort(np.concatenate([LINE[:, None] * room, kinks]), axis=0)
            line = np.maximum(p + amounts[:, :, None] * direction, 0.0)
            tried = problem.values(line.reshape(-1, N)).reshape(amounts.shape)
            i, pair = divmod(int(tried.argmin()), len(pairs))
            low, high = amounts[max(i - 1, 0), pair], amounts[min(i + 1, len(amounts) - 1), pair]
            moved = _along(problem, p, direction[pair], float(low), float(high))
            p_new = line[i, pair] if tried[i, pair] <= problem.values(moved[None, :])[0] else moved
            if not problem.values(p_new[None, :])[0] < value * (1 - 1e-13):
                break
            p = p_new
        best.append(p)
    return np.array(best)


def _along(problem: Problem, p: FloatArray, direction: FloatArray, low: float, high: float) -> FloatArray:
    """The best point on a stretch of a line, by zooming in on the best of a few."""
    for _ in range(8):
        t = np.linspace(low, high, 17)
        line = np.maximum(p + t[:, None] * direction, 0.0)
        i = int(problem.values(line).argmin())
        low, high = t[max(i - 1, 0)], t[min(i + 1, 16)]
    return np.asarray(line[i])
