"""Models by name: jsam's own, and those that packages installed here offer.

A package offers a model by an entry point of the group `jsam.models`, a function without arguments that returns an
`nn.Module`. A name is all that travels, in a campaign too: what it stands for is what is installed on each machine.
jsam's own are the paper's two convolutional networks, a small one for scikit-learn's digits, and linear models, whose
size follows from the data: `linear` on the records as they are, `scatter-linear` on their scattering features.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from importlib.metadata import EntryPoint, entry_points

import torch
from torch import nn

from jsam.errors import InputError
from jsam.training.features import ScatteringFeatures


def _mnist() -> nn.Module:
    """26,010 parameters, inputs (n, 1, 28, 28)."""
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=8, stride=2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, kernel_size=4, stride=2),
        nn.ReLU(),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


def _cifar10() -> nn.Module:
    """550,570 parameters, inputs (n, 3, 32, 32)."""
    layers: list[nn.Module] = []
    channels = 3
    for width in (32, 64, 128):
        layers += [nn.Conv2d(channels, width, kernel_size=3, padding=1), nn.Tanh()]
        layers += [nn.Conv2d(width, width, kernel_size=3, padding=1), nn.Tanh()]
        layers += [nn.MaxPool2d(2)]
        channels = width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2048, 128), nn.Tanh(), nn.Linear(128, 10))


def _digits() -> nn.Module:
    """Inputs (n, 1, 8, 8)."""
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 32),
        nn.Tanh(),
        nn.Linear(32, 10),
    )


def _linear(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), num_classes))


_BUILDERS: dict[str, Callable[[], nn.Module]] = {"mnist": _mnist, "cifar10": _cifar10, "digits": _digits}

FEATURES = {"scatter-linear": ScatteringFeatures()}
"""Models that are trained on features of the records, which `TaskSpec.build` puts in the records' place."""
SIZED = ("linear", *FEATURES)
"""Linear models, whose size follows from the data."""
MODEL_NAMES: tuple[str, ...] = (*_BUILDERS, *SIZED)
GROUP = "jsam.models"


def check_model(name: str) -> None:
    """Refuse a name that this installation does not know, and one that stands for a model only beside data."""
    if name in SIZED:
        raise _unsized(name)
    if name not in MODEL_NAMES:
        _offered(name)


def build_model(
    name: str, seed: int, *, shape: tuple[int, ...] | None = None, num_classes: int | None = None
) -> nn.Module:
    """A freshly initialised model; the same name and seed give the same weights, whatever was drawn before.

    `shape` is that of a record or its features. With the number of classes it is the size of a linear model; the other
    models have a size of their own.
    """
    offered = None if name in MODEL_NAMES else _offered(name)
    if name in SIZED:
        if shape is None or num_classes is None:
            raise _unsized(name)
        build: Callable[[], nn.Module] = partial(_linear, shape, num_classes)
    else:
        build = _BUILDERS[name] if offered is None else offered.load()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = build()
    if isinstance(model, nn.Module):
        return model
    value = name if offered is None else offered.value
    raise InputError(f"model {name!r}: {value} returns {type(model).__name__}; it must be an nn.Module")


def _unsized(name: str) -> InputError:
    return InputError(
        f"model {name!r} takes its size from the data, which are not known here; it is for jsam simulate, and "
        f"campaigns take one of {', '.join(_BUILDERS)} or an entry point of the group {GROUP}"
    )


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
