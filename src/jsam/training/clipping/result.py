"""What a clipped sum returns, and the one place where a clipping factor is computed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Norms are accurate to a few fp32 ulps (6e-8 each). Aiming this far below C keeps the realised norm under
# C(1 + 1e-6) after every rounding, which is what the sensitivity of a release rests on.
SAFETY_MARGIN = 4e-7


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
    """min(1, C / norm) for each example, rounded towards zero; 1 where the norm is 0."""
    return torch.reciprocal(norms, out=out).mul_(clip_norm * (1.0 - SAFETY_MARGIN)).clamp_(max=1.0)
