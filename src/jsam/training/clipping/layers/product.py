"""Layers whose gradient is a sum of outer products: Linear over a sequence, Conv2d over its patches.

Per example the gradient is Gᵀ U with G (positions × out) and U (positions × in). Either it is formed block by block
and kept until the clipping factors are known, so that norm and weighted sum share one pass; or, when the layer is large
and the positions few, its norm comes from the two Gram matrices and the weighted sum from one more product.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from jsam.training.clipping.layers.base import LARGEST_NORM, BlockFloats, Call, LayerRule, add_weighted, row_norms
from jsam.training.clipping.result import LONGEST_FP32_SUM

# How many multiply-adds one kept gradient entry is worth: it is written once and read twice.
_ENTRY_COST = 16
_MOST_VIEWS = 8


@dataclass(frozen=True)
class _Kept:
    """Views of the memory for a block's gradients, one a step: as products are written, norms taken and sums read."""

    products: list[Tensor]
    table: Tensor
    rows: list[Tensor]


class ProductRule(LayerRule):
    """Weight gradient Gᵀ U, computed in `steps` pieces of its columns; bias gradient the column sums of G."""

    _calls: Sequence[Call] = ()
    _lefts: Sequence[Tensor] = ()
    _sources: Sequence[Tensor] = ()
    _norms: Tensor
    _totals: Sequence[Tensor] = ()
    _bias: Tensor | None = None
    _gram = False
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
    def positions(self, call: Call) -> int:
        """Outer products an example contributes in this call."""

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
        self._calls, self._gram = calls, self.uses_gram(calls)
        if self.trains("bias"):
            bias = self.bias_gradient(calls[0])
            for call in calls[1:]:
                bias = bias + self.bias_gradient(call)
            parts[-1] = row_norms(bias)
            self._bias = bias
        if not self.trains("weight"):
            return
        lefts = [self.left(call) for call in calls]
        self._lefts = [left.transpose(1, 2) for left in lefts] if self.transposed and not self._gram else lefts
        self._sources = [self.source(call) for call in calls]
        if self._gram:
            self._norms = parts[0]
        else:
            entries = parts[: self.steps * self._norm_columns]
            self._norms = entries.view(self.steps, self._norm_columns, -1).transpose(1, 2)
            self._totals = list(self._weight_sum(parts))
        # Blocks of many sizes come and go when rounds differ in size.
        if self._generation != self.workspace.generation or len(self._kept_views) > _MOST_VIEWS:
            self._generation = self.workspace.generation
            self.forget_views()

    def forget_views(self) -> None:
        """Lets go of views of scratch memory that has been replaced."""
        self._kept_views = {}

    def fill_norms(self, start: int, stop: int) -> None:
        if not self.trains("weight"):
            return
        if self._gram:
            self._norms[start:stop] = self._gram_norms(start, stop)
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

    def add(self, start: int, stop: int, factors: Tensor) -> None:
        if self.trains("weight") and not self._gram:
            for total, rows in zip(self._totals, self._kept(stop - start).rows, strict=True):
                total.addmv_(rows, factors)

    def finish(self, factors: Tensor) -> None:
        if self._bias is not None:
            add_weighted(self._sum("bias", self.rows, factors), self._bias, factors)
        if self.trains("weight") and self._gram:
            for call in self._calls:
                self._weight_sum(factors).add_(self.weighted_weight_gradient(call, factors))
        self._calls, self._lefts, self._sources, self._totals, self._bias = (), (), (), (), None

    @property
    def _norm_columns(self) -> int:
        """Pieces in which a step's norms are taken: few, yet short enough for fp32; 1 if no division is even."""
        size = self.rows * self.width
        fewest = -(-size // LONGEST_FP32_SUM)
        return next((k for k in range(fewest, 4 * fewest) if size % k == 0), 1)

    def _weight_sum(self, like: Tensor) -> Tensor:
        return self._sum("weight", self.steps * self.rows * self.width, like).view(self.steps, -1)

    def _kept(self, n: int) -> _Kept:
        found = self._kept_views.get(n)
        if found is None:
            size = self.rows * self.width
            memory = self.workspace.take(f"kept:{self.name}", (self.steps, n, size), like=self._norms)
            rows = self.rows // self.groups
            matrix = (self.width, rows) if self.transposed else (rows, self.width)
            found = _Kept(
                products=[piece.view(n * self.groups, *matrix) for piece in memory],
                table=memory.view(self.steps, n, self._norm_columns, -1),
                rows=[piece.t() for piece in memory],
            )
            self._kept_views[n] = found
        return found

    def _gram_norms(self, start: int, stop: int) -> Tensor:
        lefts = [left[start * self.groups : stop * self.groups].double() for left in self._lefts]
        rights = []
        for call, source in zip(self._calls, self._sources, strict=True):
            # .double() copies, so scratch patches of one call survive the unfolding of the next.
            pieces = self.right(call, source, start, stop)
            rights.append(torch.cat([p.transpose(1, 2) if self.transposed else p for p in pieces], dim=2).double())
        left, right = torch.cat(lefts, dim=2), torch.cat(rights, dim=1)
        inner = torch.bmm(right, right.transpose(1, 2))
        beyond = (inner.diagonal(dim1=1, dim2=2) > LARGEST_NORM**2).view(stop - start, -1).any(dim=1)
        products = torch.bmm(left.transpose(1, 2), left).mul_(inner)
        norms = products.view(stop - start, -1).sum(dim=1).clamp_(min=0.0).sqrt_()
        return norms.masked_fill_(beyond, torch.inf)
