"""Weighted sums of rows and of outer products on a card: fp64, in one order, from numbers read where they lie."""

from __future__ import annotations

import torch
from torch import Tensor

from jsam.training.clipping.gpu.card_sum_kernels import outer_norms_kernel, outer_sum_kernel, weighted_sum_kernel
from jsam.training.clipping.gpu.tiles import outer_share_for, share_for


def weighted_sum(rows: Tensor, factors: Tensor) -> Tensor:
    """Σ_i factors_i rows_i in fp64; rows with factor 0 are not looked at, whatever stands in them."""
    n, size = rows.shape
    share = share_for(n, size)
    parts = factors.new_empty((-(-n // share.rows), size), dtype=torch.float64)
    weighted_sum_kernel[(-(-size // share.columns), parts.shape[0])](
        *(rows, factors.double().contiguous(), parts, n, size, share.rows),
        WEIGHTED=True,
        ROWS=share.step,
        COLUMNS=share.columns,
        STAGES=share.stages,
        num_warps=share.warps,
    )
    return _added_up(parts)


def outer_sum(gradients: Tensor, inputs: Tensor, factors: Tensor, *, bias: bool) -> Tensor:
    """Σ_i factors_i gradients_i inputs_iᵀ in fp64, flat, and after it Σ_i factors_i gradients_i if `bias`.

    Takes at most `most_outer_rows`. Factors are fp64; rows with factor 0 are not looked at.
    """
    (n, outputs), size = gradients.shape, inputs.shape[1]
    block, share = outer_share_for(n, outputs, size)
    parts = factors.new_empty((-(-n // share.rows), outputs * (size + bias)))
    outer_sum_kernel[(-(-size // share.columns), -(-outputs // block), parts.shape[0])](
        *(gradients.contiguous(), inputs.contiguous(), factors, parts, n, outputs, size, parts.shape[1], share.rows),
        BIAS=bias,
        ROWS=share.step,
        BLOCK_O=block,
        BLOCK_C=share.columns,
        num_warps=share.warps,
        num_stages=share.stages,
    )
    return _added_up(parts)


def outer_norms(norms: Tensor, gradients: Tensor, inputs: Tensor | None, *, bias: bool) -> None:
    """Writes the norms of gradients_i inputs_iᵀ, if there are inputs, with gradients_i beside it if `bias`."""
    n, outputs = gradients.shape
    outer_norms_kernel[(-(-n // 8),)](
        *(gradients.contiguous(), gradients if inputs is None else inputs.contiguous(), norms, n, outputs),
        0 if inputs is None else inputs.shape[1],
        WEIGHT=inputs is not None,
        BIAS=bias,
        ROWS=8,
        BLOCK=128,
    )


def _added_up(parts: Tensor) -> Tensor:
    """The sum of the rows, which are few: torch's own sum over them takes as long as what made them."""
    count, size = parts.shape
    if count == 1:
        return parts[0]
    total = parts.new_empty(size)
    weighted_sum_kernel[(-(-size // 64), 1)](
        parts, parts, total, count, size, count, WEIGHTED=False, ROWS=32, COLUMNS=64, STAGES=1, num_warps=4
    )
    return total
