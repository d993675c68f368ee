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
from jsam.privacy import derived_seed
from jsam.training.clipping import ClippingEngine, cross_entropy, sample_weights
from jsam.training.models import build_model

Vector = NDArray[np.float32]


def initial_model(name: str, seed: int) -> nn.Module:
    """The same first weights as the simulator's for this seed."""
    return build_model(name, derived_seed(seed, "model"))


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


def digest(vector: Vector) -> str:
    return hashlib.sha256(np.ascontiguousarray(vector).tobytes()).hexdigest()


def clipped_mean(
    model_name: str, parameters: Vector, inputs: NDArray[Any], targets: NDArray[np.int64], clip_norm: float
) -> Vector:
    """The mean over all records of their gradients, each clipped; before noise, so it must not leave the machine."""
    model, engine = _engine(model_name, clip_norm)
    put_into(model, parameters)
    weights = sample_weights([len(targets)], [1], 1)
    found = engine.clipped_sum(torch.from_numpy(inputs), torch.from_numpy(targets), weights)
    gradient = found.gradient.numpy().astype(np.float32)
    if not np.isfinite(gradient).all():
        raise InputError("the gradient is not finite")
    return gradient


@functools.lru_cache(maxsize=4)
def _engine(model_name: str, clip_norm: float) -> tuple[nn.Module, ClippingEngine]:
    """Kept between messages where a process lives on, as in Flower's simulation."""
    model = build_model(model_name, 0).train()
    return model, ClippingEngine(model, clip_norm=clip_norm, loss=cross_entropy)
