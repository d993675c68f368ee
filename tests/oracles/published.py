"""Algorithm 1 of the paper exactly as printed, slips included (docs/theory.md), as a peer for quality and speed.

The slips, kept on purpose: the bias is 2 (p_1 - p_h), right only at p_h = 1/N; the noise weight Q is missing; at h = 1
client 1 enters the noise sum twice and, where it is the whole market, may be given probability two; f* starts at 10^6,
so a market whose money is counted in small coin finds nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize_scalar

from .inner import Array, least_over_cost, objective

FIRST_F = 1e6


@dataclass(frozen=True, kw_only=True)
class Published:
    """What Algorithm 1 returns, with the inner quantities that led there."""

    p: Array
    eps: Array
    B: float
    f: float
    h: int
    p_h: float


def published_algorithm_1(v: Array, *, eta: float, delta_grid: float, vectorised: bool = True) -> Published:
    """Run Algorithm 1 on virtual costs sorted upwards.

    `vectorised` handles all grid points of one h in one array pass; otherwise every (h, m) calls scipy's scalar
    minimiser, the "standard convex optimization" that the paper names.
    """
    n = len(v)
    if n == 0 or bool(np.any(np.diff(v) < 0.0)):
        raise ValueError("published_algorithm_1: v must be non-empty and sorted upwards")
    w = np.cbrt(v * v)
    # The guard keeps the last grid point when 1/(N delta) is a whole number that rounding put just below.
    grid = np.arange(math.floor(1.0 / (n * delta_grid) + 1e-9) + 1)
    best_f, best_h, best_p_h, best_B = FIRST_F, 0, 0.0, 0.0
    for i in range(1, n + 1):
        h = n + 1 - i
        p_1 = i / n + grid * delta_grid
        p_h = np.maximum(1.0 / n - grid * delta_grid, 0.0)
        between = float(w[1 : h - 1].sum()) / n ** (2.0 / 3.0)
        S = w[0] * np.cbrt(p_1**2) + w[h - 1] * np.cbrt(p_h**2) + between
        d = 2.0 * (p_1 - p_h)
        if vectorised:
            f, B = least_over_cost(d, S, eta=eta, Q=1.0)
            m = int(np.argmin(f))
            if f[m] < best_f:
                best_f, best_h, best_p_h, best_B = float(f[m]), h, float(p_h[m]), float(B[m])
        else:
            for d_m, S_m, p_h_m in zip(d.tolist(), S.tolist(), p_h.tolist(), strict=True):
                f_m, B_m = _least_by_scipy(d_m, S_m**3, eta)
                if f_m < best_f:
                    best_f, best_h, best_p_h, best_B = f_m, h, p_h_m, B_m
    if best_h == 0:
        raise RuntimeError(f"published_algorithm_1: no candidate is below the initial f* = {FIRST_F:g}")
    return _assign(v, best_h, best_p_h, best_B, best_f)


def true_objective(result: Published, v: Array, *, eta: float, Q: float, zeta: float = 1.0) -> tuple[float, float]:
    """Objective of the full problem at the returned (p, eps) as they are, and the sum of p, which need not be one."""
    return objective(result.p, result.eps, v, eta=eta, Q=Q, zeta=zeta), float(result.p.sum())


def _least_by_scipy(d: float, c: float, eta: float) -> tuple[float, float]:
    def cost(log_B: float) -> float:
        B = math.exp(log_B)
        return eta * d + eta * math.sqrt(d * d + c / B**2) + B

    # Stationarity puts the best B at B_0 e^y with B_0 the unbiased one and -log(1 + a)/4 <= y <= 0.
    high = 0.5 * math.log(eta) + 0.25 * math.log(c)
    low = high - math.log1p(d * d * eta / math.sqrt(c)) / 4.0 - 1e-6
    found = minimize_scalar(cost, bounds=(low, high + 1e-6), method="bounded", options={"xatol": 1e-9})
    return float(found.fun), math.exp(float(found.x))


def _assign(v: Array, h: int, p_h: float, B: float, f: float) -> Published:
    n = len(v)
    p = np.zeros(n)
    for k in range(1, n + 1):
        if k == 1:
            p[k - 1] = (2 + n - h) / n - p_h
        elif 1 < k < h:
            p[k - 1] = 1.0 / n
        elif k == h:
            p[k - 1] = p_h
    share = np.cbrt(p * p)
    eps = share * B / (np.cbrt(v) * float(np.cbrt(v * v) @ share))
    return Published(p=p, eps=eps, B=B, f=f, h=h, p_h=p_h)
