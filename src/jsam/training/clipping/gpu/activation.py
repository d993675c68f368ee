"""Bias, ReLU or tanh, and max-pooling after a convolution in one pass over memory, forward and backward."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from jsam.training.clipping.gpu.kernels import activate_backward_kernel, activate_kernel

_BLOCK = 1024


def activate(
    y: Tensor, bias: Tensor | None, *, tanh: bool, kernel: int = 1, stride: int = 1, source: Tensor | None = None
) -> Tensor:
    """max_pool2d(activation(y + bias)); no gradient reaches the bias, whose rule takes it from y's.

    Gradients reach `source` and are of its type: y itself, unless something stands for it.
    """
    bias = None if bias is None else bias.detach()
    source = y if source is None else source
    result: Tensor = _Activate.apply(source, y.detach(), bias, tanh, kernel, stride)  # type: ignore[no-untyped-call]
    return result


def is_channels_last(y: Tensor) -> bool:
    return y.stride(1) == 1 and y.shape[2] * y.shape[3] > 1


class Geometry(NamedTuple):
    """What the way back must know of the way forward."""

    numbers: dict[str, int]
    layout: torch.memory_format


def launch_forward(
    y: Tensor, bias: Tensor | None, *, tanh: bool, kernel: int, stride: int, rounded: bool = False
) -> tuple[Tensor, Tensor, Tensor | None, Geometry]:
    """The outputs, which entry of its window each was, the outputs in bf16 if `rounded`, and the geometry."""
    channels_last = is_channels_last(y)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    y = y.contiguous(memory_format=layout)
    n, c, height, width = y.shape
    oh, ow = (height - kernel) // stride + 1, (width - kernel) // stride + 1
    out = torch.empty((n, c, oh, ow), device=y.device, dtype=y.dtype, memory_format=layout)
    copy = torch.empty_like(out, dtype=torch.bfloat16, memory_format=layout) if rounded else None
    index = torch.empty(out.numel() if kernel > 1 else 0, device=y.device, dtype=torch.uint8)
    numbers = {"C": c, "H": height, "W": width, "OH": oh, "OW": ow, "KERNEL": kernel, "STRIDE": stride}
    numbers |= {"TANH": tanh, "CHANNELS_LAST": channels_last, "BLOCK": _BLOCK}
    total = out.numel()
    activate_kernel[(-(-total // _BLOCK),)](
        y,
        y if bias is None else bias,
        out,
        index,
        out if copy is None else copy,
        total,
        BIAS=bias is not None,
        ROUNDED=rounded,
        **numbers,
    )
    return out, index, copy, Geometry(numbers, layout)


def launch_backward(grad: Tensor, out: Tensor, index: Tensor, geometry: Geometry, dtype: torch.dtype) -> Tensor:
    """The gradient at y, of this type."""
    numbers, layout = geometry
    grad = grad.contiguous(memory_format=layout)
    shape = (out.shape[0], out.shape[1], numbers["H"], numbers["W"])
    result = torch.empty(shape, device=out.device, dtype=dtype, memory_format=layout)
    total = result.numel()
    activate_backward_kernel[(-(-total // _BLOCK),)](grad, out, index, result, total, **numbers)
    return result


class _Activate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, source: Tensor, y: Tensor, bias: Tensor | None, tanh: bool, kernel: int, stride: int
    ) -> Tensor:
        out, index, _, ctx.geometry = launch_forward(y, bias, tanh=tanh, kernel=kernel, stride=stride)
        ctx.dtype = source.dtype
        ctx.save_for_backward(out, index)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        out, index = ctx.saved_tensors
        return launch_backward(grads[0], out, index, ctx.geometry, ctx.dtype), None, None, None, None, None
