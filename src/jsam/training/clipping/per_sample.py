"""Per-sample gradients for any model: `torch.func` in chunks, and one example after another where that cannot go."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from jsam.training.clipping.capture import PerSampleLoss, sample_losses

Gradients = tuple[Tensor, Tensor]
"""Flat per-sample gradients (n, parameters) and losses (n,)."""


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: value for name, value in model.named_parameters() if value.requires_grad}


def vectorised(model: nn.Module, loss: PerSampleLoss) -> Callable[[Tensor, Tensor], Gradients]:
    """A function of (inputs, targets) that gives all per-sample gradients at once."""
    frozen = {name: value.detach() for name, value in model.named_parameters() if not value.requires_grad}
    buffers = dict(model.named_buffers())

    def single(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        outputs = functional_call(model, (parameters, frozen, buffers), (x.unsqueeze(0),))
        return loss(outputs, y.unsqueeze(0)).squeeze(0)

    mapped = vmap(grad_and_value(single), in_dims=(None, 0, 0), randomness="different")

    def compute(inputs: Tensor, targets: Tensor) -> Gradients:
        parameters = {name: value.detach() for name, value in trainable(model).items()}
        gradients, losses = mapped(parameters, inputs, targets)
        return torch.cat([gradients[name].flatten(1) for name in parameters], dim=1), losses

    return compute


def one_by_one(model: nn.Module, loss: PerSampleLoss) -> Callable[[Tensor, Tensor], Gradients]:
    """The same by one backward pass an example."""

    def compute(inputs: Tensor, targets: Tensor) -> Gradients:
        pairs = list(_each(model, loss, inputs, targets))
        return torch.stack([gradient for gradient, _ in pairs]), torch.stack([value for _, value in pairs])

    return compute


def _each(model: nn.Module, loss: PerSampleLoss, inputs: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    parameters = list(trainable(model).values())
    for i in range(inputs.shape[0]):
        with torch.enable_grad():
            value = sample_losses(model, inputs[i : i + 1], targets[i : i + 1], loss).squeeze(0)
        found: Sequence[Tensor | None] = torch.autograd.grad(value, parameters, allow_unused=True)
        flat = [
            (g if g is not None else torch.zeros_like(p)).reshape(-1) for g, p in zip(found, parameters, strict=True)
        ]
        yield torch.cat(flat), value.detach()
