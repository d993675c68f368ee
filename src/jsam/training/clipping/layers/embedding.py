"""Embedding: an example's gradient has one row a distinct token, the sum of the gradients where that token stands."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from jsam.training.clipping.layers.base import BlockFloats, Call, LayerRule
from jsam.training.clipping.workspace import Workspace


class EmbeddingRule(LayerRule):
    """nn.Embedding on token ids (n, ...)."""

    _tokens: Tensor | None = None
    _gradients: Tensor
    _parts: Tensor

    def __init__(self, name: str, module: nn.Embedding, workspace: Workspace) -> None:
        super().__init__(name, module, workspace)
        self._width, self._padding = module.embedding_dim, module.padding_idx

    def columns(self, calls: Sequence[Call]) -> int:
        return 1

    def block_floats(self, calls: Sequence[Call]) -> BlockFloats:
        length = sum(call.inputs[0].numel() for call in calls)
        return BlockFloats(scratch=2 * length * (2 * length + self._width))

    def open(self, calls: Sequence[Call], parts: Tensor) -> None:
        n = parts.shape[1]
        tokens = torch.cat([call.inputs.reshape(n, -1) for call in calls], dim=1)
        gradients = torch.cat([call.grad_outputs.reshape(n, -1, self._width) for call in calls], dim=1)
        if self._padding is not None:
            gradients = gradients * (tokens != self._padding).unsqueeze(2)
        self._tokens, self._gradients, self._parts = tokens, gradients, parts

    def fill_norms(self, start: int, stop: int) -> None:
        assert self._tokens is not None
        tokens, gradients = self._tokens[start:stop], self._gradients[start:stop].double()
        # Pairs at which the same token stands. fp64, because gradients of one token may cancel.
        products = torch.bmm(gradients, gradients.transpose(1, 2))
        products.mul_(tokens.unsqueeze(2) == tokens.unsqueeze(1))
        self._parts[0, start:stop] = products.sum(dim=(1, 2)).clamp_(min=0.0).sqrt_()

    def add(self, start: int, stop: int, factors: Tensor) -> None:
        pass

    def finish(self, factors: Tensor) -> None:
        assert self._tokens is not None
        rows = self.parameters["weight"].shape[0]
        total = self._sum("weight", rows * self._width, factors).view(rows, self._width)
        scaled = self._gradients * factors[:, None, None]
        add_rows(total, self._tokens.reshape(-1), scaled.view(-1, self._width), sort=total.is_cuda)
        self._tokens = None


def add_rows(total: Tensor, rows: Tensor, values: Tensor, *, sort: bool) -> None:
    """total[rows_i] += values_i, repeatable to the bit.

    On CUDA `index_add_` adds by atomic operations, in whatever order they come. `index_put_` sorts the rows first and
    then adds each row's values in order, so that is the one to take there.
    """
    if sort:
        total.index_put_((rows,), values, accumulate=True)
    else:
        total.index_add_(0, rows, values)
