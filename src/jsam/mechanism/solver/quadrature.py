"""∫ ε dz over cells that a block of clients shares, with a bound on the error of each.

Where one profile is optimal throughout a cell, ε is smooth and a nested pair of Clenshaw–Curtis rules integrates it.
Where the optimum changes profile ε jumps. There the envelope identity serves: ∫ ε dz = ∫ ε z′ dv ≈ ΔG · Δz/Δv on a
panel, off by the covariance of ε and z′ = dz/dv over it, at most a quarter of the product of their ranges (Grüss),
wherever the jump is. The range of z′ is read off the panel and its neighbours. Where v itself jumps or is flat,
monotonicity alone gives a bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jsam.mechanism._arrays import BoolArray, Columns, FloatArray
from jsam.mechanism.pricing.virtual_cost import VirtualCost
from jsam.mechanism.solver.response import Block, OwnReport

ROUNDING = 16 * np.finfo(np.float64).eps
PANELS = 8
NODES = (1 - np.cos(np.pi * np.arange(PANELS + 1) / PANELS)) / 2


def _clenshaw_curtis(n: int) -> FloatArray:
    """Weights on [0, 1] of the rule with n + 1 Chebyshev points (n even)."""
    j = np.arange(n + 1)
    k = np.arange(1, n // 2 + 1)
    factors = np.where(k == n // 2, 1.0, 2.0) / (4 * k**2 - 1)
    weights = (1 - (factors * np.cos(2 * np.pi * np.outer(j, k) / n)).sum(axis=1)) / n
    weights[[0, -1]] /= 2
    return np.asarray(weights)


FINE = _clenshaw_curtis(PANELS)
COARSE = np.zeros(PANELS + 1)
COARSE[::2] = _clenshaw_curtis(PANELS // 2)


@dataclass(frozen=True, kw_only=True)
class Stretch(Columns):
    """From each client's report to the last one it is paid for, with v, G and ε there (limits from inside)."""

    low: FloatArray
    high: FloatArray
    v_low: FloatArray
    v_high: FloatArray
    G_low: FloatArray
    G_high: FloatArray
    eps_low: FloatArray
    eps_high: FloatArray

    def reports(self, t: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Reports at the fractions t of the way, and dz/dt there; on the logarithm where the way is long."""
        low, high = self.low[:, None], self.high[:, None]
        if np.any(high > 30 * low):
            rate = np.log(high / low)
            z = np.minimum(low * np.exp(rate * t), high)
            return z, z * rate
        return np.minimum(low + (high - low) * t, high), np.broadcast_to(high - low, (len(low), len(t)))


@dataclass(frozen=True, kw_only=True)
class Cells(Columns):
    """Cells [lefts, lefts + widths] in t, with each client's integral and error bound on them."""

    lefts: FloatArray
    widths: FloatArray
    value: FloatArray  # clients × cells
    bound: FloatArray
    end_reports: FloatArray  # clients × 2 × cells: the last two nodes of each
    end_epsilons: FloatArray

    @property
    def count(self) -> int:
        return len(self.lefts)

    def halved(self, own: OwnReport, block: Block, cost: VirtualCost, span: Stretch, which: BoolArray) -> Cells:
        """The same with some cells cut in two."""
        half = self.widths[which] / 2
        lefts = np.concatenate([self.lefts[which], self.lefts[which] + half])
        return self.some(~which).joined(Cells.over(own, block, cost, span, lefts, np.concatenate([half, half])))

    @classmethod
    def over(
        cls, own: OwnReport, block: Block, cost: VirtualCost, span: Stretch, lefts: FloatArray, widths: FloatArray
    ) -> Cells:
        """Evaluate the cells."""
        t = (lefts[:, None] + widths[:, None] * NODES).ravel()
        z, speed = span.reports(t)
        v = np.clip(cost(z), span.v_low[:, None], span.v_high[:, None])
        at = own.curve(block, np.repeat(block.ranks, len(t)), v.ravel())

        def by_cell(x: FloatArray) -> FloatArray:
            return np.asarray(x.reshape(len(block.ranks), len(lefts), PANELS + 1))

        z, v, speed, G, eps, phase = map(by_cell, (z, v, speed, at.objective, at.epsilon, at.phase))
        end = v >= span.v_high[:, None, None]
        G = np.where(end, span.G_high[:, None, None], G)
        eps = np.where(end, span.eps_high[:, None, None], eps)
        # The end itself may belong to the next phase: its ε is the limit from below.
        phase = np.where(end, np.roll(phase, 1, axis=2), phase)
        by_envelope, bound = _by_envelope(z, v, G, eps)
        smooth = (phase[..., 1:] == phase[..., :-1]).all(axis=2) & ~_has_kink(cost, z)
        rate = eps * speed * widths[:, None]
        fine, coarse = rate @ FINE, rate @ COARSE
        value = np.where(smooth, np.clip(fine, by_envelope - bound, by_envelope + bound), by_envelope)
        bound = np.where(smooth, np.minimum(np.abs(fine - coarse), bound), bound)
        return cls(
            lefts=lefts,
            widths=widths,
            value=value,
            bound=bound,
            end_reports=np.moveaxis(z[..., -2:], 1, 2),
            end_epsilons=np.moveaxis(eps[..., -2:], 1, 2),
        )


def _has_kink(cost: VirtualCost, z: FloatArray) -> BoolArray:
    """Cells inside which v has a kink."""
    inside = np.zeros(z.shape[:2], dtype=bool)
    for kink in cost.kinks:
        inside |= (z[..., 0] < kink) & (kink < z[..., -1])
    return inside


def _by_envelope(z: FloatArray, v: FloatArray, G: FloatArray, eps: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Σ ΔG · Δz/Δv over a cell's panels, and a bound on its error."""
    dz, dv, dG = (np.diff(x, axis=2) for x in (z, v, G))
    high, low = eps[..., :-1] * dz, np.minimum(eps[..., 1:], eps[..., :-1]) * dz
    monotone = high - low
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = np.where(dv > 1e-13 * v[..., 1:], dz / dv, np.inf)
        around = np.stack([np.roll(slope, 1, axis=2), slope, np.roll(slope, -1, axis=2)])
        around[0, ..., 0], around[2, ..., -1] = slope[..., 0], slope[..., -1]
        spread = around.max(axis=0) - around.min(axis=0)
        covariance = 0.5 * np.maximum(eps[..., :-1] - eps[..., 1:], 0.0) * spread * dv
        covariance += 4 * np.finfo(np.float64).eps * G[..., 1:] * slope  # the rounding of ΔG
        estimate = slope * dG
    estimate = np.clip(np.where(np.isfinite(estimate), estimate, (high + low) / 2), low, high)
    bound = np.where(np.isfinite(covariance), np.minimum(covariance, monotone), monotone)
    return estimate.sum(axis=2), bound.sum(axis=2)
