"""Embedding: an example's gradient has one row a distinct token, the sum of the gradients where that token stands."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from jsam.training.clipping.layers.layer_rule import BlockFloats, Call, LayerRule
from jsam.training.clipping.sums import Factors


class EmbeddingRule(LayerRule):
    """nn.Embedding on token ids (n, ...)."""

    _tokens: Tensor | None = None
    _gradients: Tensor
    _parts: Tensor
    _kept: Tensor

    def columns(self, calls: Sequence[Call]) -> int:
        return 1

    def block_floats(self, calls: Sequence[Call]) -> BlockFloats:
        length, width = sum(call.inputs[0].numel() for call in calls), self.module.embedding_dim
        return BlockFloats(kept=2 * length * width, scratch=2 * length * (2 * length + width))

    def open(self, calls: Sequence[Call], parts: Tensor) -> None:
        n = parts.shape[1]
        tokens = torch.cat([call.inputs.reshape(n, -1) for call in calls], dim=1)
        gradients = torch.cat([call.grad_outputs.reshape(n, -1, self.module.embedding_dim) for call in calls], dim=1)
        if self.module.padding_idx is not None:
            gradients = gradients * (tokens != self.module.padding_idx).unsqueeze(2)
        self._tokens, self._gradients, self._parts = tokens, gradients, parts

    def fill_norms(self, start: int, stop: int) -> None:
        assert self._tokens is not None
        tokens, gradients = self._tokens[start:stop], self._gradients[start:stop].double()
        # Where a token stands first, the sum over all places where it stands; elsewhere 0.
        same = tokens.unsqueeze(2) == tokens.unsqueeze(1)
        first = same.to(torch.uint8).argmax(dim=2) == torch.arange(tokens.shape[1], device=tokens.device)
        self._kept = torch.bmm(same.double(), gradients).mul_(first.unsqueeze(2))
        self._parts[0, start:stop] = torch.linalg.vector_norm(self._kept, dim=(1, 2))

    def add(self, start: int, stop: int, factors: Factors) -> None:
        assert self._tokens is not None
        self._sum("weight").add_at(self._tokens[start:stop], self._kept, factors)
        del self._kept

    def finish(self, factors: Factors) -> None:
        self._tokens = None
