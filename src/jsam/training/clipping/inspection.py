"""Which modules the fused path covers, and which no per-example method can."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm

from jsam.errors import InputError
from jsam.training.clipping.layers import RULES


def refuse_mixing(model: nn.Module) -> None:
    """Raises for modules in which one example's output depends on the others: no per-example gradient exists there."""
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


def trainable_owners(model: nn.Module) -> dict[str, nn.Module]:
    """Modules that own a trainable parameter themselves, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if any(parameter.requires_grad for parameter in module.parameters(recurse=False))
    }


def is_stateless(model: nn.Module) -> bool:
    """Whether a forward pass surely keeps nothing on the modules, so that two may run at once.

    True of torch's own modules without hooks; a module of the user's may store things on itself on the way.
    """
    return all(
        type(module).__module__.startswith("torch.nn.modules.")
        and not module._forward_hooks
        and not module._forward_pre_hooks
        for module in model.modules()
    )


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
        if isinstance(module, nn.Embedding) and module.max_norm is not None:
            return f"{kind} at {where} rescales its weight in the forward pass (max_norm)"
        for key, parameter in module.named_parameters(recurse=False):
            if key not in ("weight", "bias"):
                return f"{kind} at {where} has the unusual parameter {key}"
            if parameter.requires_grad and id(parameter) in seen:
                return f"{where}.{key} is also the parameter {seen[id(parameter)]}"
            seen[id(parameter)] = f"{where}.{key}"
    return None
