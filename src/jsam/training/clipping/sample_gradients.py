"""Per-sample gradients for any model: `torch.func` in chunks, and one example after another where that cannot go."""

from __future__ import annotations

import contextlib
import logging
import math
import random
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from jsam.errors import InputError
from jsam.training.clipping.capture import PerSampleLoss, cross_entropy, sample_losses, watched_losses
from jsam.training.clipping.isolation import copied, lone_loss
from jsam.training.clipping.rowwise import is_rowwise

Gradients = tuple[Tensor, Tensor]
"""Flat per-sample gradients (n, parameters) and losses (n,)."""

logger = logging.getLogger(__name__)


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: value for name, value in model.named_parameters() if value.requires_grad}


def vectorised(model: nn.Module, loss: PerSampleLoss) -> Callable[[Tensor, Tensor], Gradients]:
    """A function of (inputs, targets) that gives all per-sample gradients at once.

    Every call runs a fresh copy of the model: what its forward pass writes reaches neither the model nor a later call.
    """

    def compute(inputs: Tensor, targets: Tensor) -> Gradients:
        twin = copied(model)
        parameters = {name: value.detach() for name, value in trainable(twin).items()}
        rest = {name: value.detach() for name, value in twin.named_parameters() if not value.requires_grad}
        rest |= dict(twin.named_buffers())

        def single(given: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return lone_loss(lambda row: functional_call(twin, (given, rest), (row,)), loss, x, y, given)

        mapped = vmap(grad_and_value(single), in_dims=(None, 0, 0), randomness="different")
        gradients, losses = mapped(parameters, inputs, targets)
        return torch.cat([gradients[name].flatten(1) for name in parameters], dim=1), losses

    return compute


class StandIn:
    """The forward pass of an example that is nobody's; its backward pass runs where an example's forward pass fails.

    So one forward and one backward pass begin for each example, whichever of them fail. A pass that fails ends early:
    less is computed then by what was left of that pass, and never more.
    """

    def __init__(self, model: nn.Module, loss: PerSampleLoss, x: Tensor, y: Tensor) -> None:
        """A copy of the model as it is now runs (1, ...) inputs, for which it must not fail."""
        self._twin = copied(model)
        with generators_kept(x.device), torch.enable_grad():
            begin(0, x.device)
            self._losses = watched_losses(self._twin, x, y, loss)

    def gradient_or_nothing(
        self, twin: nn.Module, model: nn.Module, loss: PerSampleLoss, x: Tensor, y: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Gradient and loss of one example by the copy `twin` of the model; not numbers if it fails, whatever it does.

        A gradient that is not finite counts as nothing in every sum.
        """
        parameters = trainable(model).values()
        like, size = next(iter(parameters)), sum(value.numel() for value in parameters)
        nothing = like.new_full((size,), math.nan), like.new_full((), math.nan)
        own, losses = twin, None
        try:
            losses = watched_losses(twin, x, y, loss)
        except Exception as error:  # noqa: BLE001 - whatever a model raises, MemoryError too: one example may cause it
            logger.debug("an example fails: %s", error)
        failed = losses is None
        if losses is None:
            own, losses = self._twin, self._losses
        try:
            _refuse_reference(losses, model)
            found = _gradient(own, losses, keep_graph=failed)
        except Exception as error:  # noqa: BLE001 - as above
            logger.debug("the backward pass of an example fails: %s", error)
            return nothing
        return nothing if failed or found[0].shape != (size,) else found


def one_by_one(
    model: nn.Module, loss: PerSampleLoss, stand_in: StandIn | None = None
) -> Callable[[Tensor, Tensor], Gradients]:
    """The same by one backward pass an example.

    A model that is not known to keep nothing is copied afresh for each example, and its random numbers begin anew: how
    many of them one example uses must not show in what another one draws. With a stand-in this goes for any model, and
    an example at which it fails has a gradient that is not a number.
    """

    def compute(inputs: Tensor, targets: Tensor) -> Gradients:
        pairs = list(_each(model, loss, inputs, targets, stand_in))
        return torch.stack([gradient for gradient, _ in pairs]), torch.stack([value for _, value in pairs])

    return compute


def _each(
    model: nn.Module, loss: PerSampleLoss, inputs: Tensor, targets: Tensor, stand_in: StandIn | None
) -> Iterator[tuple[Tensor, Tensor]]:
    rows = list(zip(torch.split(inputs, 1), torch.split(targets, 1), strict=True))
    if stand_in is None and loss is cross_entropy and is_rowwise(model, inputs.dim()):
        for x, y in rows:
            with torch.enable_grad():
                yield _gradient(model, sample_losses(model, x, y, loss))
        return
    seeds = torch.randint(2**62, (len(rows),)).tolist()
    with generators_kept(inputs.device), torch.enable_grad():
        for seed, (x, y) in zip(seeds, rows, strict=True):
            begin(seed, inputs.device)
            twin = copied(model)
            if stand_in is not None:
                yield stand_in.gradient_or_nothing(twin, model, loss, x, y)
                continue
            losses = watched_losses(twin, x, y, loss)
            _refuse_reference(losses, model)
            yield _gradient(twin, losses)


def _refuse_reference(losses: Tensor, model: nn.Module) -> None:
    """A loss, or a method that was put on a module, may hold on to the model itself: its gradient would be lost."""
    if losses.requires_grad:
        parameters = list(trainable(model).values())
        gradients = torch.autograd.grad(losses.sum(), parameters, allow_unused=True, retain_graph=True)
        if any(gradient is not None for gradient in gradients):
            raise InputError(
                "the loss, or something patched into the model, computes with parameters that it holds itself; a loss "
                "may use outputs and targets only, and a module what belongs to it"
            )


def _gradient(model: nn.Module, losses: Tensor, *, keep_graph: bool = False) -> tuple[Tensor, Tensor]:
    parameters = list(trainable(model).values())
    value = losses.squeeze(0)
    gradients: Sequence[Tensor | None] = [None] * len(parameters)
    if value.requires_grad:
        gradients = torch.autograd.grad(value, parameters, allow_unused=True, retain_graph=keep_graph)
    pieces = [torch.zeros_like(p) if g is None else g for g, p in zip(gradients, parameters, strict=True)]
    return torch.cat([piece.reshape(-1) for piece in pieces]), value.detach()


@contextlib.contextmanager
def generators_kept(device: torch.device) -> Iterator[None]:
    """Whatever is drawn inside, from torch, numpy or Python, outside nothing was drawn."""
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002 - what a model may draw from
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            yield
        finally:
            np.random.set_state(numpy_state)  # noqa: NPY002
            random.setstate(python_state)


def begin(seed: int, device: torch.device) -> None:
    """All these generators begin at `seed`."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    random.seed(seed)
