"""Forward as in tf32, back in bf16: nearly all of bf16's speed, a third of its error (docs/decisions/0012).

autograd casts every gradient to the type of the values it belongs to. So that gradients stay bf16 where values are
fp32, the values travel outside of autograd's sight, and a stand-in of type bf16 and of their shape, one number in
memory, takes their place in its graph.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from jsam.training.clipping.gpu.activation import launch_backward, launch_forward
from jsam.training.clipping.gpu.convolve import backward_product, forward_product, geometry_of


class Carried(NamedTuple):
    """What one stage hands to the next."""

    values: Tensor
    """fp32, for the forward pass."""
    rounded: Tensor
    """The same in bf16, for per-example gradients: half the bytes for a kernel that reads them many times."""
    stand_in: Tensor
    """bf16; its gradient is theirs."""


def joined(x: Tensor | Carried) -> Tensor:
    """Values and stand-in in one tensor again, for a module that knows nothing of this."""
    if isinstance(x, Tensor):
        return x
    result: Tensor = _Join.apply(x.stand_in, x.values)  # type: ignore[no-untyped-call]
    return result


def convolve(x: Tensor | Carried, module: nn.Conv2d, *, ours: bool) -> tuple[Tensor, Tensor]:
    """The convolution without its bias, in tf32, and its stand-in; gradients reach the input only, in bf16."""
    source, values = (x, x.detach()) if isinstance(x, Tensor) else (x.stand_in, x.values)
    y, stand_in = _Convolve.apply(source, values, module.weight, module, ours)  # type: ignore[no-untyped-call]
    return y, stand_in


def activate_and_carry(
    y: Tensor, stand_in: Tensor, bias: Tensor | None, *, tanh: bool, kernel: int, stride: int
) -> Carried:
    """max_pool2d(activation(y + bias)) for another such stage."""
    bias = None if bias is None else bias.detach()
    return Carried(*_ActivateAndCarry.apply(stand_in, y, bias, tanh, kernel, stride))  # type: ignore[no-untyped-call]


def _stand_for(values: Tensor) -> Tensor:
    return values.new_empty((), dtype=torch.bfloat16).expand(values.shape)


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, _stand_in: Tensor, values: Tensor) -> Tensor:
        return values.view_as(values)

    @staticmethod
    def backward(_ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, _source: Tensor, values: Tensor, weight: Tensor, module: nn.Conv2d, ours: bool
    ) -> tuple[Tensor, Tensor]:
        # Or a zero gradient as large as y would be made for it.
        ctx.set_materialize_grads(False)
        ctx.module, ctx.shape, ctx.ours = module, values.shape, ours
        ctx.save_for_backward(weight)
        if ours:
            y = forward_product(values, weight, module, "tf32", torch.channels_last)
        else:
            y = module._conv_forward(values, weight, None)
        ctx.mark_non_differentiable(y)
        return y, _stand_for(y)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, None, None, None, None]:
        (weight,), g = ctx.saved_tensors, grads[1]
        if g is None or not ctx.needs_input_grad[0]:
            return None, None, None, None, None
        if ctx.ours:
            gradient = backward_product(g, weight, ctx.module, ctx.shape, "bf16", torch.channels_last)
        else:
            gradient = _input_gradient(g, weight.to(torch.bfloat16), ctx.module, ctx.shape)
        return gradient, None, None, None, None


def _input_gradient(g: Tensor, weight: Tensor, module: nn.Conv2d, shape: torch.Size) -> Tensor:
    """By cuDNN, as a convolution's own backward pass does it, which would ask for inputs of the same type too."""
    kernel, stride, padding, dilation = geometry_of(module)
    unseen = [
        shape[2 + i] - ((g.shape[2 + i] - 1) * stride[i] - 2 * padding[i] + dilation[i] * (kernel[i] - 1) + 1)
        for i in range(2)
    ]
    return functional.conv_transpose2d(g, weight, None, stride, padding, unseen, module.groups, dilation)


class _ActivateAndCarry(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, _stand_in: Tensor, y: Tensor, bias: Tensor | None, tanh: bool, kernel: int, stride: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        out, index, rounded, ctx.geometry = launch_forward(
            y, bias, tanh=tanh, kernel=kernel, stride=stride, rounded=True
        )
        assert rounded is not None
        ctx.save_for_backward(out, index)
        ctx.mark_non_differentiable(out, rounded)
        return out, rounded, _stand_for(out)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, None, None, None, None, None]:
        out, index = ctx.saved_tensors
        if grads[2] is None:
            return None, None, None, None, None, None
        return launch_backward(grads[2], out, index, ctx.geometry, torch.bfloat16), None, None, None, None, None
