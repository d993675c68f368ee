"""The readable twin: client by client, example by example, exactly as the definition says.

It shares no code with the fused path, so that agreement between the two means something. Use it to check, not to train.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from jsam.errors import InputError


class ClientBatch(NamedTuple):
    """All samples of one client, and how many times the client was drawn this round."""

    inputs: Tensor
    targets: Tensor
    multiplicity: int = 1


def reference_clipped_sum(
    model: nn.Module,
    clients: Sequence[ClientBatch],
    *,
    clip_norm: float,
    per_round: int,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Tensor:
    """Σ_k (m_k / K) · mean over client k's examples of its clipped gradients, flat; noise not included."""
    if per_round < 1:
        raise InputError(f"per_round is {per_round}; it must be at least 1")
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    total = torch.cat([torch.zeros_like(parameter).flatten() for parameter in parameters]).double()
    for client in clients:
        client_sum = torch.zeros_like(total)
        for x, y in zip(client.inputs, client.targets, strict=True):
            client_sum += _clipped_gradient(model, parameters, x, y, clip_norm, loss)
        total += client.multiplicity / per_round * client_sum / len(client.inputs)
    return total.to(parameters[0].dtype)


def _clipped_gradient(
    model: nn.Module,
    parameters: list[nn.Parameter],
    x: Tensor,
    y: Tensor,
    clip_norm: float,
    loss: Callable[[Tensor, Tensor], Tensor] | None,
) -> Tensor:
    outputs, target = model(x.unsqueeze(0)), y.unsqueeze(0)
    value = functional.cross_entropy(outputs, target) if loss is None else loss(outputs, target).sum()
    gradients: Sequence[Tensor | None] = torch.autograd.grad(value, parameters, allow_unused=True)
    pieces = [torch.zeros_like(p) if g is None else g for g, p in zip(gradients, parameters, strict=True)]
    gradient = torch.cat([piece.flatten() for piece in pieces]).double()
    norm = float(torch.linalg.vector_norm(gradient))
    return gradient if norm <= clip_norm else gradient * (clip_norm / norm)
