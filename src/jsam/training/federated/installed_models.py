"""Models by name, from this installation alone: jsam's own, and those that packages installed here offer.

A package offers a model by an entry point of the group `jsam.models`, a function without arguments that returns an
`nn.Module`. A server can only say a name. What it stands for is what the owner of a machine has installed there.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

import torch
from torch import nn

from jsam.errors import InputError
from jsam.training.models import MODEL_NAMES, build_model

GROUP = "jsam.models"


def check_model(name: str) -> None:
    """Refuse a name that this installation does not know."""
    if name not in MODEL_NAMES:
        _offered(name)


def model_named(name: str, seed: int) -> nn.Module:
    """A freshly initialised model; the same name and seed give the same weights on the same installation."""
    if name in MODEL_NAMES:
        return build_model(name, seed)
    offered = _offered(name)
    build = offered.load()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = build()
    if not isinstance(model, nn.Module):
        raise InputError(f"model {name!r}: {offered.value} returns {type(model).__name__}; it must be an nn.Module")
    return model


def _offered(name: str) -> EntryPoint:
    offers = {offer.value: offer for offer in entry_points(group=GROUP, name=name)}
    if len(offers) == 1:
        return next(iter(offers.values()))
    if offers:
        raise InputError(f"model {name!r} is offered by several packages: {', '.join(sorted(offers))}")
    raise InputError(
        f"model {name!r} is not installed here; jsam has {', '.join(MODEL_NAMES)}, and a package offers others by an "
        f"entry point of the group {GROUP}"
    )
