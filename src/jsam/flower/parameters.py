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


def digest(vector: Vector) -> str:
    return hashlib.sha256(np.ascontiguousarray(vector).tobytes()).hexdigest()


def clipped_mean(
    model_name: str, parameters: Vector, inputs: NDArray[Any], targets: NDArray[np.int64], clip_norm: float
) -> Vector:
    """The mean over all records of their gradients, each clipped; before noise, so it must not leave the machine.

    A record whose gradient is not finite counts as 0. To fail instead would be an answer without noise: a server could
    send parameters that overflow at chosen records only, and learn of them from who fails. For the same reason the
    whole mean must not become 0 because of one record: that would move it by more than its sensitivity.
    """
    model, engine = _engine(model_name, clip_norm)
    put_into(model, parameters)
    records = torch.from_numpy(inputs), torch.from_numpy(targets)
    try:
        gradient = engine.clipped_sum(*records, sample_weights([len(targets)], [1], 1)).gradient
    except InputError:
        # The engine's check of its first batch compares losses, which are not comparable where they overflow.
        gradient = torch.full((1,), torch.nan)
    if not bool(torch.isfinite(gradient).all()):
        gradient = _record_by_record(model, *records, clip_norm)
    return gradient.numpy().astype(np.float32)


def _record_by_record(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, clip_norm: float) -> torch.Tensor:
    """The same mean, slowly, no record's gradient touching another's."""
    compute = one_by_one(model, cross_entropy)
    size = sum(value.numel() for value in model.parameters() if value.requires_grad)
    total = torch.zeros(size, dtype=torch.float64)
    for i in range(len(targets)):
        gradient = compute(inputs[i : i + 1], targets[i : i + 1])[0][0].double()
        norm = torch.linalg.vector_norm(gradient)
        if bool(torch.isfinite(norm)):
            total += gradient * clip_factors(norm, clip_norm)
    return total / len(targets)


@functools.lru_cache(maxsize=4)
def _engine(model_name: str, clip_norm: float) -> tuple[nn.Module, ClippingEngine]:
    """Kept between messages where a process lives on, as in Flower's simulation."""
    model = model_named(model_name, 0).train()
    return model, ClippingEngine(model, clip_norm=clip_norm, loss=cross_entropy)
