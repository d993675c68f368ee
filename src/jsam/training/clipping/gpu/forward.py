"""The forward pass of an nn.Sequential with convolution, activation and pooling merged where they follow each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from jsam.training.clipping.precision import Precision, forward_precision

if TYPE_CHECKING:
    from jsam.training.clipping.gpu.bf16 import Carried

Record = Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]
"""Told of each convolution that is not called as a module: itself, its inputs, its output before the bias (or what
stands for it in autograd's graph)."""

# Elements are numbered by 32-bit integers in the kernels, up to the end of the last block.
_MOST_ELEMENTS = 2**31 - 1024


@dataclass(frozen=True)
class _Merged:
    convolution: nn.Conv2d
    activation: nn.Module
    pooling: nn.MaxPool2d | None
    precision: Precision

    def __call__(self, x: Tensor, record: Record) -> Tensor:
        from jsam.training.clipping.gpu.activation import activate
        from jsam.training.clipping.gpu.convolve import convolve, is_ours, positions

        if is_ours(self.convolution, self.precision) and positions(x, self.convolution) <= _MOST_ELEMENTS:
            y = convolve(x, self.convolution, self.precision)
        else:
            y = self.convolution._conv_forward(x, self.convolution.weight, None)
        if y.numel() > _MOST_ELEMENTS:
            return self.apart(x)
        record(self.convolution, (x,), y)
        return activate(y, self.convolution.bias, tanh=self.tanh, kernel=self.window[0], stride=self.window[1])

    @property
    def tanh(self) -> bool:
        return isinstance(self.activation, nn.Tanh)

    @property
    def window(self) -> tuple[int, int]:
        """The pool's kernel and stride."""
        return (1, 1) if self.pooling is None else (_number(self.pooling.kernel_size), _number(self.pooling.stride))

    def apart(self, x: Tensor) -> Tensor:
        out: Tensor = self.activation(self.convolution(x))
        return out if self.pooling is None else self.pooling(out)


@dataclass(frozen=True)
class _BackInBf16:
    """A merged stage whose gradients are bf16, for another such one if `carry`."""

    stage: _Merged
    carry: bool

    def __call__(self, x: Tensor | Carried, record: Record) -> Tensor | Carried:
        from jsam.training.clipping.gpu.activation import activate
        from jsam.training.clipping.gpu.bf16 import activate_and_carry, convolve, joined
        from jsam.training.clipping.gpu.convolve import is_ours, output_map, positions

        stage, convolution = self.stage, self.stage.convolution
        values, captured = (x, x) if isinstance(x, Tensor) else (x.values, x.rounded)
        oh, ow = output_map(values, convolution)
        if values.shape[0] * convolution.out_channels * oh * ow > _MOST_ELEMENTS:
            return stage.apart(joined(x))
        ours = is_ours(convolution, "bf16") and positions(values, convolution) <= _MOST_ELEMENTS
        y, stand_in = convolve(x, convolution, ours=ours)
        record(convolution, (captured,), stand_in)
        bias, tanh, (kernel, stride) = convolution.bias, stage.tanh, stage.window
        if self.carry:
            return activate_and_carry(y, stand_in, bias, tanh=tanh, kernel=kernel, stride=stride)
        return activate(y, bias, tanh=tanh, kernel=kernel, stride=stride, source=stand_in)


_Stage = _Merged | _BackInBf16 | nn.Module


class MergedForward:
    """Called like the model, on CUDA; modules that are not merged are called as they are, hooks and all."""

    def __init__(self, model: nn.Sequential, precision: Precision) -> None:
        self._stages: list[_Stage] = list(_stages(list(_flat(model)), forward_precision(precision)))
        if precision == "bf16":
            self._stages = _back_in_bf16(self._stages)

    def __call__(self, x: Tensor, record: Record) -> Tensor:
        passed: Any = x
        for stage in self._stages:
            passed = stage(passed) if isinstance(stage, nn.Module) else stage(passed, record)
        out: Tensor = passed
        return out


def merged(model: nn.Module, precision: Precision) -> MergedForward | None:
    """None where nothing can be merged: the model is no plain chain, or someone listens to its modules."""
    if type(model) is not nn.Sequential or any(m._forward_hooks or m._forward_pre_hooks for m in model.modules()):
        return None
    forward = MergedForward(model, precision)
    return None if all(isinstance(stage, nn.Module) for stage in forward._stages) else forward


def _flat(model: nn.Sequential) -> Iterator[nn.Module]:
    for module in model:
        if type(module) is nn.Sequential:
            yield from _flat(module)
        else:
            yield module


def _stages(modules: list[nn.Module], precision: Precision) -> Iterator[_Merged | nn.Module]:
    position = 0
    while position < len(modules):
        module = modules[position]
        after = modules[position + 1] if position + 1 < len(modules) else None
        if type(module) is nn.Conv2d and not _trains_bias_only(module) and type(after) in (nn.ReLU, nn.Tanh):
            assert after is not None
            last = modules[position + 2] if position + 2 < len(modules) else None
            pooling = last if isinstance(last, nn.MaxPool2d) and _is_plain(last) else None
            length = 2 if pooling is None else 3
            if _overwrites(modules[position + length : position + length + 1]):
                yield from modules[position : position + length]
            else:
                yield _Merged(module, after, pooling, precision)
            position += length
        else:
            yield module
            position += 1


def _back_in_bf16(stages: list[_Stage]) -> list[_Stage]:
    """Whatever pads in a way of its own stays in tf32, back and forth."""
    from jsam.training.clipping.gpu.convolve import pads_plainly

    fit = [isinstance(stage, _Merged) and pads_plainly(stage.convolution) for stage in stages]
    return [
        _BackInBf16(stage, carry=follows) if fits and isinstance(stage, _Merged) else stage
        for stage, fits, follows in zip(stages, fit, [*fit[1:], False], strict=True)
    ]


def _overwrites(following: list[nn.Module]) -> bool:
    # The way back through a merged stage needs its output as it was.
    return any(getattr(module, "inplace", False) for module in following)


def _trains_bias_only(convolution: nn.Conv2d) -> bool:
    # Merged, a bias has its gradient from the output before it, which has none if only the bias is trained.
    bias = convolution.bias
    return bias is not None and bias.requires_grad and not convolution.weight.requires_grad


def _is_plain(pooling: nn.MaxPool2d) -> bool:
    square = isinstance(pooling.kernel_size, int) and isinstance(pooling.stride, int)
    plain = pooling.padding == 0 and pooling.dilation == 1 and not pooling.ceil_mode and not pooling.return_indices
    # Places in a window are numbered in a byte; a window of one that strides is not what the kernels expect.
    return type(pooling) is nn.MaxPool2d and square and plain and 2 <= _number(pooling.kernel_size) <= 15


def _number(value: int | tuple[int, ...]) -> int:
    return value if isinstance(value, int) else value[0]
