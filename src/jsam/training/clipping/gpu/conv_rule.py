"""Conv2d on CUDA: one kernel writes every example's gradient and its norm, one product sums them up.

The norms are taken of the very numbers that are summed, whatever precision those were computed and stored in, and the
sum is fp64: a record's part in it is bounded at every precision. Uses that the kernel does not cover go to the plain
rule.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from jsam.training.clipping.gpu.activation import is_channels_last
from jsam.training.clipping.gpu.card_sums import outer_norms, weighted_sum
from jsam.training.clipping.gpu.kernels import sample_gradients_kernel
from jsam.training.clipping.gpu.tiles import Tile, tile_for
from jsam.training.clipping.layers.conv import ConvRule
from jsam.training.clipping.layers.layer_rule import BlockFloats, Call
from jsam.training.clipping.sums import Factors
from jsam.training.clipping.workspace import Workspace

_KEPT_BYTES = 24 << 30


class KernelConvRule(ConvRule):
    """nn.Conv2d without groups, zero padding, called once; anything else by the plain rule."""

    low_precision = True
    _call: Call | None = None
    _weights: Tensor

    def __init__(self, name: str, module: nn.Conv2d, workspace: Workspace, *, tf32: bool = False) -> None:
        super().__init__(name, module, workspace)
        self._product = "tf32" if tf32 else "tf32x3"
        shape = self.shape
        left, right, top, bottom = shape.padding
        self._covered = module.groups == 1 and shape.padding_mode == "zeros" and left == right and top == bottom
        self._covered = self._covered and self.trains("weight")
        self._columns = shape.channels * shape.kernel[0] * shape.kernel[1]

    def _covers(self, calls: Sequence[Call]) -> bool:
        n, size = calls[0].inputs.shape[0], self.rows * self._columns
        return (
            self._covered
            and len(calls) == 1
            and calls[0].inputs.dtype in (torch.float32, torch.bfloat16)
            and n * size * _kept_type(calls[0]).itemsize <= _KEPT_BYTES
        )

    def columns(self, calls: Sequence[Call]) -> int:
        if not self._covers(calls):
            return super().columns(calls)
        tile = self._tile(calls[0])
        tiles = -(-self.rows // tile.outputs) * -(-self._columns // tile.columns)
        return tiles + (1 if self.trains("bias") else 0)

    def block_floats(self, calls: Sequence[Call]) -> BlockFloats:
        return BlockFloats() if self._covers(calls) else super().block_floats(calls)

    def kept_floats(self, calls: Sequence[Call]) -> int:
        if not self._covers(calls):
            return 0
        weights = -(-self.rows * self._columns * _kept_type(calls[0]).itemsize // 4)
        return weights + (self.rows if self.trains("bias") else 0)

    def open(self, calls: Sequence[Call], parts: Tensor) -> None:
        self._calls, self._call = (), None
        if not self._covers(calls):
            super().open([Call(c.inputs.to(parts), c.grad_outputs.to(parts)) for c in calls], parts)
            return
        self._call = calls[0]
        n = parts.shape[1]
        self._weights = self.workspace.take(
            f"kept:{self.name}", (n, self.rows * self._columns), like=parts, dtype=_kept_type(calls[0])
        )
        bias = parts.new_empty((n, self.rows)) if self.trains("bias") else None
        self._launch(calls[0], bias, parts)
        if bias is not None:
            outer_norms(parts[-1], bias, None, bias=True)
        self._bias = bias

    def _launch(self, call: Call, bias: Tensor | None, parts: Tensor) -> None:
        x, g, shape = call.inputs, call.grad_outputs, self.shape
        channels_last = is_channels_last(g)
        # Dense, since positions are numbered along both axes at once; a gradient may be a slice of a larger one.
        g = g.contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
        if channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        tile = self._tile(call)
        grid = (-(-self.rows // tile.outputs), -(-self._columns // tile.columns), x.shape[0])
        sample_gradients_kernel[grid](
            x,
            g,
            self._weights,
            self._weights if bias is None else bias,
            parts,
            *x.stride(),
            g.stride(0),
            g.stride(1),
            # Of an axis of length 1 the stride may be anything.
            g.stride(3) if g.shape[3] > 1 else g.stride(2),
            x.shape[2],
            x.shape[3],
            g.shape[2] * g.shape[3],
            parts.stride(0),
            OUT=self.rows,
            IN=shape.channels,
            KH=shape.kernel[0],
            KW=shape.kernel[1],
            OW=g.shape[3],
            STRIDE_H=shape.stride[0],
            STRIDE_W=shape.stride[1],
            DILATION_H=shape.dilation[0],
            DILATION_W=shape.dilation[1],
            PAD_H=shape.padding[2],
            PAD_W=shape.padding[0],
            BIAS=bias is not None,
            POSITIONS_LAST=not channels_last and shape.channels > 1,
            PRECISION=self._product,
            BLOCK_O=tile.outputs,
            BLOCK_C=tile.columns,
            BLOCK_P=tile.positions,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )

    def _tile(self, call: Call) -> Tile:
        g = call.grad_outputs
        kind = "bf16" if g.dtype == torch.bfloat16 else self._product.replace("tf32x3", "fp32")
        return tile_for(self.rows, self.shape.channels, self._columns, g.shape[2] * g.shape[3], kind)

    def finish(self, factors: Factors) -> None:
        if self._call is None:
            super().finish(factors)
            return
        # In the plain rule's order and sum, so that chunks of both kinds add up.
        values = factors.values
        total = weighted_sum(self._weights, values).view(self.rows, *self.shape.kernel, self.shape.channels)
        pieces = self.shape.from_weight(total.permute(0, 3, 1, 2))
        if self.transposed:
            pieces = pieces.transpose(1, 2)
        self._sum("weight").join(pieces.reshape(-1))
        if self._bias is not None:
            self._sum("bias").join(weighted_sum(self._bias, values))
        self._call, self._bias = None, None
        del self._weights


def _kept_type(call: Call) -> torch.dtype:
    """bf16 where the products were: writing and reading the gradients takes as long as memory does."""
    return torch.bfloat16 if call.grad_outputs.dtype == torch.bfloat16 else torch.float32
