"""∫ ε dz where the virtual cost is made of straight pieces, with a bound on the error that is proved.

Along one piece the envelope identity is exact: ∫ ε dz = ΔG · Δz/Δv, jumps of ε included. Many pieces are taken as one
cell where that will do: its graph of z over v strays from the chord by W, and by parts ∫ ε dz − ΔG · Δz/Δv = −∫ W dε,
which lies between (ε_a − ε_b) min W and (ε_a − ε_b) max W, since ε falls. It also lies between ε_b Δz and ε_a Δz. Cells
are cut until this is narrow enough (docs/theory.md, "Payments").
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jsam.mechanism._arrays import BoolArray, Columns, FloatArray, IntArray
from jsam.mechanism.pricing.pieces import Pieces
from jsam.mechanism.solver.quadrature import COARSE, FINE, NODES, ROUNDING, Stretch
from jsam.mechanism.solver.response import Block, OwnReport

FIRST_CELLS = 8
HALVINGS = 30  # of single pieces, where rounding leaves no other way


@dataclass(frozen=True, kw_only=True)
class _Cells(Columns):
    """Runs of pieces from `first` up to `stop`, with G and ε at both ends for each client (clients × cells)."""

    first: IntArray
    stop: IntArray
    G_start: FloatArray
    G_end: FloatArray
    eps_start: FloatArray
    eps_end: FloatArray


@dataclass(frozen=True, kw_only=True)
class _Rents:
    """Whose rents are looked for: of a block of clients, from report to exclusion, over these pieces of v."""

    own: OwnReport
    block: Block
    pieces: Pieces
    span: Stretch


def integrate(
    own: OwnReport,
    block: Block,
    pieces: Pieces,
    span: Stretch,
    goal: FloatArray,
    tolerance: float,
    *,
    halvings: int = HALVINGS,
) -> tuple[FloatArray, FloatArray]:
    """∫ ε dz for each client of a block and a bound on the error, at most `goal` + `tolerance` of the value if it can
    be had."""
    rents = _Rents(own=own, block=block, pieces=pieces, span=span)
    begin = int(pieces.at(span.low).min())
    end = int(pieces.at(np.nextafter(span.high, -np.inf)).max()) + 1
    marks = np.unique(np.linspace(begin, max(end, begin + 1), FIRST_CELLS + 1).astype(np.int64))
    cells = _evaluated(rents, marks[:-1], marks[1:])
    while True:
        value, bound = _bracketed(pieces, span, cells)
        total, error = value.sum(axis=1), bound.sum(axis=1)
        allowed = goal + tolerance * total
        wanting = error > allowed
        share = allowed[wanting, None] / (2 * len(cells.first))
        cut = (bound[wanting] > share).any(axis=0) & (cells.stop - cells.first > 1)
        if not cut.any():
            break
        old = cells.some(cut)
        middle = (old.first + old.stop) // 2
        left = _evaluated(rents, old.first, middle, start=old)
        right = _evaluated(rents, middle, old.stop, end=old)
        cells = cells.some(~cut).joined(left).joined(right)
        cells = cells.some(np.argsort(cells.first))
    if not wanting.any():
        return total, error
    # Single pieces that will not do: where the loss is most of the objective, ΔG has lost its digits.
    bad = (bound > allowed[:, None] / (2 * len(cells.first))) & wanting[:, None]
    value, bound = _by_nodes(rents, cells, bad, value, bound)
    total, error = value.sum(axis=1), bound.sum(axis=1)
    allowed = goal + tolerance * total
    wanting = error > allowed
    if wanting.any() and halvings > 0:
        share = allowed[wanting, None] / (2 * len(cells.first))
        finer = pieces.halved(cells.first[(bound[wanting] > share).any(axis=0)])
        rest = Block(ranks=block.ranks[wanting], which=block.which)
        total[wanting], error[wanting] = integrate(
            own, rest, finer, span.some(wanting), goal[wanting], tolerance, halvings=halvings - 1
        )
    return total, error


def _by_nodes(
    rents: _Rents, cells: _Cells, bad: BoolArray, value: FloatArray, bound: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Single pieces by nested rules, where one profile is best at all of their nodes: ε is smooth there."""
    pieces, span, ranks = rents.pieces, rents.span, rents.block.ranks
    row, column = np.nonzero(bad & (cells.stop - cells.first == 1))
    if len(row) == 0:
        return value, bound
    low, high = span.low[row], span.high[row]
    z_a, z_b = (np.clip(pieces.edges[x[column]], low, high) for x in (cells.first, cells.stop))
    v_a, v_b = (
        np.clip(v, span.v_low[row], span.v_high[row])
        for v in (pieces.starts[cells.first[column]], pieces.ends[cells.stop[column] - 1])
    )
    v = v_a[:, None] + (v_b - v_a)[:, None] * NODES
    v[:, -1] = np.nextafter(v_b, v_a)  # the end itself may belong to the next profile
    nodes = rents.own.curve(rents.block, np.repeat(ranks[row], len(NODES)), v.ravel())
    eps, phase = nodes.epsilon.reshape(v.shape), nodes.phase.reshape(v.shape)
    fine, coarse = (z_b - z_a) * (eps @ FINE), (z_b - z_a) * (eps @ COARSE)
    better = (phase[:, 1:] == phase[:, :-1]).all(axis=1) & (np.abs(fine - coarse) < bound[row, column])
    value, bound = value.copy(), bound.copy()
    at = row[better], column[better]
    value[at] = np.clip(fine[better], value[at] - bound[at], value[at] + bound[at])
    bound[at] = np.abs(fine - coarse)[better] + ROUNDING * value[at]
    return value, bound


def _evaluated(
    rents: _Rents, first: IntArray, stop: IntArray, *, start: _Cells | None = None, end: _Cells | None = None
) -> _Cells:
    """Cells with G and ε at their ends; `start` or `end` are cells that know them there already."""
    pieces, span, ranks = rents.pieces, rents.span, rents.block.ranks
    inside = (pieces.edges[stop] > span.low[:, None]) & (pieces.edges[first] < span.high[:, None])

    def at(v: FloatArray) -> tuple[FloatArray, FloatArray]:
        v = np.broadcast_to(v, inside.shape)
        early, late = v <= span.v_low[:, None], v >= span.v_high[:, None]
        G = np.where(late, span.G_high[:, None], span.G_low[:, None])
        eps = np.where(late, span.eps_high[:, None], span.eps_low[:, None])
        row, column = np.nonzero(inside & ~early & ~late)
        if len(row):
            ends = rents.own.curve(rents.block, ranks[row], v[row, column])
            G[row, column], eps[row, column] = ends.objective, ends.epsilon
        return G, eps

    G_start, eps_start = at(pieces.starts[first]) if start is None else (start.G_start, start.eps_start)
    G_end, eps_end = at(pieces.ends[stop - 1]) if end is None else (end.G_end, end.eps_end)
    return _Cells(first=first, stop=stop, G_start=G_start, G_end=G_end, eps_start=eps_start, eps_end=eps_end)


def _bracketed(pieces: Pieces, span: Stretch, cells: _Cells) -> tuple[FloatArray, FloatArray]:
    """Each client's integral over each cell and a bound on its error."""
    low, high = span.low[:, None], span.high[:, None]
    z_a, z_b = np.clip(pieces.edges[cells.first], low, high), np.clip(pieces.edges[cells.stop], low, high)
    v_start, v_end = pieces.starts[cells.first], pieces.ends[cells.stop - 1]
    v_a, v_b = (np.clip(v, span.v_low[:, None], span.v_high[:, None]) for v in (v_start, v_end))
    eps_a, eps_b = cells.eps_start, np.minimum(cells.eps_end, cells.eps_start)
    dz, dv, fall = z_b - z_a, v_b - v_a, eps_a - eps_b
    least, most = eps_b * dz, eps_a * dz
    bend_low, bend_high = pieces.bends(np.append(cells.first, cells.stop[-1]))
    # Where a client's stretch begins or ends inside a cell the chord is another, and W strays by their difference.
    either = bend_high - bend_low
    part = (v_a > v_start) | (v_b < v_end)
    W_low, W_high = np.where(part, -either, bend_low), np.where(part, either, bend_high)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        slope = dz / dv
        chord = np.maximum(cells.G_end - cells.G_start, 0.0) * slope
        rounding = ROUNDING / 4 * cells.G_end * slope
        from_below = chord + fall * W_low - rounding
        from_above = chord + fall * W_high + rounding
    known = np.isfinite(from_below) & np.isfinite(from_above)
    least = np.where(known, np.clip(from_below, least, most), least)
    most = np.where(known, np.clip(from_above, least, most), most)
    empty = dz <= 0
    return np.where(empty, 0.0, (least + most) / 2), np.where(empty, 0.0, (most - least) / 2)
