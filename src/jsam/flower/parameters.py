"""A model's trainable parameters as one flat fp32 vector: how they travel, and how a client's gradient is computed."""

from __future__ import annotations

import functools
import hashlib
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from jsam.errors import InputError
from jsam.flower.models import model_named
from jsam.privacy import derived_seed
from jsam.training.clipping import ClippingEngine, cross_entropy, sample_weights
from jsam.training.clipping.layers.base import LARGEST_NORM
from jsam.training.clipping.per_sample import one_by_one
from jsam.training.clipping.result import clip_factors

Vector = NDArray[np.float32]


def initial_model(name: str, seed: int) -> nn.Module:
    """The same first weights as the simulator's for this seed."""
    return model_named(name, derived_seed(seed, "model"))


def flattened(model: nn.Module) -> Vector:
    pieces = [value.detach().reshape(-1) for value in model.parameters() if value.requires_grad]
    return np.ascontiguousarray(torch.cat(pieces).cpu().numpy(), dtype=np.float32)


@torch.no_grad()
def put_into(model: nn.Module, vector: Vector) -> None:
    parameters = [value for value in model.parameters() if value.requires_grad]
    size = sum(value.numel() for value in parameters)
    if vector.shape != (size,) or vector.dtype != np.float32:
        raise InputError(f"parameters are {vector.dtype} of shape {vector.shape}; the model has {size} of float32")
    place = 0
    for value in parameters:
        piece = torch.from_numpy(vector[place : place + value.numel()].copy())
        value.copy_(piece.reshape(value.shape))
        place += value.numel()


def fits(model_name: str, vector: NDArray[Any]) -> bool:
    return vector.shape == (_size(model_name),) and vector.dtype == np.float32


@functools.lru_cache(maxsize=4)
def _size(model_name: str) -> int:
    return len(flattened(model_named(model_name, 0)))


def check_trains(model_name: str, inputs: NDArray[Any]) -> None:
    """Refuse a model whose gradients cannot be clipped or that does not take such inputs; looks at no value of them."""
    try:
        _engine(model_name, 1.0, inputs.shape[1:], inputs.dtype.str)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"model {model_name!r} does not take inputs of shape {tuple(inputs.shape[1:])}") from error


def known_labels(model_name: str, inputs: NDArray[Any], targets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which records have a label that the model has a class for."""
    classes = _classes(model_name, inputs.shape[1:], inputs.dtype.str)
    within = (targets >= 0) & (targets < classes)
    return np.asarray(within.reshape(len(targets), -1).all(axis=1))


def digest(vector: Vector) -> str:
    return hashlib.sha256(np.ascontiguousarray(vector).tobytes()).hexdigest()


def clipped_mean(
    model_name: str, parameters: Vector, inputs: NDArray[Any], targets: NDArray[np.int64], clip_norm: float
) -> Vector:
    """The mean over all records of their gradients, each clipped; before noise, so it must not leave the machine.

    A record whose gradient is not finite, or whose label the model has no class for, counts as 0. To fail instead would
    be an answer without noise: a server could send parameters that overflow at chosen records only, or name a model of
    few classes, and learn of records from who fails. For the same reason what one
    record adds must not hang on another. Records that fp32 cannot clip are clipped one by one in fp64. Others stand in
    their rows with weight 0, for in a batch of another size, or on another of the engine's paths, all would be rounded
    differently, and parameters can be made up for which that turns gradients around.
    """
    model, engine = _engine(model_name, clip_norm, inputs.shape[1:], inputs.dtype.str)
    put_into(model, parameters)
    known = torch.from_numpy(known_labels(model_name, inputs, targets))
    records = torch.from_numpy(inputs), torch.from_numpy(targets).clone()
    records[1][~known] = 0
    weights = sample_weights([len(targets)], [1], 1) * known
    found = engine.clipped_sum(*records, weights)
    gradient, odd = found.gradient, ~(found.norms <= LARGEST_NORM)
    if bool(odd.any()) and not bool(odd.all()):
        rows = torch.arange(len(odd))
        rows[odd] = int(torch.nonzero(~odd)[0])
        gradient = engine.clipped_sum(records[0][rows], records[1][rows], weights * ~odd).gradient
    if bool(odd.all()) or not bool(torch.isfinite(gradient).all()):
        gradient, odd = torch.zeros(len(parameters)), torch.ones_like(odd)
    if bool(odd.any()):
        odd &= known
        alone = _one_by_one(model, records[0][odd], records[1][odd], clip_norm)
        gradient = gradient.double() + alone / len(targets)
    return gradient.numpy().astype(np.float32)


def _one_by_one(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, clip_norm: float) -> torch.Tensor:
    """The sum of clipped gradients, slowly, no record's gradient touching another's."""
    compute = one_by_one(model, cross_entropy)
    size = sum(value.numel() for value in model.parameters() if value.requires_grad)
    total = torch.zeros(size, dtype=torch.float64)
    for i in range(len(targets)):
        gradient = compute(inputs[i : i + 1], targets[i : i + 1])[0][0].double()
        norm = torch.linalg.vector_norm(gradient)
        if bool(torch.isfinite(norm)):
            total += gradient * clip_factors(norm, clip_norm)
    return total


@functools.lru_cache(maxsize=4)
def _engine(model_name: str, clip_norm: float, shape: tuple[int, ...], kind: str) -> tuple[nn.Module, ClippingEngine]:
    """Kept between messages where a process lives on, as in Flower's simulation.

    The engine looks at the first batch that it gets and chooses its path by it. So that this tells nothing of a record,
    it gets numbers that are no client's, with first weights that are no server's.
    """
    model = model_named(model_name, 0).train()
    engine = ClippingEngine(model, clip_norm=clip_norm, loss=cross_entropy)
    engine.clipped_sum(made_up_records(shape, kind), torch.zeros(3, dtype=torch.int64), torch.ones(3))
    return model, engine


@functools.lru_cache(maxsize=4)
@torch.no_grad()
def _classes(model_name: str, shape: tuple[int, ...], kind: str) -> int:
    return int(model_named(model_name, 0)(made_up_records(shape, kind)).shape[1])


def made_up_records(shape: tuple[int, ...], kind: str) -> torch.Tensor:
    """Three records of that shape and type (numpy's name for it) that are nobody's."""
    return torch.from_numpy(np.random.default_rng(0).random((3, *shape)).astype(np.dtype(kind)))
