"""On the CPU: ReLU and max-pool of an nn.Sequential as one stage, in memory that is kept between chunks.

What a pool and its neighbours write is most of what a chunk makes. As fresh tensors it goes back to the system after
every chunk and is faulted in again page by page, which takes longer than the arithmetic. ReLU keeps the order, so it
may follow the pool, in place, on the smaller map. Gradients stay the same to the bit: where the largest of a window is
not positive ReLU lets nothing pass, and elsewhere the pool chooses the same entry as before.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from jsam.training.clipping.gpu.forward import flat_modules
from jsam.training.clipping.inspection import is_stateless
from jsam.training.clipping.workspace import Workspace

_aten = torch.ops.aten
_Part = Callable[[Tensor], Tensor]


class PooledForward:
    """Called like the model; modules that are part of no stage are called as they are, hooks and all."""

    def __init__(self, model: nn.Sequential) -> None:
        self.parts: list[_Part] = list(_parts(list(flat_modules(model))))

    def __call__(self, x: Tensor, record: object = None) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x


def pooled(model: nn.Module) -> PooledForward | None:
    """None where the model is no plain chain of torch's modules, someone listens to one, or there is no such stage."""
    if type(model) is not nn.Sequential or not is_stateless(model):
        return None
    found = PooledForward(model)
    # The way back needs a stage's output as it was, and views of it may reach any module further on.
    if any(getattr(part, "inplace", False) for part in found.parts):
        return None
    return found if any(isinstance(part, _Stage) for part in found.parts) else None


def _parts(modules: list[nn.Module]) -> Iterator[_Part]:
    position = 0
    while position < len(modules):
        module = modules[position]
        after = modules[position + 1] if position + 1 < len(modules) else None
        if type(module) is nn.ReLU and type(after) is nn.MaxPool2d and not after.return_indices:
            yield _Stage(module, after)
            position += 2
        else:
            yield module
            position += 1


class _Stage:
    """max_pool2d(relu(x)). What it returns, and the gradient it passes on, hold until the thread's next call."""

    def __init__(self, relu: nn.ReLU, pool: nn.MaxPool2d) -> None:
        self._relu, self._pool = relu, pool
        sizes = (pool.kernel_size, pool.stride, pool.padding, pool.dilation)
        self._options = *((size, size) if isinstance(size, int) else size for size in sizes), pool.ceil_mode
        self._local = threading.local()

    def __call__(self, x: Tensor) -> Tensor:
        if x.dim() != 4 or not x.requires_grad:
            plain: Tensor = self._pool(self._relu(x))
            return plain
        workspace: Workspace | None = getattr(self._local, "workspace", None)
        if workspace is None:
            workspace = self._local.workspace = Workspace()
        out: Tensor = _ReluPool.apply(x, self._options, workspace)  # type: ignore[no-untyped-call]
        return out


class _ReluPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, options: tuple[Any, ...], workspace: Workspace) -> Tensor:
        # Not x itself, which `take` would keep: its memory is free for the layers that follow.
        like, channels_last = x.new_empty(0), x.stride(1) == 1

        def take(name: str, shape: torch.Size, dtype: torch.dtype) -> Tensor:
            n, c, h, w = shape
            if channels_last:
                return workspace.take(name, (n, h, w, c), like=like, dtype=dtype).permute(0, 3, 1, 2)
            return workspace.take(name, shape, like=like, dtype=dtype)

        shape = _shape(x.shape, options)
        out, indices = take("out", shape, x.dtype), take("indices", shape, torch.int64)
        _aten.max_pool2d_with_indices.out(x, *options, out=out, indices=indices)
        out.clamp_min_(0.0)
        ctx.save_for_backward(out, indices)
        ctx.take, ctx.inner, ctx.options = take, x.shape, options
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        out, indices = ctx.saved_tensors
        passed, result = ctx.take("passed", out.shape, out.dtype), ctx.take("result", ctx.inner, out.dtype)
        _aten.threshold_backward.grad_input(grads[0], out, 0, grad_input=passed)
        # Of the pool's input the way back reads no more than shape and layout, which the result has too.
        _aten.max_pool2d_with_indices_backward.grad_input(passed, result, *ctx.options, indices, grad_input=result)
        return result, None, None


@functools.lru_cache(maxsize=64)
def _shape(inner: torch.Size, options: tuple[Any, ...]) -> torch.Size:
    out, _ = _aten.max_pool2d_with_indices(torch.empty(inner, device="meta"), *options)
    found: torch.Size = out.shape
    return found
