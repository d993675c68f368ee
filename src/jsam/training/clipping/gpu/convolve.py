"""Convolutions where cuDNN is slow: few input channels at low precision, and the way back in plain fp32.

Tensor cores have no fp32, but three tf32 products of high and low parts give its results to a few units in the last
place, at several times the speed of plain fp32 arithmetic.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from jsam.training.clipping.gpu.activation import is_channels_last
from jsam.training.clipping.gpu.kernels import convolve_kernel
from jsam.training.clipping.precision import Precision

_FEW_CHANNELS = 16


def is_ours(module: nn.Conv2d, precision: Precision) -> bool:
    """Whether `convolve` is the quicker way (measured on an H200, docs/performance.md)."""
    plain = module.groups == 1 and pads_plainly(module)
    return plain and (module.stride == (1, 1) if precision == "fp32" else module.in_channels < _FEW_CHANNELS)


def pads_plainly(module: nn.Conv2d) -> bool:
    """Whether the module pads with zeros, by given numbers, alike on both sides."""
    return module.padding_mode == "zeros" and not isinstance(module.padding, str)


def positions(x: Tensor, module: nn.Conv2d) -> int:
    """The most that `convolve` numbers, forward or back: pixels of its output or of its input, over all examples."""
    oh, ow = output_map(x, module)
    return int(x.shape[0]) * max(oh * ow, int(x.shape[2]) * int(x.shape[3]))


def convolve(x: Tensor, module: nn.Conv2d, precision: Precision) -> Tensor:
    """The convolution without its bias; gradients reach the input only, the weight's rule takes its own."""
    result: Tensor = _Convolve.apply(x, module.weight, module, precision)  # type: ignore[no-untyped-call]
    return result


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, module: nn.Conv2d, precision: Precision) -> Tensor:
        ctx.module, ctx.shape, ctx.precision = module, x.shape, precision
        ctx.layout = torch.channels_last if precision != "fp32" or is_channels_last(x) else torch.contiguous_format
        ctx.save_for_backward(weight)
        if precision == "fp32":
            # Forward by cuDNN: an ulp more of error there would change which value a max-pool takes.
            plain: Tensor = module._conv_forward(x, weight, None)
            return plain
        return forward_product(x, weight, module, precision, ctx.layout)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        (weight,) = ctx.saved_tensors
        if not ctx.needs_input_grad[0]:
            return None, None, None, None
        gradient = backward_product(grads[0], weight, ctx.module, ctx.shape, ctx.precision, ctx.layout)
        return gradient, None, None, None


def forward_product(
    x: Tensor, weight: Tensor, module: nn.Conv2d, precision: Precision, layout: torch.memory_format
) -> Tensor:
    """The convolution without its bias, by our kernel."""
    shape = module.out_channels, *output_map(x, module)
    return _launch(x, weight, shape, module, precision, layout, transposed=False)


def backward_product(
    g: Tensor, weight: Tensor, module: nn.Conv2d, shape: torch.Size, precision: Precision, layout: torch.memory_format
) -> Tensor:
    """The gradient at inputs of this shape, by our kernel."""
    return _launch(g, weight.transpose(0, 1), tuple(shape[1:]), module, precision, layout, transposed=True)


def _launch(
    x: Tensor,
    weight: Tensor,
    shape: tuple[int, ...],
    module: nn.Conv2d,
    precision: Precision,
    layout: torch.memory_format,
    *,
    transposed: bool,
) -> Tensor:
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    n, (channels, height, width) = x.shape[0], shape
    # Contiguous, since of a kernel of one entry the reshape is a view, exchanged or not.
    matrix = weight.permute(0, 2, 3, 1).reshape(weight.shape[0], -1).to(dtype).contiguous()
    out = torch.empty((n, channels, height, width), device=x.device, dtype=dtype, memory_format=layout)
    (kh, kw), (sh, sw), (ph, pw), (dh, dw) = geometry_of(module)
    total = n * height * width
    block_o = min(64, max(16, 1 << (channels - 1).bit_length()))
    block_p = 128 if block_o <= 32 else 64
    grid = (-(-total // block_p), -(-channels // block_o))
    convolve_kernel[grid](
        x,
        matrix,
        out,
        *x.stride(),
        out.stride(0),
        out.stride(1),
        out.stride(3),
        total,
        OUT=channels,
        IN=x.shape[1],
        KH=kh,
        KW=kw,
        H=x.shape[2],
        W=x.shape[3],
        OW=width,
        POSITIONS=height * width,
        STRIDE_H=sh,
        STRIDE_W=sw,
        DILATION_H=dh,
        DILATION_W=dw,
        PAD_H=ph,
        PAD_W=pw,
        TRANSPOSED=transposed,
        POSITIONS_LAST=not is_channels_last(x) and x.shape[1] > 1,
        # In tf32 too: with so few channels the better product costs next to nothing.
        PRECISION="tf32x3",
        BLOCK_P=block_p,
        BLOCK_O=block_o,
        BLOCK_K=16 if x.shape[1] == 16 else 32,
        num_warps=4,
        num_stages=3,
    )
    return out


def output_map(x: Tensor, module: nn.Conv2d) -> tuple[int, int]:
    """Height and width of what a convolution makes of x."""
    (kh, kw), (sh, sw), (ph, pw), (dh, dw) = geometry_of(module)
    oh = (x.shape[2] + 2 * ph - dh * (kh - 1) - 1) // sh + 1
    ow = (x.shape[3] + 2 * pw - dw * (kw - 1) - 1) // sw + 1
    return oh, ow


def geometry_of(module: nn.Conv2d) -> tuple[tuple[int, ...], ...]:
    """Kernel, stride, padding and dilation."""
    assert not isinstance(module.padding, str)
    return tuple(module.kernel_size), tuple(module.stride), tuple(module.padding), tuple(module.dilation)
