"""Whether a model takes the records that it is to learn from, before anything is spent on it.

Where it does not, the forward pass or the loss raises: a token that its vocabulary lacks, a label that it has no class
for. Found out in a round, that would be news of single records.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from jsam.errors import InputError
from jsam.training.clipping import ClippingEngine, PerSampleLoss, SlowPathWarning, cross_entropy
from jsam.training.clipping.capture import watched_losses
from jsam.training.clipping.isolation import copied
from jsam.training.clipping.model_checks import one_line
from jsam.training.clipping.rowwise import is_rowwise

if TYPE_CHECKING:
    from jsam.training.task import Task

LOOKED_AT = 3
"""How many records the engine chooses its path by; always the first ones, so that no later one decides anything."""
_CHUNK = 2000


def check_task(task: Task, device: torch.device) -> None:
    """Refuse a task whose model cannot be trained, or does not take every record; nothing is written."""
    model, loss = task.model.to(device).train(), task.loss or cross_entropy
    inputs, targets = (torch.from_numpy(values) for values in (task.dataset.train_inputs, task.dataset.train_targets))
    refused = first_refused(model, loss, inputs, targets, device)
    if refused is not None:
        index, error = refused
        raise InputError(
            f"the model does not take record {index} of the {len(targets)} of data set {task.dataset.name}: {error}"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SlowPathWarning)
        # Training gives the same warning later, where it is of use.
        engine = ClippingEngine(model, clip_norm=1.0, loss=loss)
        engine.check(inputs[:LOOKED_AT].to(device), targets[:LOOKED_AT].to(device))


def first_refused(
    model: nn.Module, loss: PerSampleLoss, inputs: Tensor, targets: Tensor, device: torch.device
) -> tuple[int, str] | None:
    """The first record that the model does not take, and why, on one line; None if it takes all."""
    like = is_rowwise(model, inputs.dim()) and loss is cross_entropy and inputs.is_floating_point()
    twin = model if is_rowwise(model, inputs.dim()) else copied(model)
    with torch.no_grad(), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        if like and targets.dim() == 1:
            # Numbers go through all known modules alike, whatever they are: one record and the labels tell.
            return _odd_label(twin, inputs[:1].to(device), targets)
        for start in range(0, len(targets), _CHUNK):
            rows = range(start, min(start + _CHUNK, len(targets)))
            refused = _first(twin, loss, inputs, targets, rows, device)
            if refused is not None:
                return refused
    return None


def _odd_label(model: nn.Module, first: Tensor, targets: Tensor) -> tuple[int, str] | None:
    try:
        classes = model(first).shape[1]
    except Exception as error:  # noqa: BLE001 - whatever a model raises
        return 0, one_line(error)
    odd = torch.nonzero((targets < 0) | (targets >= classes))
    return (int(odd[0]), f"its label is {int(targets[odd[0]])}; the model has {classes} classes") if len(odd) else None


def _first(
    model: nn.Module, loss: PerSampleLoss, inputs: Tensor, targets: Tensor, rows: Sequence[int], device: torch.device
) -> tuple[int, str] | None:
    """By halves, so that a batch which is taken whole is run once."""
    batch = slice(rows[0], rows[-1] + 1)
    try:
        watched_losses(model, inputs[batch].to(device), targets[batch].to(device), loss)
    except Exception as error:  # noqa: BLE001 - whatever a model raises
        if len(rows) == 1:
            return rows[0], one_line(error)
        half = len(rows) // 2
        first = _first(model, loss, inputs, targets, rows[:half], device)
        return first or _first(model, loss, inputs, targets, rows[half:], device)
    return None
