"""Weighted sums of per-example gradients, with a bound on their rounding that holds for every input.

On a CPU a few long gradients of one weight are added in fp32, which reads them where they lie. All else is fp64: what
is added passes at most `LONGEST_CHAIN` roundings before its block is full, and a few where blocks are added; then they
are joined without error (Knuth's two-sum keeps what an addition loses). docs/theory.md derives from this by how much
one record may move the sum.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from jsam.training.clipping.chunking import spans
from jsam.training.clipping.clipped_sum import GROUP, LONGEST_CHAIN, clip_factors
from jsam.training.clipping.workspace import Workspace

# Records that one product takes. On a CPU a block's; on CUDA many products at once, whose results are added up: both
# numbers together are within the chain.
_RECORDS = {"cpu": LONGEST_CHAIN, "cuda": 128}
_PRODUCTS = 127
# Numbers widened at a time: on a CPU what stays in a cache.
_ENTRIES = {"cpu": 1 << 18, "cuda": 1 << 27}
_BLOCKS = 32
# Entries of a gradient from which on a copy in fp64 costs more than small sums in fp32 do.
_LONG_ROW = 1 << 9


class Run(NamedTuple):
    """Records start to stop, all of one weight."""

    start: int
    stop: int
    weight: float


class Factors:
    """What each record is multiplied by, and which records count.

    A factor of 0 is not enough for a record that counts as nothing: 0 times infinity is not a number. So `keep` has all
    bits set for a record that counts and none for one that does not.
    """

    def __init__(self, clipped: Tensor, weights: Tensor, unit: float) -> None:
        """`clipped` are clipping factors in fp64, 0 for records that count as nothing."""
        self._clipped, self._weights, self._unit = clipped, weights, unit

    @classmethod
    def of(cls, norms: Tensor, weights: Tensor, clip_norm: float) -> Factors:
        """A record whose norm is not finite counts as nothing, at the same price. Norms and weights are fp64."""
        clipped = clip_factors(norms, clip_norm).nan_to_num_(nan=0.0)
        return cls(clipped, weights, clip_norm if math.isfinite(clip_norm) else 1.0)

    @cached_property
    def values(self) -> Tensor:
        """Clipping factors times weights, in fp64."""
        return self._clipped * self._weights

    @cached_property
    def keep(self) -> Tensor:
        return self._kept(torch.int64)

    @cached_property
    def short_keep(self) -> Tensor:
        """`keep`, as a column, for rows in fp32, which have half as many bits."""
        return self._kept(torch.int32)[:, None]

    @cached_property
    def shares(self) -> Tensor:
        """Clipping factors over the clipping norm in fp32: with them no product is longer than 1, so fp32 has the range
        for it; `runs` say what they weigh."""
        return (self._clipped / self._unit).float()

    @cached_property
    def runs(self) -> list[Run]:
        return runs_of(self._weights, self._unit)

    def _kept(self, dtype: torch.dtype) -> Tensor:
        return self.values.ne(0.0).to(dtype).neg_()


def runs_of(weights: Tensor, unit: float) -> list[Run]:
    """Stretches of equal weight, times `unit`. Weights of 0 go with any other, so that they change nothing."""
    values = weights.tolist()
    if values.count(values[0]) == len(values):
        return [Run(0, len(values), values[0] * unit)]
    runs, start, current = [], 0, 0.0
    for i, weight in enumerate(values):
        if weight not in (0.0, current):
            if current:
                runs.append(Run(start, i, current * unit))
                start = i
            current = weight
    return [*runs, Run(start, len(values), current * unit)]


class RunningSum:
    """A flat sum that goes on over blocks, chunks and calls."""

    def __init__(self, size: int, device: torch.device) -> None:
        self._size, self._device = size, device
        self._kind = "cpu" if device.type == "cpu" else "cuda"
        self._group: Tensor | None = None
        self._grouped, self._weight = 0, 0.0
        self._block: Tensor | None = None
        self._filled = 0
        self._blocks: Tensor | None = None
        self._joined = 0
        self._high: Tensor | None = None
        self._low: Tensor | None = None

    def add_rows(self, rows: Tensor, factors: Factors, workspace: Workspace) -> None:
        """Σ_i factor_i row_i of rows (n, columns), or (pieces, n, columns of a piece).

        The rows of records that count as nothing become 0.
        """
        rows = rows.view(-1, *rows.shape[-2:])
        pieces, n, size = rows.shape
        if self._kind == "cpu" and rows.dtype == torch.float32 and pieces * size >= _LONG_ROW:
            rows.view(torch.int32).bitwise_and_(factors.short_keep)
            for run in factors.runs:
                self._add_run(rows, factors.shares, run)
            if n >= GROUP:
                # Else the groups of the next block, too, would begin and end within it.
                self._close_group()
            return
        for start, stop in spans(n, self._most(pieces * size)):
            left = factors.values[start:stop]
            right = keep_out(_widened(rows[:, start:stop], workspace), factors.keep[start:stop, None])
            if self._kind == "cpu":
                total = self._room(stop - start).view(pieces, 1, size)
                total.baddbmm_(left.expand(pieces, 1, stop - start), right)
            else:
                self.join(torch.cat([_joint(left[:, None], piece).view(-1) for piece in right]))

    def _add_run(self, rows: Tensor, shares: Tensor, run: Run) -> None:
        """In fp32, few records of equal weight at a time."""
        pieces, _, size = rows.shape
        if self._grouped and run.weight and self._weight and run.weight != self._weight:
            self._close_group()
        # Records of weight 0 alone must not end a group: others would be grouped otherwise than if one of them counted.
        weight, start = run.weight or self._weight, run.start
        while start < run.stop:
            self._weight = weight
            if self._group is None:
                self._group = torch.empty(self._size, dtype=torch.float32)
            stop = min(run.stop, start + GROUP - self._grouped)
            # What an earlier group left behind is not read.
            self._group.view(pieces, 1, size).baddbmm_(
                shares[start:stop].expand(pieces, 1, stop - start), rows[:, start:stop], beta=min(self._grouped, 1)
            )
            self._grouped += stop - start
            start = stop
            if self._grouped == GROUP:
                self._close_group()

    def _close_group(self) -> None:
        if self._grouped:
            assert self._group is not None
            self._room(1).add_(self._group, alpha=self._weight)
            self._grouped, self._weight = 0, 0.0

    def add_products(self, left: Tensor, right: Tensor, factors: Factors, workspace: Workspace) -> None:
        """Σ_i factor_i left_i right_iᵀ of (n, rows) and (n, columns)."""
        rows, columns = left.shape[1], right.shape[1]
        # Also for the results of products, each of so many records.
        width = max(rows, columns, rows * columns // _RECORDS["cuda"])
        for start, stop in spans(len(left), self._most(width)):
            values, keep = factors.values[start:stop], factors.keep[start:stop]
            scaled = keep_out(_widened(left[start:stop], workspace, "left"), keep[:, None]).mul_(values[:, None])
            other = keep_out(_widened(right[start:stop], workspace), keep[:, None])
            if self._kind == "cpu":
                self._room(stop - start).view(rows, columns).addmm_(scaled.t(), other)
            else:
                self.join(_joint(scaled, other).view(-1))

    def add_at(self, places: Tensor, values: Tensor, factors: Factors) -> None:
        """Adds factor_i values_i (n, some, width) to the rows `places` (n, some); each record at most once to a row.

        `values` are fp64 and change. Zeros may come more than once.
        """
        width = values.shape[2]
        keep_out(values, factors.keep[:, None, None]).mul_(factors.values[:, None, None])
        for start, stop in spans(len(places), LONGEST_CHAIN):
            total = self._room(stop - start).view(-1, width)
            rows, of_rows = places[start:stop].reshape(-1), values[start:stop].reshape(-1, width)
            add_in_order(total, rows, of_rows, sort=total.is_cuda)

    def join(self, total: Tensor) -> None:
        """Adds a sum in fp64 that has passed at most `LONGEST_CHAIN` roundings; its memory is taken over."""
        if self._high is None:
            self._high = total
            return
        if self._low is None:
            self._low = torch.zeros_like(self._high)
        high = self._high + total
        own = high - self._high
        self._low += (self._high - (high - own)).add_(total - own)
        self._high = high

    def value(self) -> Tensor:
        """The sum so far, rounded once."""
        self._close_group()
        self._close()
        if self._blocks is not None:
            self.join(self._blocks)
            self._blocks = None
        if self._high is None:
            return torch.zeros(self._size, dtype=torch.float64, device=self._device)
        return self._high if self._low is None else self._high + self._low

    def _most(self, width: int) -> int:
        """Records at a time."""
        fewest, most = _RECORDS[self._kind], _RECORDS[self._kind]
        if self._kind == "cpu":
            fewest = 1
        else:
            most *= _PRODUCTS
        return max(fewest, min(most, _ENTRIES[self._kind] // width))

    def _room(self, records: int) -> Tensor:
        """Where so many records may be added, each by one addition."""
        if self._block is not None and self._filled + records > LONGEST_CHAIN:
            self._close()
        if self._block is None:
            self._block = torch.zeros(self._size, dtype=torch.float64, device=self._device)
        self._filled += records
        return self._block

    def _close(self) -> None:
        """The block to the blocks before it; those, when they are many, to the sum without error."""
        if not self._filled or self._block is None:
            return
        if self._blocks is None:
            self._blocks, self._block, self._joined = self._block, None, 1
        else:
            self._blocks.add_(self._block)
            self._block.zero_()
            self._joined += 1
        self._filled = 0
        if self._joined == _BLOCKS:
            self.join(self._blocks)
            self._blocks = None


def keep_out(values: Tensor, keep: Tensor) -> Tensor:
    """Sets the fp64 rows of records that count as nothing to 0, by the same operation on all."""
    values.view(torch.int64).bitwise_and_(keep)
    return values


def add_in_order(total: Tensor, rows: Tensor, values: Tensor, *, sort: bool) -> None:
    """total[rows_i] += values_i, repeatable to the bit.

    On CUDA `index_add_` adds by atomic operations, in whatever order they come. `index_put_` sorts the rows first and
    then adds each row's values in order, so that is the one to take there.
    """
    if sort:
        total.index_put_((rows,), values, accumulate=True)
    else:
        total.index_add_(0, rows, values)


def _widened(values: Tensor, workspace: Workspace, name: str = "right") -> Tensor:
    """A copy in fp64."""
    copy = workspace.take(f"widened {name}", tuple(values.shape), like=values, dtype=torch.float64)
    return copy.copy_(values)


def _joint(left: Tensor, right: Tensor) -> Tensor:
    """leftᵀ right as many short products at once: a card has too much to do for one, and a chain would be too long."""
    size = _RECORDS["cuda"]
    whole = len(left) // size
    first = whole * size
    total = left[first:].t() @ right[first:]
    if not whole:
        return total
    lefts, rights = (side[:first].view(whole, size, side.shape[1]) for side in (left, right))
    return total.add_(torch.bmm(lefts.transpose(1, 2), rights).sum(dim=0))
