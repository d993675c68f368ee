"""Stand-ins for the Triton kernels, out of torch's own operations: what is built upon them then runs without a GPU."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from tests.conftest import require

torch = require("torch", extra="train")
from torch import Tensor  # noqa: E402
from torch.nn import functional  # noqa: E402

_PACKAGE = "jsam.training.clipping.gpu"
_BUILT_ON_KERNELS = tuple(
    f"{_PACKAGE}.{name}" for name in ("activation", "convolve", "card_sums", "conv_rule", "linear_rule", "bf16")
)


class _Kernel:
    """Called as Triton's are: a grid in brackets, then the arguments."""

    def __init__(self, run: Callable[..., None]) -> None:
        self._run = run

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return self._run


def _activate(y: Tensor, bias: Tensor, out: Tensor, index: Tensor, rounded: Tensor, _total: int, **given: Any) -> None:
    kernel, stride = given["KERNEL"], given["STRIDE"]
    best, flat = functional.max_pool2d(y.contiguous(), kernel, stride, return_indices=True)
    if given["BIAS"]:
        best = best + bias[:, None, None]
    values = best.tanh() if given["TANH"] else best.relu()
    out.copy_(values)
    if given["ROUNDED"]:
        rounded.copy_(values)
    if kernel > 1:
        oh, ow = torch.arange(given["OH"])[:, None], torch.arange(given["OW"])
        place = (flat // given["W"] - oh * stride) * kernel + flat % given["W"] - ow * stride
        index.copy_(_in_memory_order(place, given).to(torch.uint8))


def _activate_backward(grad: Tensor, out: Tensor, index: Tensor, result: Tensor, _total: int, **given: Any) -> None:
    kernel, stride, width = given["KERNEL"], given["STRIDE"], given["W"]
    slope = 1.0 - out * out if given["TANH"] else (out > 0).to(out.dtype)
    slope = slope * grad.float()
    if kernel == 1:
        result.copy_(slope)
        return
    place = torch.empty_like(out, dtype=torch.int64)
    _in_memory_order(place, given, view=True).copy_(index)
    oh, ow = torch.arange(given["OH"])[:, None], torch.arange(given["OW"])
    flat = (oh * stride + place // kernel) * width + ow * stride + place % kernel
    sums = torch.zeros((*out.shape[:2], given["H"] * width))
    result.copy_(sums.scatter_add_(2, flat.flatten(2), slope.flatten(2)).view(result.shape))


def _in_memory_order(values: Tensor, given: dict[str, Any], *, view: bool = False) -> Tensor:
    moved = values.permute(0, 2, 3, 1) if given["CHANNELS_LAST"] else values
    return moved.view(-1) if view else moved.reshape(-1)


def _convolve(x: Tensor, matrix: Tensor, out: Tensor, *_: int, **given: Any) -> None:
    weight = matrix.view(matrix.shape[0], given["KH"], given["KW"], given["IN"]).permute(0, 3, 1, 2).float()
    x = x.to(matrix.dtype).float()
    stride, dilation = (given["STRIDE_H"], given["STRIDE_W"]), (given["DILATION_H"], given["DILATION_W"])
    padding = given["PAD_H"], given["PAD_W"]
    if not given["TRANSPOSED"]:
        out.copy_(functional.conv2d(x, weight, None, stride, padding, dilation))
        return
    exchanged = weight.transpose(0, 1)
    seen = functional.conv_transpose2d(x, exchanged, None, stride, padding, 0, 1, dilation).shape
    rest = [size - there for size, there in zip(out.shape[2:], seen[2:], strict=True)]
    out.copy_(functional.conv_transpose2d(x, exchanged, None, stride, padding, rest, 1, dilation))


def _sample_gradients(x: Tensor, g: Tensor, kept: Tensor, bias: Tensor, parts: Tensor, *_: int, **given: Any) -> None:
    n, outputs, kernel = x.shape[0], given["OUT"], (given["KH"], given["KW"])
    stride, dilation = (given["STRIDE_H"], given["STRIDE_W"]), (given["DILATION_H"], given["DILATION_W"])
    x = x.to(g.dtype).float()
    patches = functional.unfold(x, kernel, dilation, (given["PAD_H"], given["PAD_W"]), stride)
    patches = patches.view(n, given["IN"], *kernel, -1).permute(0, 2, 3, 1, 4).flatten(1, 3)
    g = g.float().flatten(2)
    kept.copy_((g @ patches.transpose(1, 2)).flatten(1))
    stored = kept.float().view(n, outputs, -1)
    tiles = [t for rows in torch.split(stored, given["BLOCK_O"], 1) for t in torch.split(rows, given["BLOCK_C"], 2)]
    for part, tile in zip(parts, tiles, strict=False):
        part.copy_(tile.square().sum((1, 2)).sqrt())
    if given["BIAS"]:
        bias.copy_(g.sum(2))


def _weighted_sum(
    rows: Tensor, factors: Tensor, out: Tensor, _n: int, _size: int, share: int, *, WEIGHTED: bool, **_given: Any
) -> None:
    if not WEIGHTED:
        out.copy_(rows.sum(0))
        return
    for part, some, their in zip(out, torch.split(rows, share), torch.split(factors, share), strict=True):
        part.copy_(torch.where(their[:, None] != 0, some.double() * their[:, None], 0.0).sum(0))


def _outer_sum(g: Tensor, x: Tensor, factors: Tensor, out: Tensor, *sizes: int, BIAS: bool, **_given: Any) -> None:
    shares = (torch.split(values, sizes[-1]) for values in (g, x, factors))
    for part, left, right, their in zip(out, *shares, strict=True):
        counts = their[:, None] != 0
        left, right = torch.where(counts, left.double() * their[:, None], 0.0), torch.where(counts, right.double(), 0.0)
        part.copy_(torch.cat([(left.t() @ right).flatten(), *([left.sum(0)] if BIAS else [])]))


def _outer_norms(g: Tensor, x: Tensor, norms: Tensor, *_: int, WEIGHT: bool, BIAS: bool, **_given: Any) -> None:
    other = (x.double().square().sum(1) + BIAS).sqrt() if WEIGHT else 1.0
    norms.copy_(g.double().norm(dim=1) * other)


@contextlib.contextmanager
def plain_kernels() -> Iterator[None]:
    """Inside, whatever is built on the kernels is imported afresh and gets these."""
    names = (f"{_PACKAGE}.kernels", *_BUILT_ON_KERNELS)
    before = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    module: Any = ModuleType(names[0])
    module.activate_kernel, module.activate_backward_kernel = _Kernel(_activate), _Kernel(_activate_backward)
    module.convolve_kernel, module.sample_gradients_kernel = _Kernel(_convolve), _Kernel(_sample_gradients)
    module.weighted_sum_kernel, module.outer_sum_kernel = _Kernel(_weighted_sum), _Kernel(_outer_sum)
    module.outer_norms_kernel, module.MULTIPLIES_FP64 = _Kernel(_outer_norms), True
    sys.modules[names[0]] = module
    try:
        yield
    finally:
        for name in names:
            sys.modules.pop(name, None)
        sys.modules.update(before)
