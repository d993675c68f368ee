"""What a clipped sum returns, and the one place where a clipping factor is computed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Sums of squares up to this length are fp32, longer ones fp64.
LONGEST_FP32_SUM = 512

# How far below C factors aim, so that no gradient passes C, not even one made to lose as much as fp32 sums can. Squares
# are not negative: every rounding on a square's way into the sum takes at most u = 2⁻²⁴ of it, and the norm loses half
# of what the sum loses. On that way are at most so many roundings:
# - in a part, one that squares; then the terms are shared by torch's vectors of 8 floats on a CPU (64 additions in a
#   lane, 8 among lanes) or by the 32 threads of a warp on a GPU. A Linear layer multiplies two such norms;
# - or in a tile of the gradient kernel, one that squares, 128 additions in a thread, 7 among threads;
# - a few roots and products, not halved. Parts are joined in fp64.
SUM_CHAIN = 1 + LONGEST_FP32_SUM // 8 + 8
TILE_CHAIN = 1 + 128 + 7
_ROOTS = 16
SAFETY_MARGIN = 2.0**-24 * (max(2 * SUM_CHAIN, TILE_CHAIN) / 2 + _ROOTS)


@dataclass(frozen=True, kw_only=True)
class ClippedSum:
    """Weighted sum of per-example gradients, each clipped to `clip_norm` over all parameters together.

    `gradient` is flat, in the order of the model's trainable parameters; `norms` (before clipping) and `losses`
    are per example, in input order.
    """

    gradient: Tensor
    norms: Tensor
    losses: Tensor
    clip_norm: float

    @property
    def share_clipped(self) -> float:
        return float((self.norms > self.clip_norm).float().mean())

    @property
    def mean_norm(self) -> float:
        return float(self.norms.mean())

    @property
    def mean_loss(self) -> float:
        return float(self.losses.mean())


def clip_factors(norms: Tensor, clip_norm: float, *, out: Tensor | None = None) -> Tensor:
    """min(1, C / norm) for each example, `SAFETY_MARGIN` below; 1 where the norm is 0."""
    return torch.reciprocal(norms, out=out).mul_(clip_norm * (1.0 - SAFETY_MARGIN)).clamp_(max=1.0)
