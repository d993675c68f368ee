"""One forward and one backward for the gradients at the outputs of layers; no weight gradient is computed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils.hooks import RemovableHandle

from jsam.errors import InputError
from jsam.training.clipping.layers import Call, CannotFuseError

PerSampleLoss = Callable[[Tensor, Tensor], Tensor]
"""Maps (model outputs, targets) to one loss an example."""


Forward = Callable[[Tensor], Tensor]
Record = Callable[[nn.Module, tuple[Any, ...], Tensor], None]
RecordedForward = Callable[[Tensor, Record], Tensor]
"""A forward pass that itself tells of calls which no hook sees."""


def sample_losses(model: Forward, inputs: Tensor, targets: Tensor, loss: PerSampleLoss) -> Tensor:
    """The loss of each example, its shape checked: a mean over the batch here would silently clip the wrong thing."""
    losses = loss(model(inputs), targets)
    if losses.shape != (inputs.shape[0],):
        raise InputError(
            f"loss returned shape {tuple(losses.shape)} for {inputs.shape[0]} examples; "
            "it must return one value an example (reduction='none')"
        )
    return losses


@dataclass
class _Record:
    module: nn.Module
    inputs: Tensor
    version: int
    edge: GradientEdge


class Capture:
    """While entered, `run` gives every call of the named modules with the gradient of the summed loss at its output.

    The hooks are set once for all threads; each thread sees the calls of its own forward passes.
    """

    def __init__(
        self,
        model: nn.Module,
        names: Mapping[nn.Module, str],
        loss: PerSampleLoss,
        forward: RecordedForward | None = None,
    ) -> None:
        self._names, self._loss = names, loss
        self._forward: Forward = model if forward is None else lambda inputs: forward(inputs, self._record)
        self._handles: list[RemovableHandle] = []
        self._local = threading.local()

    def __enter__(self) -> Self:
        self._handles = [module.register_forward_hook(self._record, prepend=True) for module in self._names]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()

    def run(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, dict[str, list[Call]]]:
        """Losses, and the calls by the module's name."""
        records: list[_Record] = []
        self._local.records = records
        try:
            with torch.enable_grad():
                losses = sample_losses(self._forward, inputs, targets, self._loss)
        finally:
            self._local.records = None
        return losses.detach(), self._calls(losses, records, inputs.shape[0])

    def _record(self, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        records: list[_Record] | None = getattr(self._local, "records", None)
        if records is None or module not in self._names or not output.requires_grad:
            return
        if len(args) != 1:
            raise CannotFuseError(f"{self._names[module]} is called with {len(args)} positional arguments, not one")
        # The edge, not the tensor: an in-place activation that follows would make the tensor stand for its own output.
        records.append(_Record(module, args[0].detach(), args[0]._version, get_gradient_edge(output)))

    def _calls(self, losses: Tensor, records: Sequence[_Record], n: int) -> dict[str, list[Call]]:
        if not records:
            return {}
        edges = [record.edge for record in records]
        gradients: Sequence[Tensor | None] = torch.autograd.grad(losses.sum(), edges, allow_unused=True)
        calls: dict[str, list[Call]] = {}
        for record, gradient in zip(records, gradients, strict=True):
            if gradient is None:
                continue
            name = self._names[record.module]
            if record.inputs._version != record.version:
                raise CannotFuseError(f"the input of {name} is changed in place after use")
            if record.inputs.shape[0] != n or gradient.shape[0] != n:
                seen = tuple(record.inputs.shape)
                raise CannotFuseError(f"{name} sees inputs of shape {seen}, not one row for each of {n} examples")
            calls.setdefault(name, []).append(Call(record.inputs, gradient))
        return calls
