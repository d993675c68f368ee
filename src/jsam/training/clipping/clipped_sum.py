"""What a clipped sum returns, and the one place where a clipping factor is computed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# Sums of squares up to this length are fp32, longer ones fp64.
LONGEST_FP32_SUM = 512

# How far below C factors aim, so that no record moves the sum by more than its weight times C, whatever the gradients
# are (docs/theory.md has the proof). Two things are taken off.
#
# What a norm may come out too small. Squares are not negative: every rounding on a square's way into the sum takes at
# most u = 2⁻²⁴ of it, and the norm loses half of what the sum loses. On that way are at most so many roundings:
# - in a part, one that squares; then the terms are shared by torch's vectors of 8 floats on a CPU (64 additions in a
#   lane, 8 among lanes) or by the 32 threads of a warp on a GPU;
# - or in a tile of the gradient kernel, one that squares, 128 additions in a thread, 7 among threads;
# - a root and what stores the part, not halved. Parts are joined in fp64.
SUM_CHAIN = 1 + LONGEST_FP32_SUM // 8 + 8
TILE_CHAIN = 1 + 128 + 7
_ROOTS = 4
NORM_MARGIN = 2.0**-24 * (max(SUM_CHAIN, TILE_CHAIN) / 2 + _ROOTS)

# What the sum may be off by, with a record and without it:
# - on a CPU groups of so many records of one weight are added in fp32. Each addition takes 2⁻²⁴ of what it makes, which
#   is at most √k √G in length when it has k terms, in whatever order; two products take as much of each record;
# - elsewhere sums are fp64. A gradient passes at most so many roundings on its way into a block's sum, and a few more
#   where it is scaled and blocks are added. Each takes up to 2⁻⁵³ of the sum of all weights, which may be so many times
#   the least of them.
GROUP = 32
_GROUP_MARGIN = 2 * 2.0**-24 * (math.sqrt(GROUP) * sum(math.sqrt(k) for k in range(2, GROUP + 1)) + 2 * GROUP)
LONGEST_CHAIN = 512
_JOINTS = 64
LARGEST_RATIO = 2.0**24
_SUM_MARGIN = 2 * 2.0**-53 * (LONGEST_CHAIN + _JOINTS) * LARGEST_RATIO

SAFETY_MARGIN = NORM_MARGIN + _GROUP_MARGIN + _SUM_MARGIN

# Squares below 2⁻¹²⁶ may count as 0 in fp32. So a norm may miss this much, in gradients of up to 2³⁰ entries.
_UNSEEN = 2.0**-63 * 2.0**15


@dataclass(frozen=True, kw_only=True)
class ClippedSum:
    """Weighted sum of per-example gradients, each clipped to `clip_norm` over all parameters together.

    `gradient` is flat, in the order of the model's trainable parameters, and fp64: it may be rounded to fp32 only after
    noise has been added, for the rounding of a sum is not small beside one record's share of it. `norms` (before
    clipping) and `losses` are per example, in input order; an example whose norm is infinite counts as nothing.
    """

    gradient: Tensor
    norms: Tensor
    losses: Tensor
    clip_norm: float

    @property
    def signal(self) -> float:
        """The Euclidean norm of the sum; infinite where some example's gradient was not finite and counts as nothing.

        A run in one place, whose records nobody hides from, has then diverged and should stop.
        """
        if not bool(torch.isfinite(self.norms).all()):
            return math.inf
        return float(torch.linalg.vector_norm(self.gradient))

    @property
    def share_clipped(self) -> float:
        return float((self.norms > self.clip_norm).float().mean())


def clip_factors(norms: Tensor, clip_norm: float) -> Tensor:
    """min(1, C / norm) for each example, `SAFETY_MARGIN` below; 1 where the norm is 0. Norms and factors are fp64."""
    return norms.add(_UNSEEN).reciprocal_().mul_(clip_norm * (1.0 - SAFETY_MARGIN)).clamp_(max=1.0)
