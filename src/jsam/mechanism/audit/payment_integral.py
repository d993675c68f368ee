"""The Myerson payment once more: a quadrature of its own over ε as a black box, which cuts down to every jump."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from jsam.mechanism._arrays import FloatArray

Curve = Callable[[FloatArray], FloatArray]

PIECES = 8  # a panel that will not do is cut in so many
MOST_POINTS = 40_000
SHARE = 1e-9  # of the payment: the error allowed to one panel; under a cap on p hundreds of jumps add up
ODD = 100  # times that much is allowed to the seventh Chebyshev coefficient, which a smooth ε has far smaller
CLOSER_SHARE = 1e-12  # the same where the first look speaks against the claim


def _clenshaw_curtis(intervals: int) -> FloatArray:
    """Weights on [−1, 1] at cos(πj/n), from the exact integrals of the Chebyshev polynomials."""
    n = intervals
    angles = np.pi * np.arange(n + 1) / n
    even = np.arange(0, n + 1, 2)
    halves = np.where((even == 0) | (even == n), 0.5, 1.0)
    ends = np.where((np.arange(n + 1) == 0) | (np.arange(n + 1) == n), 0.5, 1.0)
    series = np.cos(np.outer(angles, even)) @ (halves * 2 / (1.0 - even**2))
    return np.asarray(ends * series * 2 / n)


# Nested rules that see both ends of a panel: a jump beside an end shows as well as one in the middle.
NODES = 0.5 - 0.5 * np.cos(np.pi * np.arange(9) / 8)
NINE, FIVE, THREE = (0.5 * _clenshaw_curtis(n) for n in (8, 4, 2))
SEVENTH = np.cos(7 * np.pi * np.arange(9) / 8) / np.array([8, 4, 4, 4, 4, 4, 4, 4, 8])


@dataclass(frozen=True, kw_only=True)
class Area:
    """c ε(c) + ∫ ε dz with an estimate of the error; `settled` if that is small enough to judge a payment by."""

    payment: float
    error: float
    settled: bool


def myerson_payment(
    curve: Curve, truth: float, prior: Any, *, claimed: float, tolerance: float, share: float = SHARE
) -> Area:
    """The payment that makes `curve` truthful, for comparison with the one claimed.

    Panels are cut until each is either smooth, to `share` of the payment, or too narrow to matter. It stops early where
    the claim is already far off: a broken curve may jump without end.
    """
    far = float(prior.isf(1e-15))

    def tamed(z: FloatArray) -> FloatArray:
        # So far out that v overflows, nothing can be sold.
        eps = curve(z)
        return np.where(np.isnan(eps) & (z > far), 0.0, eps)

    first = float(curve(np.array([truth]))[0])
    base = truth * first
    edges, tail = _edges(tamed, truth, first, prior)
    left, right = edges[:-1], edges[1:]
    done = error = 0.0
    points = 0
    while len(left):
        width = right - left
        z = left[:, None] + width[:, None] * NODES
        z[:, -1] = right
        points += z.size
        eps = tamed(z.ravel()).reshape(z.shape)
        nine, five, three = width * (eps @ NINE), width * (eps[:, ::2] @ FIVE), width * (eps[:, ::4] @ THREE)
        gap = np.abs(nine - five)
        drop = width * (eps.max(axis=1) - eps.min(axis=1)) / 2
        payment = base + done + float(nine.sum())
        allowed = share * max(abs(payment), np.finfo(np.float64).tiny)
        # A jump can fool two rules by chance; it does not make them converge. Even stairs, as under a cap on p, can be
        # so placed that all rules agree, which see the symmetric part of ε alone: the other part must die out too.
        smooth = (gap <= allowed) & ((gap <= 0.1 * np.abs(five - three)) | (np.abs(five - three) <= allowed))
        smooth &= width * np.abs(eps @ SEVENTH) <= ODD * allowed
        fine = smooth | (drop <= allowed) | (width <= 4 * np.spacing(right))
        unsure = np.where(smooth, np.minimum(gap, drop), drop)
        done += float(nine[fine].sum())
        error += float(unsure[fine].sum())
        open_error = error + float(drop[~fine].sum()) + tail
        if not math.isfinite(payment) or abs(payment - claimed) > 2 * open_error + tolerance:
            return Area(payment=payment, error=open_error, settled=True)
        if points > MOST_POINTS:
            return Area(payment=payment, error=open_error, settled=open_error <= tolerance)
        cuts = np.linspace(left[~fine], right[~fine], PIECES + 1)
        left, right = cuts[:-1].ravel(), cuts[1:].ravel()
    return Area(payment=base + done, error=error + tail, settled=error + tail <= tolerance)


def _edges(curve: Curve, truth: float, first: float, prior: Any) -> tuple[FloatArray, float]:
    """First panels from the truth up, doubling in report, and a bound on what lies beyond the last."""
    top = float(prior.support()[1])
    if first == 0 or top <= truth:
        return np.array([truth]), 0.0
    if math.isfinite(top):
        # Where the density vanishes v is infinite, and so the last report but one stands for the top.
        end = top if math.isfinite(float(prior.logpdf(top))) else math.nextafter(top, 0.0)
        return np.geomspace(truth, end, 5 + math.ceil(math.log2(top) - math.log2(truth))), 0.0
    edges = [truth]
    while edges[-1] < 1e290:
        ahead: FloatArray = edges[-1] * np.exp2(np.arange(1.0, 17.0))
        eps = curve(ahead)
        dropped = np.flatnonzero(~(eps > 0))
        if len(dropped):
            return np.concatenate([edges, ahead[: dropped[0] + 1]]), 0.0
        edges += ahead.tolist()
        power = -math.log2(eps[-1] / eps[-2])
        tail = ahead[-1] * eps[-1] / (power - 1) if power > 1.05 else math.inf
        if tail <= 1e-9 * truth * first:
            return np.array(edges), tail
    return np.array(edges), math.inf
