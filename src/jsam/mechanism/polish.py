"""Between two corners of the capped curve: where an inner point can beat both, find it in one dimension.

Under a cap on p the optimum lies on the curve of `profiles.moved_mass`. Inside a piece of it an optimum is possible
only where Σ_others (v_i p_i)^(2/3) < 1.5 (v_t/N)^(2/3), t being the client that is drained there (docs/theory.md,
"What caps change"). Those pieces are few: each is searched by zooming in on the best of its points.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jsam.mechanism._arrays import FloatArray, IntArray
from jsam.mechanism.inner import Ranked, Weights, best_cost
from jsam.mechanism.profiles import Profiles, corner_masses, moved_mass, two_thirds

POINTS = 17
ZOOMS = 14  # each narrows a piece eightfold: (1/8)^14 is below a double's resolution


@dataclass(frozen=True)
class Curve:
    """The curve of a market of N clients under a cap on p."""

    num_clients: int
    max_selection_prob: float


@dataclass(frozen=True, kw_only=True)
class Polished:
    """Rows where an inner point won, with that point."""

    rows: IntArray
    objective: FloatArray
    cost: FloatArray
    scale: FloatArray
    profiles: Profiles


@dataclass(frozen=True, kw_only=True)
class _Pieces:
    """S(E) on each piece: fixed + w_r (1/N + E − E_f)^(2/3) + w_t (1/N − E + E_d)^(2/3). Only two clients move."""

    fixed: FloatArray
    receiver: FloatArray
    drained: FloatArray
    up: FloatArray
    down: FloatArray

    @classmethod
    def of(cls, curve: Curve, ranked: Ranked, middles: FloatArray) -> _Pieces:
        N, cap = curve.num_clients, curve.max_selection_prob
        ends = moved_mass(N, cap, middles).ends
        filled, after_receiver, kept = ends[None, :, 0], ends[None, :, 1], ends[None, :, 3]
        between = ranked.weight_sum(kept - 1) - ranked.weight_sum(after_receiver)
        at_cap = two_thirds(np.array(cap)) * ranked.weight_sum(filled)
        return cls(
            fixed=at_cap + two_thirds(np.array(1 / N)) * np.maximum(between, 0.0),
            receiver=two_thirds(ranked.cost_at(np.minimum(filled, N - 1))),
            drained=two_thirds(ranked.cost_at(kept - 1)),
            up=np.asarray(1 / N - filled * (cap - 1 / N), dtype=np.float64),
            down=np.asarray(1 / N + (N - kept) / N, dtype=np.float64),
        )

    def take(self, row: IntArray, piece: IntArray) -> _Pieces:
        def column(x: FloatArray) -> FloatArray:
            return np.asarray(x[row if x.shape[0] > 1 else np.zeros_like(row), piece, None])

        return _Pieces(
            fixed=column(self.fixed),
            receiver=column(self.receiver),
            drained=column(self.drained),
            up=column(self.up),
            down=column(self.down),
        )

    def drained_part(self, E: FloatArray) -> FloatArray:
        left = np.maximum(self.down - E, 0.0)
        with np.errstate(invalid="ignore"):  # a client of infinite cost that is drained to nothing costs nothing
            return np.where(left > 0, self.drained * two_thirds(left), 0.0)

    def others(self, E: FloatArray) -> FloatArray:
        return np.asarray(self.fixed + self.receiver * two_thirds(self.up + E))


def possible_pieces(curve: Curve, low: Ranked, high: Ranked | None = None) -> IntArray:
    """Pieces that may hold an inner optimum for a row whose sorted costs lie between those of `low` and `high`."""
    masses = corner_masses(curve.num_clients, curve.max_selection_prob)
    if len(masses) < 2:
        return np.zeros(0, dtype=np.int64)
    middles = (masses[1:] + masses[:-1]) / 2
    lower = _Pieces.of(curve, low, middles)
    upper = lower if high is None else _Pieces.of(curve, high, middles)
    # `others` rises with E on a piece (the receiver gains), so its left end is the smallest.
    few = lower.others(masses[:-1]) < 1.5 * upper.drained * two_thirds(np.array(1 / curve.num_clients)) * (1 + 1e-9)
    return np.flatnonzero(few.any(axis=0))


def polished(
    curve: Curve, ranked: Ranked, weights: Weights, best: FloatArray, pieces: IntArray | None = None
) -> Polished | None:
    """The rows on which some inner point of a piece beats `best`, the corners' minimum; None if there are none."""
    pieces = possible_pieces(curve, ranked) if pieces is None else pieces
    if len(pieces) == 0:
        return None
    masses = corner_masses(curve.num_clients, curve.max_selection_prob)
    left, right = masses[:-1][pieces], masses[1:][pieces]
    all_parts = _Pieces.of(curve, ranked, (left + right) / 2)

    def value_at(parts: _Pieces, E: FloatArray, d_at: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        S = parts.others(E) + parts.drained_part(E)
        d = np.broadcast_to(2 * weights.bias_weight * d_at, S.shape)
        value, B = best_cost(d, d * d, np.sqrt(weights.noise_weight) * S * np.sqrt(S), weights.loss_weight)
        return value, B, S

    with np.errstate(invalid="ignore"):
        # S is concave in E and d rises with it: no point of a piece is better than its left d with its lower end's S.
        lower = np.minimum(value_at(all_parts, left, left)[0], value_at(all_parts, right, left)[0])
        row, k = np.nonzero(lower < best[:, None])
    if len(row) == 0:
        return None
    parts = all_parts.take(row, k)
    a, b, at = left[k], right[k], np.arange(len(row))
    for _ in range(ZOOMS):
        E = a[:, None] + (b - a)[:, None] * np.linspace(0, 1, POINTS)
        value, B, S = value_at(parts, E, E)
        i = value.argmin(axis=1)
        a, b = E[at, np.maximum(i - 1, 0)], E[at, np.minimum(i + 1, POINTS - 1)]
    value, B, S, E_best = value[at, i], B[at, i], S[at, i], E[at, i]
    order = np.lexsort((value, row))
    winners = order[np.concatenate([[True], np.diff(row[order]) > 0])]
    winners = winners[value[winners] < best[row[winners]] * (1 - 4e-16)]
    if len(winners) == 0:
        return None
    return Polished(
        rows=row[winners],
        objective=value[winners],
        cost=B[winners],
        scale=B[winners] / S[winners],
        profiles=moved_mass(curve.num_clients, curve.max_selection_prob, E_best[winners]),
    )
