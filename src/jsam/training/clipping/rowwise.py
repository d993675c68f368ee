"""Which models treat the rows of a batch apart from each other: decided by types, options and ranks, not by trying.

Each module here is known with the ranks (numbers of dimensions, the batch counted) at which a row of its output depends
on the same row of its input and on nothing else. A `LayerNorm` over two dimensions does so for inputs of three, and
mixes the batch for inputs of two. Dropout draws for each element, so how much it draws follows from the shape alone.
A module that anybody has hooked into or patched is not known, nor is a subclass: it may compute something else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import nn
from torch.nn.modules import module as torch_module

RankRule = Callable[[Any, int], int | None]
"""The rank that comes out for a rank that goes in; None where rows would not be apart, or the module would fail."""

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = tuple(f"_global{name}" for name in _HOOKS)

Chain = Sequence[nn.Module]
"""The modules of a model in the order in which they are called, one after the other."""


def _from(least: int) -> RankRule:
    return lambda module, rank: rank if rank >= least else None


def _only(wanted: int) -> RankRule:
    # With indices of what a pool has chosen, a pair comes out.
    return lambda module, rank: rank if rank == wanted and not getattr(module, "return_indices", False) else None


def _normalised(module: nn.LayerNorm, rank: int) -> int | None:
    return rank if rank > len(module.normalized_shape) else None


def _batch_normalised(*ranks: int) -> RankRule:
    return lambda module, rank: (
        rank if rank in ranks and not module.training and module.running_mean is not None else None
    )


def _instance_normalised(wanted: int) -> RankRule:
    return lambda module, rank: rank if rank == wanted and not module.track_running_stats else None


def _embedded(module: nn.Embedding, rank: int) -> int | None:
    return rank + 1 if rank >= 1 and module.max_norm is None and not module.scale_grad_by_freq else None


def _flattened(module: nn.Flatten, rank: int) -> int | None:
    start, end = _place(module.start_dim, rank), _place(module.end_dim, rank)
    return rank - (end - start) if 1 <= start <= end < rank else None


def _unflattened(module: nn.Unflatten, rank: int) -> int | None:
    # torch also takes names of dimensions; a module with these does not count as known.
    dim, sizes = cast("object", module.dim), cast("tuple[object, ...]", module.unflattened_size)
    if not isinstance(dim, int) or not all(isinstance(size, int) for size in sizes):
        return None
    return rank + len(sizes) - 1 if 1 <= _place(dim, rank) < rank else None


def _along(module: nn.Softmax | nn.GLU, rank: int) -> int | None:
    dim = module.dim
    return rank if isinstance(dim, int) and 1 <= _place(dim, rank) < rank else None


def _place(dim: int, rank: int) -> int:
    return dim + rank if dim < 0 else dim


_ELEMENTWISE: tuple[type[nn.Module], ...] = (
    nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.RReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish,
    nn.Tanh, nn.Sigmoid, nn.LogSigmoid, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.Softplus, nn.Softsign,
    nn.Softshrink, nn.Hardshrink, nn.Tanhshrink, nn.Threshold, nn.Dropout, nn.AlphaDropout,
)  # fmt: skip

_OF_ONE_RANK: dict[int, tuple[type[nn.Module], ...]] = {
    3: (
        nn.Conv1d, nn.Dropout1d, nn.MaxPool1d, nn.AvgPool1d, nn.AdaptiveAvgPool1d, nn.AdaptiveMaxPool1d,
    ),
    4: (
        nn.Conv2d, nn.Dropout2d, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.ZeroPad2d,
        nn.ReflectionPad2d, nn.ReplicationPad2d,
    ),
    5: (
        nn.Conv3d, nn.Dropout3d, nn.MaxPool3d, nn.AvgPool3d,
    ),
}  # fmt: skip

RANKS: dict[type[nn.Module], RankRule] = {
    **dict.fromkeys(_ELEMENTWISE, _from(1)),
    nn.Linear: _from(2),
    **{kind: _only(rank) for rank, kinds in _OF_ONE_RANK.items() for kind in kinds},
    nn.GroupNorm: _from(2),
    nn.LayerNorm: _normalised,
    nn.BatchNorm1d: _batch_normalised(2, 3),
    nn.BatchNorm2d: _batch_normalised(4),
    nn.BatchNorm3d: _batch_normalised(5),
    nn.InstanceNorm1d: _instance_normalised(3),
    nn.InstanceNorm2d: _instance_normalised(4),
    nn.InstanceNorm3d: _instance_normalised(5),
    nn.Embedding: _embedded,
    nn.Flatten: _flattened,
    nn.Unflatten: _unflattened,
    nn.Softmax: _along,
    nn.LogSoftmax: _along,
    nn.GLU: _along,
}


def is_plain(module: nn.Module) -> bool:
    """Whether calling the module runs its class's own code and nothing else: no hooks, nothing patched or compiled."""
    kind = type(module)
    return (
        not has_hooks(module)
        and getattr(module, "_compiled_call_impl", None) is None
        and not any(callable(getattr(kind, key, None)) for key in vars(module))
        and all(type(value) in (nn.Parameter, type(None)) for value in module._parameters.values())
        and all(type(value) in (torch.Tensor, type(None)) for value in module._buffers.values())
    )


def has_hooks(module: nn.Module) -> bool:
    """Of its own, or torch's global ones, which are every module's."""
    return any(getattr(module, name, None) for name in _HOOKS) or any(
        getattr(torch_module, name, None) for name in _GLOBAL_HOOKS
    )


def chain_of(model: nn.Module) -> Chain | None:
    """The modules of a model that is known: one of `RANKS`, or an nn.Sequential of them; else None."""
    # In training an RReLU draws for negative numbers only: how many one row has decides what the next row draws.
    if not is_plain(model) or (type(model) is nn.RReLU and model.training):
        return None
    if type(model) in RANKS:
        return [model]
    if type(model) is not nn.Sequential:
        return None
    links: list[nn.Module] = []
    for module in model:
        inner = chain_of(module)
        if inner is None:
            return None
        links += inner
    return links


def rank_after(chain: Chain, rank: int) -> int | None:
    """The rank of what comes out of a chain, or None where some module may mix the rows of its input."""
    after: int | None = rank
    for module in chain:
        if after is None:
            return None
        after = RANKS[type(module)](module, after)
    return after


def is_rowwise(model: nn.Module, rank: int) -> bool:
    """Whether a batch of that rank surely goes through the model row by row, and nothing is kept on the way."""
    chain = chain_of(model)
    return chain is not None and rank_after(chain, rank) is not None
