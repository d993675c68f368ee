"""Every selection of a handful of clients, tried one after the other: the slow twin of even shares and unequal data.

It enumerates subsets, solves for ε by zooming in on one number, and uses nothing of the planner.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np

from jsam.mechanism._arrays import FloatArray
from jsam.mechanism.weights import Weights


def best_even(v: FloatArray, shares: FloatArray, weights: Weights, allowed: Callable[[FloatArray], bool]) -> float:
    """The least objective over all subsets A with p = u/U on A, with the bias of a random sample."""

    def selections() -> Iterator[tuple[FloatArray, float]]:
        for size in range(1, len(v) + 1):
            for kept in itertools.combinations(range(len(v)), size):
                A = list(kept)
                p = np.zeros(len(v))
                p[A] = shares[A] / shares[A].sum()
                yield p, math.sqrt((shares**2).sum() * max(1 / shares[A].sum() - 1, 0.0))

    return _least(v, shares, weights, selections(), allowed)


def best_even_by_tangents(
    v: FloatArray, shares: FloatArray, weights: Weights, allowed: Callable[[FloatArray], bool], step: float
) -> float:
    """As `best_even` with a cap on ε, where tangents stand for the root in the loss: all subsets, and all tangents.

    With x under the root, √x is the least of x/(2y) + y/2 over y, and here y = t/U² with t a power of `step`.
    """
    N, eta, Q, E = len(v), weights.loss_weight, weights.noise_weight, weights.max_epsilon
    most = 10.0**7
    powers = np.arange(-math.ceil(math.log(most) / math.log(step)), math.ceil(math.log(most) / math.log(step)))
    t = float(step) ** powers
    least = math.inf
    for size in range(1, N + 1):
        for kept in itertools.combinations(range(N), size):
            A = list(kept)
            U = float(shares[A].sum())
            p = np.zeros(N)
            p[A] = shares[A] / U
            if not allowed(p):
                continue
            d = weights.bias_weight * math.sqrt((shares**2).sum() * max(1 / U - 1, 0.0))
            noise = eta * Q / (2 * N**2 * t)[:, None]
            eps = np.minimum(np.cbrt(2 * noise / v[A]), math.inf if E is None else E)
            counted = eta * (d + (d * U) ** 2 / (2 * t) + t / (2 * U**2)) + (noise / eps**2 + v[A] * eps).sum(axis=1)
            least = min(least, float(counted.min()))
    return least


def best_receiver(v: FloatArray, shares: FloatArray, weights: Weights, allowed: Callable[[FloatArray], bool]) -> float:
    """The least objective over all p in which one client takes what the others, each at 0 or its share, leave."""

    def selections() -> Iterator[tuple[FloatArray, float]]:
        for receiver in range(len(v)):
            for kept in itertools.product([0.0, 1.0], repeat=len(v) - 1):
                p = np.insert(kept, receiver, 0.0) * shares
                p[receiver] = 1 - p.sum()
                yield p, float(np.abs(p - shares).sum())

    return _least(v, shares, weights, selections(), allowed)


def _least(
    v: FloatArray,
    shares: FloatArray,
    weights: Weights,
    selections: Iterator[tuple[FloatArray, float]],
    allowed: Callable[[FloatArray], bool],
) -> float:
    return min(
        _best_objective(v, p / (len(v) * shares), weights.bias_weight * bias, weights)
        for p, bias in selections
        if allowed(p)
    )


def _best_objective(v: FloatArray, counted: FloatArray, d: float, weights: Weights) -> float:
    """The objective at the best ε for p that counts as `counted`, by a search over log R, R the root in the loss."""
    kept = counted > 0
    e, v = counted[kept], v[kept]
    eta, Q = weights.loss_weight, weights.noise_weight
    E = math.inf if weights.max_epsilon is None else weights.max_epsilon

    def values(log_roots: FloatArray) -> FloatArray:
        eps = np.minimum(np.cbrt(eta * Q * e * e / (np.exp(log_roots)[:, None] * v)), E)
        return np.asarray(eta * (d + np.sqrt(d * d + Q * ((e / eps) ** 2).sum(axis=1))) + eps @ v)

    low, high = -30.0, 30.0
    for _ in range(12):
        grid = np.linspace(low, high, 241)
        tried = values(grid)
        # Where all are at the cap the value stands still; what may be better begins behind the last of these.
        i = int(np.flatnonzero(tried == tried.min())[-1])
        low, high = grid[max(i - 2, 0)], grid[min(i + 2, 240)]
    return float(tried.min())
