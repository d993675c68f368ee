"""The bias of a random sample over all selection probabilities: what is left beside even shares of equal data.

SLSQP runs from many starts over the whole simplex, in x = p^(2/3), where the noise is smooth. The best ε for given p
follows from one root, as in `inner`; nothing is taken from the planner.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import Bounds, minimize

from jsam.mechanism.weights import Weights

from .inner import Array, noise_root, per_unit


def least_over_simplex(
    v: Array, weights: Weights, begin: Array, rng: np.random.Generator, *, starts: int = 12
) -> float:
    """The least objective that was found over all p of clients with equal data, with the caps on ε and p.

    The first start is `begin`, so the result is never above its objective.
    """
    n = len(v)
    cap = 1.0 if weights.max_selection_prob is None else weights.max_selection_prob
    tried = [begin]
    for i in range(starts):
        spread = (1.0, 0.3, 3.0)[i % 3]
        tried.append(within(0.1 * begin + 0.9 * rng.dirichlet(np.full(n, spread)), cap))
    reached = [p for start in tried for p in (start, _descended(start, v, weights, cap, ftol=1e-10))]
    best = min(reached, key=lambda p: value(p, v, weights))
    return min(value(best, v, weights), value(_descended(best, v, weights, cap, ftol=1e-15), v, weights))


def within(p: Array, cap: float) -> Array:
    """Probabilities with sum 1 and none above the cap: what is cut off goes to the others by the room they have."""
    p = np.clip(p, 0.0, cap)
    lack = 1.0 - float(p.sum())
    if lack > 0.0:
        return np.asarray(p + lack * (cap - p) / float((cap - p).sum()))
    return np.asarray(p / p.sum())


def value(p: Array, v: Array, weights: Weights) -> float:
    """The objective at p and the best ε for it, with ζ‖p − u‖₂ as the bias."""
    return math.exp(_log_value(np.cbrt(p * p), v, weights)[0])


def _log_value(x: Array, v: Array, weights: Weights) -> tuple[float, Array]:
    """Log of the objective and its gradient in x = p^(2/3); the best ε adds nothing to the gradient."""
    x = np.maximum(x, 0.0)
    eta, Q, zeta = weights.loss_weight, weights.noise_weight, weights.bias_weight
    cap = math.inf if weights.max_epsilon is None else weights.max_epsilon
    side = np.sqrt(x)
    away = x * side - 1.0 / len(x)
    d = zeta * math.sqrt(float(away @ away))
    root = float(noise_root(x, np.array(d), v, eta=eta, Q=Q, max_epsilon=cap))
    free = per_unit(np.array(root), v, eta=eta, Q=Q)
    with np.errstate(divide="ignore"):
        unit = np.minimum(cap / x, free)
    total = eta * (d + root) + float(np.minimum(cap, x * free) @ v)
    of_bias = 1.5 * zeta**2 * away * side / d if d > 0.0 else np.zeros(len(x))
    gradient = 1.5 * eta * Q / (root * unit**2) + eta * (1.0 + d / root) * of_bias
    return math.log(total), np.asarray(gradient / total)


def _descended(start: Array, v: Array, weights: Weights, cap: float, *, ftol: float) -> Array:
    def excess(x: Array) -> float:
        return float((x**1.5).sum()) - 1.0

    def excess_gradient(x: Array) -> Array:
        return np.asarray(1.5 * np.sqrt(x))

    reached = minimize(
        _log_value,
        np.cbrt(start * start),
        args=(v, weights),
        jac=True,
        method="SLSQP",
        bounds=Bounds(np.zeros(len(v)), np.full(len(v), np.cbrt(cap * cap))),
        constraints={"type": "eq", "fun": excess, "jac": excess_gradient},
        options={"ftol": ftol, "maxiter": 100},
    )
    x = np.maximum(reached.x, 0.0)
    return within(x**1.5, cap)
