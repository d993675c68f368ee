"""One forward and one backward for the gradients at the outputs of layers; no weight gradient is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from jsam.errors import InputError
from jsam.training.clipping.layers import Call, CannotFuseError

PerSampleLoss = Callable[[Tensor, Tensor], Tensor]
"""Maps (model outputs, targets) to one loss an example."""


@dataclass
class _Record:
    module: nn.Module
    inputs: Tensor
    version: int
    edge: GradientEdge


def sample_losses(model: nn.Module, inputs: Tensor, targets: Tensor, loss: PerSampleLoss) -> Tensor:
    """The loss of each example, its shape checked: a mean over the batch here would silently clip the wrong thing."""
    losses = loss(model(inputs), targets)
    if losses.shape != (inputs.shape[0],):
        raise InputError(
            f"loss returned shape {tuple(losses.shape)} for {inputs.shape[0]} examples; "
            "it must return one value an example (reduction='none')"
        )
    return losses


def capture(
    model: nn.Module, names: Mapping[nn.Module, str], inputs: Tensor, targets: Tensor, loss: PerSampleLoss
) -> tuple[Tensor, dict[str, list[Call]]]:
    """Losses, and every call of the named modules with the gradient of the summed loss at its output."""
    records: list[_Record] = []
    with torch.enable_grad(), _recording(names, records):
        losses = sample_losses(model, inputs, targets, loss)
    if not records:
        return losses.detach(), {}
    edges = [record.edge for record in records]
    gradients: Sequence[Tensor | None] = torch.autograd.grad(losses.sum(), edges, allow_unused=True)
    calls: dict[str, list[Call]] = {}
    for record, gradient in zip(records, gradients, strict=True):
        if gradient is None:
            continue
        if record.inputs._version != record.version:
            raise CannotFuseError(f"the input of {names[record.module]} is changed in place after use")
        calls.setdefault(names[record.module], []).append(Call(record.inputs, gradient))
    return losses.detach(), calls


@contextmanager
def _recording(names: Mapping[nn.Module, str], records: list[_Record]) -> Iterator[None]:
    def hook(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        if not output.requires_grad:
            return
        if len(args) != 1:
            raise CannotFuseError(f"{names[module]} is called with {len(args)} positional arguments instead of one")
        # The edge, not the tensor: an in-place activation that follows would make the tensor stand for its own output.
        records.append(_Record(module, args[0].detach(), args[0]._version, get_gradient_edge(output)))

    handles = [module.register_forward_hook(hook, prepend=True) for module in names]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
