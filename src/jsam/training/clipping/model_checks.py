"""Which modules the fused path covers, and what no per-example method can: mixed samples, and state that changes."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm

from jsam.errors import InputError
from jsam.training.clipping.isolation import copied
from jsam.training.clipping.layers import RULES
from jsam.training.clipping.rowwise import has_hooks, is_plain


def refuse_mixing(model: nn.Module) -> None:
    """Raises for torch's own modules in which one example's output depends on the others, or whose state changes.

    It is there to say so early and by name. What keeps examples apart is the way in which they are computed.
    """
    for name, module in model.named_modules():
        kind, where = type(module).__name__, name or "the model"
        if isinstance(module, _InstanceNorm):
            if module.track_running_stats:
                raise InputError(f"{kind} at {where} keeps statistics of other samples; use track_running_stats=False")
        elif isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
            raise InputError(
                f"{kind} at {where} mixes the samples of a batch, so no gradient belongs to one example; use GroupNorm"
            )
        elif isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.scale_grad_by_freq:
            raise InputError(
                f"{kind} at {where} scales gradients by counts over the batch; use scale_grad_by_freq=False"
            )
        elif isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
            raise InputError(
                f"{kind} at {where} rescales the rows that samples use (max_norm), which would show without noise "
                "whose tokens they are; use max_norm=None"
            )


def refuse_changes(model: nn.Module, run: Callable[[nn.Module], object]) -> None:
    """Raises if `run`, a forward pass, changes a parameter or buffer of the model that it is given, a copy.

    Such a value would hold what samples are like, without noise, in every model that is stored or sent.
    """
    twin = copied(model)
    run(twin)
    after = dict(_state(twin))
    for name, value in _state(model):
        changed = after.get(name)
        if changed is None or changed.shape != value.shape or not torch.equal(_comparable(changed), _comparable(value)):
            owner = model.get_submodule(name.rpartition(".")[0])
            kind = "parameter" if isinstance(value, nn.Parameter) else "buffer"
            raise InputError(
                f"{kind} {name} of {type(owner).__name__} changes in a forward pass: it would show without noise what "
                "samples are like; use a model whose forward pass changes nothing"
            )


def one_line(error: Exception) -> str:
    """What an exception says, fit for a message of one line."""
    return textwrap.shorten(str(error), 160, placeholder=" …") or type(error).__name__


def _state(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _comparable(value: Tensor) -> Tensor:
    # NaN does not equal itself, so it is replaced by a number.
    return torch.nan_to_num(value.detach()) if value.is_floating_point() else value.detach()


def refuse_hooks(model: nn.Module) -> None:
    """For models of which nothing better is known than that a single example goes through them."""
    for name, module in model.named_modules():
        if has_hooks(module):
            raise InputError(
                f"{type(module).__name__} at {name or 'the model'} has a hook, and the model can only be run example "
                "by example, where a hook might carry something from one to the next; use a model without hooks"
            )


def trainable_owners(model: nn.Module) -> dict[str, nn.Module]:
    """Modules that own a trainable parameter themselves, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if any(parameter.requires_grad for parameter in module.parameters(recurse=False))
    }


def draws_at_random(model: nn.Module) -> bool:
    """Whether Dropout is active: its draws would depend on which thread comes first."""
    return any(isinstance(module, _DropoutNd) and module.training for module in model.modules())


def obstacle(owners: Mapping[str, nn.Module]) -> str | None:
    """Why the fused path does not cover these modules, or None if it does."""
    seen: dict[int, str] = {}
    for name, module in owners.items():
        kind, where = type(module).__name__, name or "the model itself"
        # Exact types: a subclass may compute something else with the same parameters.
        if type(module) not in RULES:
            return f"{kind} at {where} has parameters and no rule of its own"
        if not is_plain(module):
            return f"{kind} at {where} has hooks, or a method of its own"
        for key, parameter in module.named_parameters(recurse=False):
            if key not in ("weight", "bias"):
                return f"{kind} at {where} has the unusual parameter {key}"
            if parameter.requires_grad and id(parameter) in seen:
                return f"{where}.{key} is also the parameter {seen[id(parameter)]}"
            seen[id(parameter)] = f"{where}.{key}"
    return None
