"""Slow twins for payments: a client's epsilon as a function of its own report, and the area under it."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.polynomial import chebyshev

from .inner import Array, least_over_cost

Curve = Callable[[Array], Array]

DEGREE = 16
# Chebyshev points include both ends of a panel, so that a jump beside an end is seen; Gauss points would miss it.
NODES = -np.cos(np.pi * np.arange(DEGREE + 1) / DEGREE)
TO_COEFFICIENTS = np.linalg.inv(chebyshev.chebvander(NODES, DEGREE))
AREAS = np.array([0.0 if k % 2 else 1.0 / (1.0 - k * k) for k in range(DEGREE + 1)])
# Cutting in eight rather than two costs a few more points and saves two calls in three, and calls are what is slow.
PIECES = 8
MAX_PANELS = 200_000


def dense_payment(
    epsilon_of_report: Curve, c: float, top: float, *, rel_tol: float = 1e-11, jump_width: float = 1e-14
) -> tuple[float, float]:
    """Myerson payment c eps(c) + integral of eps from c to top, with an error estimate, for a non-increasing black box.

    A panel whose Chebyshev coefficients have died out is integrated; any other is cut up, down to `jump_width` of the
    range, where monotony bounds what is left. An infinite top needs a curve that reaches zero.
    """
    at_c = float(epsilon_of_report(np.array([c]))[0])
    if at_c == 0.0:
        return 0.0, 0.0
    if math.isinf(top):
        top = _beyond_exclusion(epsilon_of_report, c)
    span = top - c
    narrow = max(jump_width * span, 4.0 * math.ulp(top))
    left, right = np.array([c]), np.array([top])
    done, error, panels = 0.0, 0.0, 0
    while len(left):
        panels += len(left)
        if panels > MAX_PANELS:
            raise RuntimeError(f"dense_payment: over {MAX_PANELS} panels; the curve is too rough for {rel_tol:g}")
        width = right - left
        z = left[:, None] + width[:, None] * (0.5 + 0.5 * NODES)
        z[:, 0], z[:, -1] = left, right
        height = np.asarray(epsilon_of_report(z.ravel())).reshape(z.shape)
        coefficients = height @ TO_COEFFICIENTS.T
        tail = np.abs(coefficients[:, -3:]).max(axis=1)
        area = width * (coefficients @ AREAS)
        payment = c * at_c + done + max(float(area.sum()), 0.0)
        allowed = np.maximum(rel_tol * payment / span, 1e-13 * height.max(axis=1))
        smooth = (tail <= allowed) | (tail * width <= 1e-16 * payment)
        closed = ~smooth & (width <= narrow)
        done += float(area[smooth].sum()) + float((width * 0.5 * (height[:, 0] + height[:, -1]))[closed].sum())
        error += float((tail * width)[smooth].sum())
        error += float((width * 0.5 * np.abs(height[:, 0] - height[:, -1]))[closed].sum())
        left, right = left[~smooth & ~closed], right[~smooth & ~closed]
        cuts = np.linspace(left, right, PIECES + 1)
        left, right = cuts[:-1].ravel(), cuts[1:].ravel()
    payment = float(c * at_c + done)
    return payment, float(error + 1e-15 * payment)


def _beyond_exclusion(epsilon_of_report: Curve, c: float) -> float:
    factors: Array = np.exp2(np.arange(1.0, 17.0))
    start = c
    while start < 1e200:
        reports = start * factors
        zero = np.flatnonzero(epsilon_of_report(reports) == 0.0)
        if len(zero):
            return float(reports[zero[0]])
        start = float(reports[-1])
    raise ValueError("dense_payment: the curve never reaches zero, so an infinite top has no bracket")


def exact_curve(v_of_report: Curve, others_v: Array, *, eta: float, Q: float, zeta: float = 1.0) -> Curve:
    """Client k's epsilon as a function of its report z: every z is a market solved anew over all N candidates.

    Equal shares, no caps. On a tie in v the others rank first.
    """
    others = np.sort(others_v)
    n = len(others) + 1

    def epsilon(reports: Array) -> Array:
        mine = np.asarray(v_of_report(reports))
        rank = np.searchsorted(others, mine, side="right")
        market = np.sort(np.hstack([np.tile(others, (len(mine), 1)), mine[:, None]]), axis=1)
        w = np.cbrt(market) ** 2
        least = np.full(len(mine), np.inf)
        answer = np.zeros(len(mine))
        kept = np.zeros(len(mine))
        for h in range(1, n + 1):
            first = (n - h + 1) / n
            if h > 1:
                kept = kept + w[:, h - 1]
            S = w[:, 0] * first ** (2.0 / 3.0) + kept / n ** (2.0 / 3.0)
            d = np.full(len(mine), 2.0 * zeta * (n - h) / n)
            f, B = least_over_cost(d, S, eta=eta, Q=Q)
            p = np.where(rank >= h, 0.0, np.where(rank == 0, first, 1.0 / n))
            wins = f < least
            least[wins] = f[wins]
            answer[wins] = np.cbrt(p[wins] ** 2) * B[wins] / (S[wins] * np.cbrt(mine[wins]))
        return answer

    return epsilon


def trapezoid_payments_on_grid(
    c: Array, v_of_report: Curve, top: float, *, eta: float, Q: float, zeta: float = 1.0, points: int = 2000
) -> Array:
    """The naive way to pay: re-solve the market on a grid of each client's own report, then the trapezoid rule."""
    v = np.asarray(v_of_report(c))
    payments = np.zeros(len(c))
    for k in range(len(c)):
        curve = exact_curve(v_of_report, np.delete(v, k), eta=eta, Q=Q, zeta=zeta)
        reports = np.linspace(c[k], top, points)
        eps = curve(reports)
        payments[k] = c[k] * eps[0] + 0.5 * float((eps[1:] + eps[:-1]) @ np.diff(reports))
    return payments
