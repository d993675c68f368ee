"""Layers whose gradient is a sum of outer products: Linear over a sequence, Conv2d over its patches.

Per example the gradient is Gᵀ U with G (positions × out) and U (positions × in). It is formed block by block and kept
until the clipping factors are known, so that norm and weighted sum are of the same numbers.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from jsam.training.clipping.clipped_sum import LONGEST_FP32_SUM
from jsam.training.clipping.layers.layer_rule import BlockFloats, Call, LayerRule, row_norms
from jsam.training.clipping.sums import Factors

_MOST_VIEWS = 8


@dataclass(frozen=True)
class _Kept:
    """Views of the memory for a block's gradients, one a step: as products are written, norms taken and sums read."""

    products: list[Tensor]
    table: Tensor
    memory: Tensor


class ProductRule(LayerRule):
    """Weight gradient Gᵀ U, computed in `steps` pieces of its columns; bias gradient the column sums of G."""

    _calls: Sequence[Call] = ()
    _lefts: Sequence[Tensor] = ()
    _sources: Sequence[Tensor] = ()
    _norms: Tensor
    _bias: Tensor | None = None
    _generation = -1
    _kept_views: dict[int, _Kept]

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
    def scratch_floats(self, call: Call) -> int:
        """Scratch memory that `right` takes for one example."""

    @abstractmethod
    def left(self, call: Call) -> Tensor:
        """Gᵀ of the chunk: (n × groups, rows ÷ groups, positions)."""

    @abstractmethod
    def source(self, call: Call) -> Tensor:
        """What `right` reads, prepared for the whole chunk."""

    @abstractmethod
    def right(self, call: Call, source: Tensor, start: int, stop: int) -> Sequence[Tensor]:
        """U of a block, or Uᵀ if transposed, one a step; may be scratch, valid until the next call."""

    @abstractmethod
    def bias_gradient(self, call: Call) -> Tensor:
        """Per-example bias gradient of the whole chunk: (n, rows)."""

    def columns(self, calls: Sequence[Call]) -> int:
        weight = 0 if not self.trains("weight") else self.steps * self._norm_columns
        return weight + (1 if self.trains("bias") else 0)

    def block_floats(self, calls: Sequence[Call]) -> BlockFloats:
        if not self.trains("weight"):
            return BlockFloats()
        return BlockFloats(self.steps * self.rows * self.width, max(self.scratch_floats(call) for call in calls))

    def open(self, calls: Sequence[Call], parts: Tensor) -> None:
        self._calls = calls
        if self.trains("bias"):
            bias = self.bias_gradient(calls[0])
            for call in calls[1:]:
                bias = bias + self.bias_gradient(call)
            parts[-1] = row_norms(bias)
            self._bias = bias
        if not self.trains("weight"):
            return
        lefts = [self.left(call) for call in calls]
        self._lefts = [left.transpose(1, 2) for left in lefts] if self.transposed else lefts
        self._sources = [self.source(call) for call in calls]
        entries = parts[: self.steps * self._norm_columns]
        self._norms = entries.view(self.steps, self._norm_columns, -1).transpose(1, 2)
        # Blocks of many sizes come and go when rounds differ in size.
        if self._generation != self.workspace.generation or len(self._kept_views) > _MOST_VIEWS:
            self._generation = self.workspace.generation
            self.forget_views()

    def forget_views(self) -> None:
        """Lets go of views of scratch memory that has been replaced."""
        self._kept_views = {}

    def fill_norms(self, start: int, stop: int) -> None:
        if not self._by_blocks:
            return
        kept = self._kept(stop - start)
        for index, (call, source) in enumerate(zip(self._calls, self._sources, strict=True)):
            left = self._lefts[index][start * self.groups : stop * self.groups]
            for products, right in zip(kept.products, self.right(call, source, start, stop), strict=True):
                first, second = (right, left) if self.transposed else (left, right)
                if index == 0:
                    torch.bmm(first, second, out=products)
                else:
                    products.baddbmm_(first, second)
        if kept.table.shape[3] <= LONGEST_FP32_SUM:
            torch.linalg.vector_norm(kept.table, dim=3, out=self._norms[:, start:stop])
        else:
            self._norms[:, start:stop] = torch.linalg.vector_norm(kept.table, dim=3, dtype=torch.float64)

    def add(self, start: int, stop: int, factors: Factors) -> None:
        if self._by_blocks:
            self._add_rows("weight", self._kept(stop - start).memory, factors)

    def finish(self, factors: Factors) -> None:
        if self._bias is not None:
            self._add_rows("bias", self._bias, factors)
        self._calls, self._lefts, self._sources, self._bias = (), (), (), None

    @property
    def _by_blocks(self) -> bool:
        """Without calls there is nothing to do: a subclass has taken the chunk in a way of its own."""
        return bool(self._calls) and self.trains("weight")

    @property
    def _norm_columns(self) -> int:
        """Pieces in which a step's norms are taken: few, yet short enough for fp32; 1 if no division is even."""
        size = self.rows * self.width
        fewest = -(-size // LONGEST_FP32_SUM)
        return next((k for k in range(fewest, 4 * fewest) if size % k == 0), 1)

    def _kept(self, n: int) -> _Kept:
        kept = self._kept_views.get(n)
        if kept is None:
            size = self.rows * self.width
            memory = self.workspace.take(f"kept:{self.name}", (self.steps, n, size), like=self._norms)
            rows = self.rows // self.groups
            matrix = (self.width, rows) if self.transposed else (rows, self.width)
            kept = _Kept(
                products=[piece.view(n * self.groups, *matrix) for piece in memory],
                table=memory.view(self.steps, n, self._norm_columns, -1),
                memory=memory,
            )
            self._kept_views[n] = kept
        return kept
