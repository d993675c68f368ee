"""One forward and one backward for the gradients at the outputs of layers; no weight gradient is computed.

A batch goes through the model at once only if that is surely the same as one example after another (`rowwise`). Any
other model, and any loss but the default one, sees one example at a time (`isolation`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.nn import functional
from torch.utils.hooks import RemovableHandle

from jsam.training.clipping.isolation import IsolatedModel, Watch, checked_loss, each_loss
from jsam.training.clipping.layers import Call, CannotFuseError
from jsam.training.clipping.rowwise import chain_of, rank_after

PerSampleLoss = Callable[[Tensor, Tensor], Tensor]
"""Maps (model outputs, targets) to one loss an example."""


Forward = Callable[[Tensor], Tensor]
Record = Callable[[nn.Module, tuple[Any, ...], Tensor], None]
RecordedForward = Callable[[Tensor, Record], Tensor]
"""A forward pass that itself tells of calls which no hook sees."""


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Per-example cross entropy, the default loss."""
    return functional.cross_entropy(outputs, targets, reduction="none")


def sample_losses(model: Forward, inputs: Tensor, targets: Tensor, loss: PerSampleLoss) -> Tensor:
    """The loss of each example."""
    return checked_loss(loss(model(inputs), targets), inputs.shape[0])


def watched_losses(model: Forward, inputs: Tensor, targets: Tensor, loss: PerSampleLoss) -> Tensor:
    """The same for a model or loss that is not known: what another forward pass left behind is refused."""
    with Watch() as watch:
        watch.own((inputs, targets))
        return sample_losses(model, inputs, targets, loss)


@dataclass
class _Record:
    module: nn.Module
    inputs: Tensor
    version: int
    edge: GradientEdge
    source: Node | None
    """What the input was computed by."""


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
        self._model, self._names, self._loss = model, names, loss
        self._forward: Forward = model if forward is None else lambda inputs: forward(inputs, self._record)
        self._chain = chain_of(model)
        self._alone: IsolatedModel | None = None
        self._complete = False
        self._handles: list[RemovableHandle] = []
        self._local = threading.local()

    def __enter__(self) -> Self:
        if self._chain is None:
            self._alone = IsolatedModel(self._model, self._names)
        self._handles = [module.register_forward_hook(self._record, prepend=True) for module in self._names]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def run(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, dict[str, list[Call]]]:
        """Losses, and the calls by the module's name."""
        records: list[_Record] = []
        self._local.records = records
        try:
            with torch.enable_grad():
                losses = self._losses(inputs, targets)
        finally:
            self._local.records = None
        if self._alone is not None and not self._complete:
            _refuse_parameters_elsewhere(losses, records, self._alone.parameters)
            self._complete = True
        return losses.detach(), self._calls(losses, records, inputs.shape[0])

    def _losses(self, inputs: Tensor, targets: Tensor) -> Tensor:
        if self._alone is not None:
            return self._alone.losses(inputs, targets, self._loss)
        assert self._chain is not None
        if rank_after(self._chain, inputs.dim()) is None:
            raise CannotFuseError(f"inputs of shape {tuple(inputs.shape[1:])} may be mixed by a layer that takes them")
        if self._loss is cross_entropy:
            return sample_losses(self._forward, inputs, targets, self._loss)
        return each_loss(self._loss, self._forward(inputs), targets)

    def _record(self, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        records: list[_Record] | None = getattr(self._local, "records", None)
        if records is None or module not in self._names or not output.requires_grad:
            return
        if len(args) != 1:
            raise CannotFuseError(f"{self._names[module]} is called with {len(args)} positional arguments, not one")
        # The edge, not the tensor: an in-place activation that follows would make the tensor stand for its own output.
        edge, source = get_gradient_edge(output), args[0].grad_fn
        records.append(_Record(module, args[0].detach(), args[0]._version, edge, source))

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


def _refuse_parameters_elsewhere(losses: Tensor, records: Sequence[_Record], parameters: Collection[int]) -> None:
    """The calls that were seen must be all that the loss knows of the parameters.

    Inside of vmap nothing can hang on values, so one look at the graph holds for all examples.
    """
    seen: set[Node | None] = {record.edge.node for record in records} | {None}
    waiting = [losses.grad_fn, *(record.source for record in records)]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if id(getattr(node, "variable", None)) in parameters:
            raise CannotFuseError("a parameter is used outside the module that owns it")
        waiting += [following for following, _ in node.next_functions]
