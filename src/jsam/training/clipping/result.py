"""What a clipped sum returns, and the one place where a clipping factor is computed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Norms are accurate to a few fp32 ulps (6e-8 each). Aiming this far below C keeps the realised norm under
# C(1 + 1e-6) after every rounding, which is what the sensitivity of a release rests on.
SAFETY_MARGIN = 4e-7

# On CUDA sums of squares are plain fp32 chains, and their worst case is known and folded in (see `safety_margin`).
_UNIT = 2.0**-24
LONGEST_CHAIN = 262
_ROOTS = 8


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


def safety_margin(device: str, parts: int) -> float:
    """How far below C factors aim, where a norm is put together from so many parts.

    On CUDA the margin covers any gradient, however made. Squares are not negative, so every rounding on a square's way
    into the sum takes at most u = 2⁻²⁴ of it, and the norm loses half of what the sum loses. On that way are

    - within a part, `LONGEST_CHAIN` roundings: one squares; the longest fp32 sums have 8192 terms, which no fewer than
      the 32 threads of a warp share, so 256 additions within a thread and 5 among them. (A tile of the gradient kernel
      has at most 128 a thread and 7 among threads.) Linear layers multiply two such norms: twice as many;
    - one squaring and at most `parts` additions where the parts are joined;
    - roots and products of norms, not halved: a few.
    """
    if device == "cpu":
        return SAFETY_MARGIN
    return SAFETY_MARGIN + _UNIT * ((2 * LONGEST_CHAIN + 1 + parts) / 2 + _ROOTS)


def clip_factors(
    norms: Tensor, clip_norm: float, *, margin: float = SAFETY_MARGIN, out: Tensor | None = None
) -> Tensor:
    """min(1, C / norm) for each example, rounded towards zero; 1 where the norm is 0."""
    return torch.reciprocal(norms, out=out).mul_(clip_norm * (1.0 - margin)).clamp_(max=1.0)
