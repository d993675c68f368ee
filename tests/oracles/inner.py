"""The objective as written, and its minimum over the privacy budgets for given selection probabilities.

Two roads to the same inner minimum, neither of them the solver's: `best_epsilons` finds the multiplier of the noise
root by Brent's method, one instance at a time; `values` and `values_capped` run Newton steps over many rows at once for
the searches.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

Array = NDArray[np.float64]

# Newton in log B starts within 0.05 of the root and has reached rounding after four steps (a from 1e-16 to 1e20).
NEWTON_STEPS = 4
# Stands in for 1/v where v = 0: such a client always sits at the epsilon cap, and inf * 0 must not appear.
HUGE = 1e100


def equal_shares(n: int) -> Array:
    return np.full(n, 1.0 / n)


def objective(
    p: Array, eps: Array, v: Array, *, eta: float, Q: float, zeta: float = 1.0, u: Array | None = None
) -> float:
    """The full problem's objective (docs/theory.md), term by term; a client with p = 0 adds no noise."""
    u = equal_shares(len(p)) if u is None else u
    bias = zeta * math.fsum(abs(a - b) for a, b in zip(p, u, strict=True))
    noise = 0.0
    cost = 0.0
    for p_k, eps_k, v_k in zip(p.tolist(), eps.tolist(), v.tolist(), strict=True):
        if p_k != 0.0:
            if eps_k <= 0.0:
                return math.inf
            noise += Q * (p_k / eps_k) ** 2
        cost += v_k * eps_k
    return eta * (bias + math.sqrt(bias**2 + noise)) + cost


def best_epsilons(
    p: Array,
    v: Array,
    *,
    eta: float,
    Q: float,
    zeta: float = 1.0,
    u: Array | None = None,
    max_epsilon: float | None = None,
) -> tuple[float, Array]:
    """Least objective and its epsilons for fixed p, by root-finding on the multiplier R = sqrt(d^2 + Q sum p^2/eps^2).

    The problem is convex. Its stationarity reads eta Q p_k^2 = R v_k eps_k^3 unless eps_k sits at the cap, so R fixes
    every epsilon, and R must reproduce itself. In log R that condition has slope between 2/3 and 1: one root, easy to
    bracket.
    """
    cap = math.inf if max_epsilon is None else max_epsilon
    if max_epsilon is None and bool(np.any((v <= 0.0) & (p > 0.0))):
        raise ValueError("best_epsilons: a selected client with v = 0 has no best epsilon without max_epsilon")
    bias = zeta * float(np.abs(p - (equal_shares(len(p)) if u is None else u)).sum())

    def epsilons(log_root: float) -> Array:
        eps = np.zeros(len(p))
        for k in range(len(p)):
            if p[k] > 0.0:
                free = math.inf if v[k] == 0.0 else (eta * Q * p[k] ** 2 / v[k] / math.exp(log_root)) ** (1.0 / 3.0)
                eps[k] = min(cap, free)
        return eps

    def mismatch(log_root: float) -> float:
        eps = epsilons(log_root)
        kept = p > 0.0
        return log_root - 0.5 * math.log(bias**2 + Q * float(((p[kept] / eps[kept]) ** 2).sum()))

    gap = mismatch(0.0)
    low, high = sorted((0.0, -1.6 * gap))
    log_root = 0.0 if gap == 0.0 else float(brentq(mismatch, low - 1e-9, high + 1e-9, xtol=1e-15, rtol=1e-15))
    eps = epsilons(log_root)
    return objective(p, eps, v, eta=eta, Q=Q, zeta=zeta, u=u), eps


def least_over_cost(d: Array, S: Array, *, eta: float, Q: float) -> tuple[Array, Array]:
    """Minimum over B of eta (d + sqrt(d^2 + Q S^3/B^2)) + B, and the minimising B, elementwise.

    With B = sqrt(eta sqrt(Q S^3)) e^y stationarity is 2y + log(1 + a e^{2y})/2 = 0, slope between 2 and 3.
    """
    root_kappa = math.sqrt(Q) * S * np.sqrt(S)
    unbiased = np.sqrt(eta * root_kappa)
    a = d * d * eta / root_kappa
    y = -np.log1p(a) / 6.0
    for _ in range(NEWTON_STEPS):
        t = a * np.exp(2.0 * y)
        y = y - (2.0 * y + 0.5 * np.log1p(t)) / (2.0 + t / (1.0 + t))
    scale = np.exp(y)
    return eta * d + unbiased * (np.sqrt(a + scale**-2) + scale), unbiased * scale


def values(p: Array, v: Array, *, eta: float, Q: float, zeta: float) -> Array:
    """Objective minimised over epsilons for every row of p (equal shares, no epsilon cap)."""
    d = zeta * np.abs(p - 1.0 / p.shape[-1]).sum(axis=-1)
    S = np.cbrt(p * p) @ np.cbrt(v * v)
    return least_over_cost(d, S, eta=eta, Q=Q)[0]


def values_capped(p: Array, v: Array, *, eta: float, Q: float, zeta: float, max_epsilon: float) -> Array:
    """As `values`, with every epsilon at most `max_epsilon`."""
    d = zeta * np.abs(p - 1.0 / p.shape[-1]).sum(axis=-1)
    x = np.cbrt(p * p)
    root = noise_root(x, d, v, eta=eta, Q=Q, max_epsilon=max_epsilon)
    cost = np.minimum(max_epsilon, x * per_unit(root, v, eta=eta, Q=Q)) @ v
    total: Array = eta * (d + root) + cost
    return total


def per_unit(root: Array, v: Array, *, eta: float, Q: float) -> Array:
    """Uncapped epsilon over p^(2/3) when the noise root is given; finite at p = 0, which epsilon/p is not."""
    with np.errstate(divide="ignore"):
        return np.minimum(np.cbrt(eta * Q / v), HUGE) / np.cbrt(root)[..., None]


def noise_root(x: Array, d: Array, v: Array, *, eta: float, Q: float, max_epsilon: float) -> Array:
    """R of `best_epsilons` for every row of x = p^(2/3), by Newton steps in log R.

    The condition is concave and increasing in log R, with kinks only where a client reaches its cap: after the first
    step Newton comes from the left and cannot overshoot.
    """
    with np.errstate(divide="ignore"):
        at_cap = max_epsilon / x
    y = np.zeros_like(d)
    for _ in range(60):
        free = per_unit(np.exp(y), v, eta=eta, Q=Q)
        terms = Q * x / np.minimum(at_cap, free) ** 2
        inside = d * d + terms.sum(axis=-1)
        slope = 1.0 - np.where(free < at_cap, terms, 0.0).sum(axis=-1) / (3.0 * inside)
        step = (y - 0.5 * np.log(inside)) / slope
        y = y - step
        if not np.any(np.abs(step) > 1e-12):
            break
    return np.exp(y)
