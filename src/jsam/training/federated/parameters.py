"""A model's trainable parameters as one flat fp32 vector: how they travel, and how a client's gradient is computed."""

from __future__ import annotations

import functools
import logging
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from jsam.errors import InputError
from jsam.privacy import derived_seed
from jsam.training.clipping import ClippingEngine, cross_entropy, sample_weights
from jsam.training.clipping.clipped_sum import LARGEST_RATIO, ClippedSum
from jsam.training.environment import threads_set_to
from jsam.training.models import build_model

Vector = NDArray[np.float32]

logger = logging.getLogger(__name__)


def initial_model(name: str, seed: int) -> nn.Module:
    """The same first weights as the simulator's for this seed."""
    return build_model(name, derived_seed(seed, "model"))


def flattened(model: nn.Module) -> Vector:
    pieces = [value.detach().reshape(-1) for value in model.parameters() if value.requires_grad]
    return np.ascontiguousarray(torch.cat(pieces).cpu().numpy(), dtype=np.float32)


@torch.no_grad()
def put_into(model: nn.Module, vector: Vector) -> None:
    parameters = [value for value in model.parameters() if value.requires_grad]
    sizes = [value.numel() for value in parameters]
    if vector.shape != (sum(sizes),) or vector.dtype != np.float32:
        raise InputError(
            f"parameters are {vector.dtype} of shape {vector.shape}; the model has {sum(sizes)} of float32"
        )
    for value, piece in zip(parameters, torch.split(torch.from_numpy(vector.copy()), sizes), strict=True):
        value.copy_(piece.view(value.shape))


def fits(model_name: str, vector: NDArray[Any]) -> bool:
    return vector.shape == (_size(model_name),) and vector.dtype == np.float32


@functools.lru_cache(maxsize=4)
def _size(model_name: str) -> int:
    return len(flattened(build_model(model_name, 0)))


def check_trains(model_name: str, inputs: NDArray[Any]) -> None:
    """Refuse a model whose gradients cannot be clipped or that does not take such inputs; looks at no value of them."""
    if len(inputs) > LARGEST_RATIO:
        raise InputError(f"{len(inputs)} records are more than the {int(LARGEST_RATIO)} whose mean can be bounded")
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


def clipped_mean(
    model_name: str, parameters: Vector, inputs: NDArray[Any], targets: NDArray[np.int64], clip_norm: float
) -> NDArray[np.float64]:
    """The mean over all records of their gradients, each clipped; before noise, so it must not leave the machine.

    It is fp64 and stays so until noise is added: rounded to fp32 first it could move by more than one record's share.
    A record whose gradient is not finite, at which the model fails, or whose label the model has no class for, counts
    as 0. To fail instead would be an answer without noise: a server could send parameters that overflow at chosen
    records only, or name a model of few classes, and learn of records from who fails. No more work is done for such a
    record than for others, for how long it takes is an answer too; and what one record adds does not hang on another.
    """
    model, engine = _engine(model_name, clip_norm, inputs.shape[1:], inputs.dtype.str)
    put_into(model, parameters)
    known = torch.from_numpy(known_labels(model_name, inputs, targets))
    records = torch.from_numpy(inputs), torch.from_numpy(targets).clone()
    records[1][~known] = 0
    weights = sample_weights([len(targets)], [1], 1) * known
    # The engine's workers flush numbers too small for full precision, which are slow. Threads inside one operation
    # could not be told to, so there are none.
    with threads_set_to(1):
        found = _sum(engine, *records, weights)
    counted = int((torch.isfinite(found.norms) & known).sum())
    # The same line whatever the number is, for it takes time too.
    logger.info("%d of %d records count in this round", counted, len(targets))
    return found.gradient.numpy()


def _sum(engine: ClippingEngine, inputs: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> ClippedSum:
    """If a batch fails although its values cannot make it, records go one by one from then on.

    That would take longer. But without it one record could take the part of all others from a mean.
    """
    try:
        return engine.clipped_sum(inputs, targets, weights)
    except MemoryError:
        raise
    except Exception:
        if engine.path == "one by one":
            raise
        logger.exception("a batch of records failed; they go through the model one by one from now on")
    engine.run_one_by_one("a batch of records failed")
    return engine.clipped_sum(inputs, targets, weights)


@functools.lru_cache(maxsize=4)
def _engine(model_name: str, clip_norm: float, shape: tuple[int, ...], kind: str) -> tuple[nn.Module, ClippingEngine]:
    """Kept between messages where a process lives on, as in Flower's simulation.

    The engine looks at the first batch that it gets and chooses its path by it. So that this tells nothing of a record,
    it gets numbers that are no client's, with first weights that are no server's.
    """
    model = build_model(model_name, 0).train()
    engine = ClippingEngine(model, clip_norm=clip_norm, loss=cross_entropy, skip_failing=True)
    engine.clipped_sum(made_up_records(shape, kind), torch.zeros(3, dtype=torch.int64), torch.ones(3))
    return model, engine


@functools.lru_cache(maxsize=4)
@torch.no_grad()
def _classes(model_name: str, shape: tuple[int, ...], kind: str) -> int:
    return int(build_model(model_name, 0)(made_up_records(shape, kind)).shape[1])


def made_up_records(shape: tuple[int, ...], kind: str) -> torch.Tensor:
    """Three records of that shape and type (numpy's name for it) that are nobody's."""
    return torch.from_numpy(np.random.default_rng(0).random((3, *shape)).astype(np.dtype(kind)))
