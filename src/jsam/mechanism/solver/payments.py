"""Ex-post Myerson payments, exact: π_k = c_k ε_k + ∫ from c_k to the top of the support of ε_k(z, c_−k) dz.

The minimal objective G is concave in each virtual cost and its slope is that client's ε (envelope theorem). So where
v is linear in the report the integral is a difference of two optima. Elsewhere it is taken over cells, with an error
bound that holds across the jumps of ε (docs/theory.md, "Payments").
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from jsam.errors import DivergentPaymentError, NotSupportedError
from jsam.mechanism._arrays import BoolArray, FloatArray, IntArray
from jsam.mechanism.pricing.pieces import Pieces
from jsam.mechanism.pricing.virtual_cost import VirtualCost
from jsam.mechanism.solver.piecewise_rents import integrate
from jsam.mechanism.solver.quadrature import ROUNDING, Cells, Stretch
from jsam.mechanism.solver.response import Answers, Block, Curves

LEAF = 64  # clients that share a mesh
AFFINE_LEAF = 256  # without a mesh larger blocks are quicker
FIRST_CELLS = 4
MOST_CELLS = 1024
TOLERANCE = 1e-7  # of a payment, certified; the actual error is smaller still
LIGHT = 1.2  # a tail along which ε falls by this power of the report ends far within what doubles hold
LOST_DIGITS = 1e-9  # of a payment: a larger rounding error asks for another way

Progress = Callable[[int], None]


def rents(
    own: Answers,
    ranks: IntArray,
    reports: FloatArray,
    epsilons: FloatArray,
    cost: VirtualCost,
    objective: float | FloatArray,
    tolerance: float = TOLERANCE,
    progress: Progress | None = None,
) -> tuple[FloatArray, FloatArray]:
    """What each client earns above its cost, with a bound on the error: ∫ ε dz from its report to the top.

    The clients (rising `ranks`) share a virtual cost and are selected; `epsilons` and `objective` are their ε and the
    minimal objective at these reports.
    """
    if cost.affine is None:
        return _by_quadrature(own, ranks, reports, cost, tolerance, progress)
    objective = np.broadcast_to(np.asarray(objective, dtype=np.float64), reports.shape)
    at_most = epsilons * cost.top
    if np.any(_too_rough(ROUNDING * objective / cost.affine[1], at_most)):
        precise = _by_changes(own, ranks, reports, cost, progress)
        if precise is not None:
            return precise
    values, bounds = np.zeros(len(ranks)), np.zeros(len(ranks))
    top = np.full(len(ranks), cost.at_top)
    for part, block in own.blocks(ranks, top, top, AFFINE_LEAF, progress):
        at_top = own.curve(block, block.ranks, top[part]).objective
        values[part] = np.maximum(at_top - objective[part], 0.0) / cost.affine[1]
        bounds[part] = ROUNDING * at_top / cost.affine[1]
    # Where the loss is most of the objective (a low cap on ε), or with very many clients, the difference of two optima
    # has lost its digits.
    lost = np.flatnonzero(_too_rough(bounds, reports * epsilons + values))
    if len(lost):
        again = _by_changes(own, ranks[lost], reports[lost], cost)
        if again is None:
            again = _by_quadrature(own, ranks[lost], reports[lost], cost, tolerance)
        values[lost], bounds[lost] = again
    return values, bounds


def _too_rough(bounds: FloatArray, payments: FloatArray) -> BoolArray:
    """Whether so large an error could be seen in so large a payment."""
    return np.asarray(bounds > LOST_DIGITS * payments)


def _by_changes(
    own: Answers, ranks: IntArray, reports: FloatArray, cost: VirtualCost, progress: Progress | None = None
) -> tuple[FloatArray, FloatArray] | None:
    """The rents from changes of the objective that have all their digits; None where there is no such way."""
    assert cost.affine is not None
    known = own.rises(ranks, cost(reports), cost.at_top)
    if known is None:
        return None
    if progress is not None:
        progress(len(ranks))
    return known[0] / cost.affine[1], known[1] / cost.affine[1]


def _by_quadrature(
    own: Answers,
    ranks: IntArray,
    reports: FloatArray,
    cost: VirtualCost,
    tolerance: float,
    progress: Progress | None = None,
) -> tuple[FloatArray, FloatArray]:
    if len(ranks) > 1 and ranks[0] == ranks[-1] and cost.pieces is None:
        return _of_one_client(own, ranks, reports, cost, tolerance)
    values, bounds, start = np.zeros(len(ranks)), np.zeros(len(ranks)), cost(reports)
    for part, block in own.blocks(ranks, start, np.full(len(ranks), cost.at_top), LEAF, progress):
        values[part], bounds[part] = _integrate(own, block, reports[part], start[part], cost, tolerance)
    return values, bounds


def _of_one_client(
    own: Answers, ranks: IntArray, reports: FloatArray, cost: VirtualCost, tolerance: float
) -> tuple[FloatArray, FloatArray]:
    """Rents of several reports of one client, which overlap: what lies between two reports is integrated once.

    A payment falls as its report rises. So if each stretch is exact to its share of the tolerance, measured by its own
    payment, so is every sum of stretches.
    """
    order = np.argsort(reports, kind="stable")
    z, v = reports[order], cost(reports[order])
    block = next(own.split(ranks[:1], v[:1], np.array([cost.at_top]), LEAF))
    at = own.curve(block, ranks, v)
    last, block = replace(block, ranks=ranks[-1:]), replace(block, ranks=ranks[:-1])
    between = Stretch(
        low=z[:-1],
        high=z[1:],
        v_low=v[:-1],
        v_high=v[1:],
        G_low=at.objective[:-1],
        G_high=at.objective[1:],
        eps_low=at.epsilon[:-1],
        eps_high=at.epsilon[1:],
    )
    share = tolerance / len(z)
    value, bound = _within(own, block, cost, between, share * z[:-1] * at.epsilon[:-1], share)
    end_value, end_bound = _integrate(own, last, z[-1:], v[-1:], cost, share)
    values, bounds = np.empty(len(z)), np.empty(len(z))
    values[order] = np.cumsum(np.append(value, end_value)[::-1])[::-1]
    bounds[order] = np.cumsum(np.append(bound, end_bound)[::-1])[::-1]
    return values, bounds


def _within(
    own: Answers, block: Block, cost: VirtualCost, span: Stretch, goal: FloatArray, tolerance: float
) -> tuple[FloatArray, FloatArray]:
    """∫ ε dz over stretches of finite v, each to its `goal` and the tolerance if that can be had.

    Those that are exact enough are left alone; the others share a mesh.
    """
    edges = np.linspace(0, 1, FIRST_CELLS + 1)
    cells = Cells.over(own, block, cost, span, edges[:-1], np.diff(edges))
    value, bound = cells.value.sum(axis=1), cells.bound.sum(axis=1)
    open_ = bound > goal + tolerance * value
    if open_.all():
        return _on_one_mesh(own, block, cost, span, cells, goal, tolerance)
    if open_.any():
        rest = replace(block, ranks=block.ranks[open_])
        value[open_], bound[open_] = _within(own, rest, cost, span.some(open_), goal[open_], tolerance)
    return value, bound


def _on_one_mesh(
    own: Answers, block: Block, cost: VirtualCost, span: Stretch, cells: Cells, goal: FloatArray, tolerance: float
) -> tuple[FloatArray, FloatArray]:
    """Cut the cells until all stretches are exact enough, or the mesh is as fine as it may get."""
    while True:
        value, bound = cells.value.sum(axis=1), cells.bound.sum(axis=1)
        allowed = goal + tolerance * value
        wanting = bound > allowed
        if not wanting.any() or (cells.count >= MOST_CELLS and len(block.ranks) == 1):
            return value, bound
        if cells.count >= MOST_CELLS:
            # Every stretch needs cells at places of its own: two meshes are then smaller than one.
            middle = len(block.ranks) // 2
            parts = [
                _within(own, replace(block, ranks=block.ranks[some]), cost, span.some(some), goal[some], tolerance)
                for some in (slice(None, middle), slice(middle, None))
            ]
            return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
        share = allowed[wanting, None] / (2 * cells.count)
        cells = cells.halved(own, block, cost, span, (cells.bound[wanting] > share).any(axis=0))


def _integrate(
    own: Answers, block: Block, reports: FloatArray, start: FloatArray, cost: VirtualCost, tolerance: float
) -> tuple[FloatArray, FloatArray]:
    ranks = block.ranks
    dropped = _exclusion(own, block, start, cost, tolerance)
    end, end_value, end_eps, first_eps = dropped.v, dropped.objective, dropped.epsilon, dropped.first.epsilon
    never = bool(np.isinf(end_value).any())
    far = np.full(len(ranks), cost.far_report())
    if never:
        # Nobody here is ever dropped and v has no top: integrate as far as doubles go, then bound the tail.
        stop, end = far, cost(far)
        at_end = own.curve(block, ranks, end)
        end_value, end_eps = at_end.objective, at_end.epsilon
    else:
        # Whoever is kept at the end itself is paid for every report that shares its v.
        beyond = np.where(dropped.kept, np.nextafter(end, np.inf), end)
        stop = np.maximum(cost.report_at(beyond, reports, far), reports)
        block = own.narrowed(block, start, end)
    span = Stretch(
        low=reports,
        high=stop,
        v_low=start,
        v_high=end,
        G_low=dropped.first.objective,
        G_high=end_value,
        eps_low=first_eps,
        eps_high=end_eps,
    )
    # Where a client is dropped is known to the rounding of G alone.
    if cost.pieces is not None:
        rounding = np.where(dropped.kept | dropped.certain | never, 0.0, _stop_rounding(cost.pieces, span))
        value, bound = integrate(own, block, cost.pieces, span, tolerance * reports * first_eps, tolerance)
        if never and math.isinf(cost.top):
            near = far * 0.75
            last = own.curve(block, ranks, np.maximum(cost(near), start))
            value, bound = _with_tail(
                np.stack([near, far], axis=1),
                np.stack([last.epsilon, end_eps], axis=1),
                value,
                bound,
                allowed=tolerance * (reports * first_eps + value),
            )
        elif never:
            value, bound = _up_to_the_top(cost, far, end_eps, value, bound)
        return value, bound + rounding
    width = end - start
    rounding = ROUNDING * end_value * np.divide(stop - reports, width, out=np.zeros_like(width), where=width > 0)
    rounding = np.where(dropped.kept | dropped.certain, 0.0, rounding)
    if never:
        # The integral goes on to the end, so it does not depend on where anybody is dropped.
        rounding = np.where(rounding > tolerance * reports * first_eps, 0.0, rounding)
    edges = np.linspace(0, 1, FIRST_CELLS + 1)
    cells = Cells.over(own, block, cost, span, edges[:-1], np.diff(edges))
    while True:
        value, bound = cells.value.sum(axis=1), cells.bound.sum(axis=1) + rounding
        goal = tolerance * (reports * first_eps + value) + rounding
        wanting = bound > goal
        if not wanting.any() or (cells.count >= MOST_CELLS and len(ranks) == 1):
            break
        if cells.count >= MOST_CELLS:
            # Where v jumps, every client needs cells at places of its own: two meshes are then smaller than one.
            middle = len(ranks) // 2
            parts = [
                _integrate(own, replace(block, ranks=ranks[some]), reports[some], start[some], cost, tolerance)
                for some in (slice(None, middle), slice(middle, None))
            ]
            return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
        share = goal[wanting, None] / (2 * cells.count)
        too_wide = (cells.bound[wanting] > share).any(axis=0)
        if not too_wide.any():  # the goal is mostly rounding, which no halving mends
            share = (goal - rounding)[wanting, None] / (2 * cells.count)
            too_wide = (cells.bound[wanting] > share).any(axis=0)
        cells = cells.halved(own, block, cost, span, too_wide)
    if never and math.isinf(cost.top):
        allowed = tolerance * (reports * first_eps + value)
        outmost = cells.some(int(cells.lefts.argmax()))
        return _with_tail(outmost.end_reports, outmost.end_epsilons, value, bound, allowed=allowed)
    return _up_to_the_top(cost, far, end_eps, value, bound) if never else (value, bound)


@dataclass(frozen=True, kw_only=True)
class _Exclusion:
    """Where clients are dropped: v and G there, the last ε that they are paid for, and how all began."""

    first: Curves  # at their reports
    v: FloatArray
    objective: FloatArray
    epsilon: FloatArray
    kept: BoolArray  # at v itself: it is the top, or a flat on which the tie order favours the client
    certain: BoolArray  # another client takes its rank there: v is exact, whatever the rounding of G


def _exclusion(own: Answers, block: Block, start: FloatArray, cost: VirtualCost, tolerance: float) -> _Exclusion:
    """Newton's method on G. G is concave, so a tangent meets the final value before G does: no step overshoots.

    Where the rounding of G hides the place, as under a low cap on ε, it is searched for by looking at ε alone.
    """
    ranks, top = block.ranks, cost.at_top
    at_top = own.curve(block, ranks, np.full(len(ranks), top))
    final = at_top.objective
    kept: BoolArray = np.isfinite(final) & (at_top.epsilon > 0)
    first = own.curve(block, ranks, start)
    v, eps = np.where(kept, top, start), np.where(kept, at_top.epsilon, first.epsilon)
    sought: BoolArray = np.isfinite(final) & ~kept
    moving = sought.copy()
    for _ in range(100):
        if not moving.any():
            break
        at = own.curve(block, ranks[moving], v[moving])
        gap = final[moving] - at.objective
        going = (at.epsilon > 0) & (gap > 4e-16 * final[moving])
        eps[moving] = np.where(at.epsilon > 0, at.epsilon, eps[moving])
        with np.errstate(divide="ignore", invalid="ignore"):
            step = np.where(going, np.minimum(v[moving] + gap / at.epsilon, top), v[moving])
        going &= step > v[moving] * (1 + 1e-15)
        v[moving] = step
        moving[np.flatnonzero(moving)[~going]] = False
    hidden = sought & (ROUNDING * np.where(sought, final, 0.0) > tolerance * v * eps)
    # On a flat clients tie, and one can be had for another at the same price: G stops rising there even where the tie
    # order still keeps the client.
    levels = np.empty(0) if cost.pieces is None else cost.pieces.levels
    if len(levels):
        above = np.minimum(np.searchsorted(levels, v), len(levels) - 1)
        for level in (levels[np.maximum(above - 1, 0)], levels[above]):
            with np.errstate(divide="ignore", invalid="ignore"):
                near = np.abs(v - level) <= 1e-12 * level + 4 * ROUNDING * np.where(sought, final, 0.0) / eps
            on = np.flatnonzero(sought & near & (level >= start) & ~hidden)
            if len(on) == 0:
                continue
            at = own.curve(block, ranks[on], level[on])
            kept[on] = at.epsilon > 0
            v[on], eps[on] = level[on], np.where(kept[on], at.epsilon, eps[on])
    certain: BoolArray = np.zeros(len(ranks), dtype=bool)
    if hidden.any():
        some = ranks[hidden]
        last = own.last_kept(block, some, start[hidden], np.full(len(some), top))
        at, after = own.curve(block, some, last), own.curve(block, some, np.nextafter(last, np.inf))
        tied = np.isin(last, levels)
        kept[hidden], certain[hidden] = tied, at.profile == after.profile
        v[hidden], eps[hidden] = np.where(tied, last, np.nextafter(last, np.inf)), at.epsilon
    return _Exclusion(first=first, v=v, objective=final, epsilon=eps, kept=kept, certain=certain)


def _stop_rounding(pieces: Pieces, span: Stretch) -> FloatArray:
    """Where a client is dropped is known to the rounding of G alone: what the last reports may bring more or less."""
    last = pieces.at(np.nextafter(span.high, -np.inf))
    around = np.stack([np.maximum(last - 1, 0), last, np.minimum(last + 1, len(pieces) - 1)])
    sloping = np.isfinite(pieces.slopes)
    slope = np.where(sloping, pieces.slopes, 0.0)[around].max(axis=0)
    widths = np.diff(pieces.edges)
    return np.asarray(np.minimum(ROUNDING * span.G_high * slope, span.eps_high * widths[around].max(axis=0)))


def _up_to_the_top(
    cost: VirtualCost, far: FloatArray, eps: FloatArray, value: FloatArray, bound: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """The integral with what lies between the last report of finite v and the top: ε falls, to no less than 0."""
    half = eps * np.maximum(cost.top - far, 0.0) / 2
    return value + half, bound + half


def _with_tail(
    z: FloatArray, eps: FloatArray, value: FloatArray, bound: FloatArray, *, allowed: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """The integral with what lies beyond the last two reports z, from the power law that ε follows there."""
    with np.errstate(divide="ignore", invalid="ignore"):
        power = -np.log(eps[:, 1] / eps[:, 0]) / np.log(z[:, 1] / z[:, 0])
        tail = np.where(power > 1, eps[:, 1] * z[:, 1] / (power - 1), np.inf)
    tail = np.where(eps[:, 1] == 0, 0.0, tail)
    if not np.all(tail <= np.maximum(allowed, 1e-300)):
        if power.min() > LIGHT:
            raise NotSupportedError(
                "the prior tells too little of its tail: some client can never be dropped here, and of what it is owed"
                f" {float((tail / (value + tail)).max()):.1g} lies beyond reports of {float(z[:, 1].min()):.3g}, where"
                " the prior's distribution function is 1; use bounded support, or a mechanism that can drop any client"
                " (jsam, its caps allowing)"
            )
        raise DivergentPaymentError(
            "the prior's tail makes payments diverge: some client can never be dropped here, and its ε falls only like"
            f" report^-{float(power.min()):.3g} (clearly faster than report^-1 is needed); use a prior with a lighter"
            " tail or bounded support, or a mechanism that can drop any client (jsam, its caps allowing)"
        )
    return value + tail, bound + tail
