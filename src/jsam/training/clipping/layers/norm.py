"""GroupNorm and LayerNorm: the affine gradients are small, so each example's is simply formed and kept."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional

from jsam.training.clipping.layers.layer_rule import Call, LayerRule, row_norms
from jsam.training.clipping.sums import Factors


class AffineRule(LayerRule):
    """Scale gradient Σ g·x̂ and shift gradient Σ g, over everything the parameters are shared by."""

    _kept: dict[str, Tensor]

    @abstractmethod
    def normalised(self, inputs: Tensor) -> Tensor:
        """x̂, the input before scale and shift."""

    @abstractmethod
    def pooled(self, values: Tensor) -> Tensor:
        """Sums over shared positions: (n, parameter entries)."""

    def columns(self, calls: Sequence[Call]) -> int:
        return len(self.parameters)

    def open(self, calls: Sequence[Call], parts: Tensor) -> None:
        self._kept = {}
        for call in calls:
            for key in self.parameters:
                values = call.grad_outputs
                if key == "weight":
                    values = values * self.normalised(call.inputs)
                gradient = self.pooled(values)
                self._kept[key] = self._kept[key] + gradient if key in self._kept else gradient
        for part, gradient in zip(parts, self._kept.values(), strict=True):
            part.copy_(row_norms(gradient))

    def finish(self, factors: Factors) -> None:
        for key, gradient in self._kept.items():
            self._add_rows(key, gradient, factors)
        self._kept = {}


class GroupNormRule(AffineRule):
    """nn.GroupNorm on inputs (n, channels, ...)."""

    def normalised(self, inputs: Tensor) -> Tensor:
        return functional.group_norm(inputs, self.module.num_groups, eps=self.module.eps)

    def pooled(self, values: Tensor) -> Tensor:
        return values.flatten(2).sum(dim=2) if values.dim() > 2 else values


class LayerNormRule(AffineRule):
    """nn.LayerNorm on inputs (n, ..., normalised dimensions)."""

    def normalised(self, inputs: Tensor) -> Tensor:
        return functional.layer_norm(inputs, self.module.normalized_shape, eps=self.module.eps)

    def pooled(self, values: Tensor) -> Tensor:
        return values.reshape(values.shape[0], -1, math.prod(self.module.normalized_shape)).sum(dim=1)
