"""Layers whose gradient is a sum of outer products: Linear over a sequence, Conv2d over its patches.

Per example the gradient is Gᵀ U with G (positions × out) and U (positions × in). Either it is formed block by block
and kept until the clipping factors are known, so that norm and weighted sum share one pass; or, when the layer is large
and the positions few, its norm comes from the two Gram matrices and the weighted sum from one more product.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from jsam.training.clipping.layers.base import BlockFloats, Call, LayerRule, add_weighted, row_norms

# How many multiply-adds one kept gradient entry is worth: it is written once and read twice.
_ENTRY_COST = 16


class ProductRule(LayerRule):
    """Weight gradient Gᵀ U, computed in `steps` pieces of its columns; bias gradient the column sums of G."""

    _calls: Sequence[Call] = ()
    _parts: Tensor
    _bias: Tensor | None = None
    _gram = False

    rows: int
    """Rows of Gᵀ U: output features or channels."""
    width: int
    """Columns of Gᵀ U in one step."""
    steps: int = 1
    transposed: bool = False
    """Whether Uᵀ G is computed instead: quicker when the positions of U lie next to each other."""
    groups: int = 1
    """Independent products the rows are divided among; blocks then have n × groups matrices."""

    @abstractmethod
    def positions(self, call: Call) -> int:
        """Outer products an example contributes in this call."""

    @abstractmethod
    def scratch_floats(self, call: Call) -> int:
        """Scratch memory that `right` takes for one example."""

    @abstractmethod
    def left(self, call: Call, start: int, stop: int) -> Tensor:
        """Gᵀ of a block: (n × groups, rows ÷ groups, positions)."""

    @abstractmethod
    def right(self, call: Call, start: int, stop: int) -> list[Tensor]:
        """U of a block, one (n × groups, positions, width) a step; may be scratch, valid until the next call."""

    @abstractmethod
    def bias_gradient(self, call: Call) -> Tensor:
        """Per-example bias gradient of the whole chunk: (n, rows)."""

    @abstractmethod
    def weighted_weight_gradient(self, call: Call, factors: Tensor) -> Tensor:
        """Σ_i factors_i Gᵢᵀ Uᵢ as (steps, rows · width), in the order of the kept gradients but without them."""

    def uses_gram(self, calls: Sequence[Call]) -> bool:
        # Gram matrices are formed in fp64 (twice the cost): their sum cancels, and a norm must not come out too small.
        length = sum(self.positions(call) for call in calls)
        gram = 2 * length * length * (self.rows + self.groups * self.steps * self.width)
        return gram < _ENTRY_COST * self.steps * self.rows * self.width

    def columns(self, calls: Sequence[Call]) -> int:
        weight = 0 if not self.trains("weight") else 1 if self.uses_gram(calls) else self.steps * self._norm_columns
        return weight + (1 if self.trains("bias") else 0)

    def block_floats(self, calls: Sequence[Call]) -> BlockFloats:
        if not self.trains("weight"):
            return BlockFloats()
        if self.uses_gram(calls):
            length = sum(self.positions(call) for call in calls)
            return BlockFloats(scratch=4 * self.groups * length * (length + self.steps * self.width))
        return BlockFloats(self.steps * self.rows * self.width, max(self.scratch_floats(call) for call in calls))

    def open(self, calls: Sequence[Call], parts: Tensor) -> None:
        self._calls, self._parts, self._gram = calls, parts, self.uses_gram(calls)
        if self.trains("bias"):
            bias = self.bias_gradient(calls[0])
            for call in calls[1:]:
                bias = bias + self.bias_gradient(call)
            parts[:, -1] = row_norms(bias)
            self._bias = bias

    def fill_norms(self, start: int, stop: int) -> None:
        if not self.trains("weight"):
            return
        if self._gram:
            self._parts[start:stop, 0] = self._gram_norms(start, stop)
            return
        kept = self._kept(stop - start)
        for index, call in enumerate(self._calls):
            left = self.left(call, start, stop)
            for piece, right in zip(kept, self.right(call, start, stop), strict=True):
                first, second = (right.transpose(1, 2), left.transpose(1, 2)) if self.transposed else (left, right)
                products = piece.view(left.shape[0], first.shape[1], second.shape[2])
                if index == 0:
                    torch.bmm(first, second, out=products)
                else:
                    products.baddbmm_(first, second)
        norms = torch.linalg.vector_norm(kept.view(self.steps, stop - start, self._norm_columns, -1), dim=3)
        self._parts[start:stop, : self.steps * self._norm_columns] = norms.transpose(0, 1).flatten(1)

    def add(self, start: int, stop: int, factors: Tensor) -> None:
        if self.trains("weight") and not self._gram:
            for total, piece in zip(self._weight_sum(factors), self._kept(stop - start), strict=True):
                add_weighted(total, piece, factors)

    def finish(self, factors: Tensor) -> None:
        if self._bias is not None:
            add_weighted(self._sum("bias", self.rows, factors), self._bias, factors)
        if self.trains("weight") and self._gram:
            for call in self._calls:
                self._weight_sum(factors).add_(self.weighted_weight_gradient(call, factors))
        self._calls, self._bias = (), None
        del self._parts

    @property
    def _norm_columns(self) -> int:
        """Pieces in which a step's norms are taken: few, yet short enough for an accurate sum in fp32."""
        size = self.rows * self.width
        return next((k for k in range(1, self.rows) if self.rows % k == 0 and size // k <= 4096), self.rows)

    def _weight_sum(self, like: Tensor) -> Tensor:
        return self._sum("weight", self.steps * self.rows * self.width, like).view(self.steps, -1)

    def _kept(self, n: int) -> Tensor:
        return self.workspace.take(f"kept:{self.name}", (self.steps, n, self.rows * self.width), like=self._parts)

    def _gram_norms(self, start: int, stop: int) -> Tensor:
        # .double() copies, so scratch patches of one call survive the unfolding of the next.
        left = torch.cat([self.left(call, start, stop).double() for call in self._calls], dim=2)
        right = torch.cat([torch.cat(self.right(call, start, stop), dim=2).double() for call in self._calls], dim=1)
        products = torch.bmm(left.transpose(1, 2), left).mul_(torch.bmm(right, right.transpose(1, 2)))
        return products.view(stop - start, -1).sum(dim=1).clamp_(min=0.0).sqrt_()
