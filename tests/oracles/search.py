"""Global search over selection probabilities for small N, blind to the structure that the solver relies on.

Corners are enumerated, SLSQP runs from many starts over the whole simplex, and the best points are polished by moving
mass between every ordered pair of clients. SLSQP alone is a poor searcher here: the objective has kinks at p = 1/N and
an infinite slope at p = 0. It therefore works in x = p^(2/3), where the noise is smooth, and inside one orthant of
p - 1/N, where the bias is linear; the exchanges cross the kinks afterwards.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, minimize

from .inner import Array, best_epsilons, noise_root, per_unit, values, values_capped

Rows = Callable[[Array], Array]
Smooth = Callable[[Array, NDArray[np.bool_]], tuple[float, Array]]

# Shares of the movable mass tried for each pair, denser at both ends because pieces can be steep at either.
SHARES = 0.5 - 0.5 * np.cos(np.linspace(0.0, math.pi, 11))
ZOOM = np.linspace(0.0, 1.0, 17)


def brute_force(
    v: Array,
    *,
    eta: float,
    Q: float,
    zeta: float = 1.0,
    max_selection_prob: float | None = None,
    starts: int = 20,
    seed: int = 0,
) -> tuple[float, Array, Array]:
    """Least objective over all p and epsilons, equal shares: (objective, p, epsilons). Meant for N <= 8."""
    cap = 1.0 if max_selection_prob is None else max_selection_prob

    def rows(p: Array) -> Array:
        return values(p, v, eta=eta, Q=Q, zeta=zeta)

    def smooth(x: Array, receives: NDArray[np.bool_]) -> tuple[float, Array]:
        return _log_value(x, receives, v, eta, Q, zeta)

    p = _search(rows, smooth, v, cap, np.random.default_rng(seed), starts=starts, keep=4)
    best, eps = best_epsilons(p, v, eta=eta, Q=Q, zeta=zeta)
    return best, p, eps


def brute_force_joint(
    v: Array,
    *,
    eta: float,
    Q: float,
    zeta: float = 1.0,
    max_selection_prob: float | None = None,
    max_epsilon: float,
    starts: int = 40,
    seed: int = 0,
) -> tuple[float, Array, Array]:
    """As `brute_force` with epsilons capped too; v may hold zeros. Meant for N <= 5.

    With an epsilon cap the optimum is often inside the simplex in several directions at once, so every orthant gets a
    start.
    """
    cap = 1.0 if max_selection_prob is None else max_selection_prob

    def rows(p: Array) -> Array:
        return values_capped(p, v, eta=eta, Q=Q, zeta=zeta, max_epsilon=max_epsilon)

    def smooth(x: Array, receives: NDArray[np.bool_]) -> tuple[float, Array]:
        return _log_value_capped(x, receives, v, eta, Q, zeta, max_epsilon)

    p = _search(rows, smooth, v, cap, np.random.default_rng(seed), starts=starts, keep=6, every_orthant=True)
    best, eps = best_epsilons(p, v, eta=eta, Q=Q, zeta=zeta, max_epsilon=max_epsilon)
    return best, p, eps


def _search(
    rows: Rows,
    smooth: Smooth,
    v: Array,
    cap: float,
    rng: np.random.Generator,
    *,
    starts: int,
    keep: int,
    every_orthant: bool = False,
) -> Array:
    n = len(v)
    if cap * n < 1.0 - 1e-12:
        raise ValueError(f"max_selection_prob = {cap} is under 1/N for N = {n}")
    if n == 1:
        return np.ones(1)
    corners = corner_points(n, cap)
    corners = corners[np.argsort(rows(corners))[:keep]]
    begin = [_random_start(corners[0], cap, rng, kind) for kind in range(starts)]
    if every_orthant:
        begin += [_start_in_orthant(np.array(signs), cap, rng) for signs in itertools.product([False, True], repeat=n)]
    descended = np.array([_slsqp(p, smooth, cap) for p in begin]).reshape(-1, n)
    descended = descended[np.argsort(rows(descended))[:keep]]
    polished = _exchange(np.vstack([corners, descended]), rows, cap)
    best: Array = polished[np.argmin(rows(polished))]
    if every_orthant:
        # Pairwise moves creep along a curved valley; a last tight SLSQP does not.
        again = np.array([best, _slsqp(best, smooth, cap, ftol=1e-15, maxiter=200)])
        best = again[np.argmin(rows(again))]
    return best


def corner_points(n: int, cap: float) -> Array:
    """All p with every client at 0, 1/N or the cap except one that takes what is left (that one in every position)."""
    levels = np.array([0.0, 1.0 / n, cap])
    others = levels[_patterns(n - 1, 2 if cap >= 1.0 else 3)]
    left = 1.0 - others.sum(axis=1)
    feasible = (left > -1e-12) & (left < cap + 1e-12)
    others, left = others[feasible], np.clip(left[feasible], 0.0, cap)
    return np.vstack([np.insert(others, k, left, axis=1) for k in range(n)])


@lru_cache(maxsize=32)
def _patterns(length: int, levels: int) -> NDArray[np.intp]:
    return np.array(list(itertools.product(range(levels), repeat=length)), dtype=np.intp).reshape(-1, length)


def _random_start(corner: Array, cap: float, rng: np.random.Generator, kind: int) -> Array:
    """Spread-out, concentrated, subset-and-receivers, and near-the-best-corner starts in turn."""
    n = len(corner)
    if kind % 4 == 0:
        p = rng.dirichlet(np.ones(n))
    elif kind % 4 == 1:
        p = rng.dirichlet(np.full(n, 0.3))
    elif kind % 4 == 2:
        p = np.where(rng.random(n) < 0.5, 1.0 / n, 0.0)
        p = p + (1.0 - p.sum()) * rng.dirichlet(np.full(n, 0.5))
    else:
        p = 0.8 * corner + 0.2 * rng.dirichlet(np.ones(n))
    return _fit(p, np.zeros(n), np.full(n, cap))


def _start_in_orthant(receives: NDArray[np.bool_], cap: float, rng: np.random.Generator) -> Array:
    n = len(receives)
    moved = rng.uniform(0.05, 0.95) * min((n - receives.sum()) / n, receives.sum() * (cap - 1.0 / n))
    toward = np.where(receives, moved / max(receives.sum(), 1), -moved / max(n - receives.sum(), 1))
    return _fit(1.0 / n + toward, np.zeros(n), np.full(n, cap))


def _fit(p: Array, low: Array, high: Array) -> Array:
    """The point with sum 1 inside the box that moves p towards one end of the box in proportion to the room there."""
    p = np.clip(p, low, high)
    for _ in range(3):
        lack = 1.0 - p.sum()
        room = high - p if lack > 0.0 else p - low
        if lack == 0.0 or room.sum() == 0.0:
            break
        p = np.clip(p + lack * room / room.sum(), low, high)
    return p


def _slsqp(start: Array, smooth: Smooth, cap: float, *, ftol: float = 1e-6, maxiter: int = 20) -> Array:
    n = len(start)
    receives = start > 1.0 / n
    low, high = np.where(receives, 1.0 / n, 0.0), np.where(receives, cap, 1.0 / n)
    found = minimize(
        smooth,
        np.cbrt(start * start),
        args=(receives,),
        jac=True,
        method="SLSQP",
        bounds=Bounds(np.cbrt(low * low), np.cbrt(high * high)),
        constraints={"type": "eq", "fun": _excess, "jac": _excess_gradient},
        options={"ftol": ftol, "maxiter": maxiter},
    )
    x = np.maximum(found.x, 0.0)
    return _fit(x * np.sqrt(x), low, high)


def _excess(x: Array) -> float:
    return float(x @ np.sqrt(x)) - 1.0


def _excess_gradient(x: Array) -> Array:
    return 1.5 * np.sqrt(x)


def _log_value(
    x: Array, receives: NDArray[np.bool_], v: Array, eta: float, Q: float, zeta: float
) -> tuple[float, Array]:
    """Log of the inner minimum and its gradient in x = p^(2/3); plain floats, as SLSQP asks for one point at a time."""
    w = np.cbrt(v * v)
    side = np.sqrt(x)
    S = float(w @ x)
    d = max(2.0 * zeta * float((x * side)[receives].sum() - receives.sum() / len(x)), 0.0)
    root_kappa = math.sqrt(Q) * S**1.5
    unbiased = math.sqrt(eta * root_kappa)
    a = d * d * eta / root_kappa
    y = -math.log1p(a) / 6.0
    for _ in range(4):
        t = a * math.exp(2.0 * y)
        y -= (2.0 * y + 0.5 * math.log1p(t)) / (2.0 + t / (1.0 + t))
    B = unbiased * math.exp(y)
    root = math.sqrt(d * d + Q * S**3 / B**2)
    value = eta * (d + root) + B
    gradient = 1.5 * eta * Q * S**2 / (B**2 * root) * w + eta * (1.0 + d / root) * 3.0 * zeta * side * receives
    return math.log(value), gradient / value


def _log_value_capped(
    x: Array, receives: NDArray[np.bool_], v: Array, eta: float, Q: float, zeta: float, max_epsilon: float
) -> tuple[float, Array]:
    x = np.maximum(x, 0.0)
    side = np.sqrt(x)
    d = max(2.0 * zeta * float((x * side)[receives].sum() - receives.sum() / len(x)), 0.0)
    root = float(noise_root(x, np.array(d), v, eta=eta, Q=Q, max_epsilon=max_epsilon))
    free = per_unit(np.array(root), v, eta=eta, Q=Q)
    with np.errstate(divide="ignore"):
        unit = np.minimum(max_epsilon / x, free)
    value = eta * (d + root) + float(np.minimum(max_epsilon, x * free) @ v)
    gradient = 1.5 * eta * Q / (root * unit**2) + eta * (1.0 + d / root) * 3.0 * zeta * side * receives
    return math.log(value), gradient / value


def _exchange(p: Array, rows: Rows, cap: float) -> Array:
    """Descend every row of p by the best transfer between any two clients until none helps."""
    n = p.shape[1]
    giver, taker = np.array(list(itertools.permutations(range(n), 2))).T
    move = np.eye(n)[taker] - np.eye(n)[giver]
    for _ in range(100):
        before = rows(p)
        room = np.minimum(p[:, giver], cap - p[:, taker])
        kinks = [p[:, giver] - 1.0 / n, 1.0 / n - p[:, taker], p[:, giver] - p[:, taker]]
        amounts = np.concatenate([room[..., None] * SHARES, np.stack(kinks, axis=-1)], axis=-1)
        amounts = np.sort(np.clip(amounts, 0.0, np.maximum(room, 0.0)[..., None]), axis=-1)
        trial = np.maximum(p[:, None, None, :] + amounts[..., None] * move[:, None, :], 0.0)
        flat = rows(trial).reshape(len(p), -1).argmin(axis=1)
        pair, place = np.divmod(flat, amounts.shape[-1])
        each = np.arange(len(p))
        low = amounts[each, pair, np.maximum(place - 1, 0)]
        high = amounts[each, pair, np.minimum(place + 1, amounts.shape[-1] - 1)]
        candidates = trial[each, pair, place]
        for _ in range(8):
            t = low[:, None] + (high - low)[:, None] * ZOOM
            line = np.maximum(p[:, None, :] + t[..., None] * move[pair][:, None, :], 0.0)
            best = rows(line).argmin(axis=1)
            low, high = t[each, np.maximum(best - 1, 0)], t[each, np.minimum(best + 1, len(ZOOM) - 1)]
            zoomed = line[each, best]
            candidates = np.where((rows(zoomed) < rows(candidates))[:, None], zoomed, candidates)
        better = rows(candidates) < before * (1.0 - 1e-14)
        if not better.any():
            break
        p = np.where(better[:, None], candidates, p)
    return p
