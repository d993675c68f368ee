"""Bias, ReLU or tanh, and max-pooling after a convolution in one pass over memory, forward and backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from jsam.training.clipping.gpu.kernels import activate_backward_kernel, activate_kernel

_BLOCK = 1024


def activate(y: Tensor, bias: Tensor | None, *, tanh: bool, kernel: int = 1, stride: int = 1) -> Tensor:
    """max_pool2d(activation(y + bias)); no gradient reaches the bias, whose rule takes it from y's."""
    result: Tensor = _Activate.apply(  # type: ignore[no-untyped-call]
        y, None if bias is None else bias.detach(), tanh, kernel, stride
    )
    return result


def is_channels_last(y: Tensor) -> bool:
    return y.stride(1) == 1 and y.shape[2] * y.shape[3] > 1


class _Activate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, bias: Tensor | None, tanh: bool, kernel: int, stride: int) -> Tensor:
        channels_last = is_channels_last(y)
        layout = torch.channels_last if channels_last else torch.contiguous_format
        y = y.contiguous(memory_format=layout)
        n, c, height, width = y.shape
        oh, ow = (height - kernel) // stride + 1, (width - kernel) // stride + 1
        out = torch.empty((n, c, oh, ow), device=y.device, dtype=y.dtype, memory_format=layout)
        index = torch.empty(out.numel() if kernel > 1 else 0, device=y.device, dtype=torch.uint8)
        ctx.geometry = {"C": c, "H": height, "W": width, "OH": oh, "OW": ow, "KERNEL": kernel, "STRIDE": stride}
        ctx.geometry |= {"TANH": tanh, "CHANNELS_LAST": channels_last, "BLOCK": _BLOCK}
        ctx.layout = layout
        total = out.numel()
        activate_kernel[(-(-total // _BLOCK),)](
            y, y if bias is None else bias, out, index, total, BIAS=bias is not None, **ctx.geometry
        )
        ctx.save_for_backward(out, index)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        out, index = ctx.saved_tensors
        grad = grads[0].contiguous(memory_format=ctx.layout)
        shape = (out.shape[0], out.shape[1], ctx.geometry["H"], ctx.geometry["W"])
        result = torch.empty(shape, device=out.device, dtype=out.dtype, memory_format=ctx.layout)
        total = result.numel()
        activate_backward_kernel[(-(-total // _BLOCK),)](grad, out, index, result, total, **ctx.geometry)
        return result, None, None, None, None
