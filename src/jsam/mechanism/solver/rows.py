"""Clients in rising order of virtual cost, sorted once and seen through prefix sums; and the same with one moved.

A row is a market. When one client's report moves, only its own place in the order changes, so nothing is sorted or
summed again: prefix sums of the moved order are read off those of the given one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cached_property

import numpy as np

from jsam.mechanism._arrays import FloatArray, IntArray
from jsam.mechanism.solver.profiles import two_thirds


class SortedRows:
    """Rows of virtual costs, each in rising order. Index arrays have shape (rows or 1, m)."""

    def __init__(self, v: FloatArray, order: IntArray | None = None, tie_order: IntArray | None = None) -> None:
        """Rows that are sorted already; `order` (rank -> client) and `tie_order` are for those whose clients move."""
        self.v = v
        self._order, self._tie_order = order, tie_order
        # One row serves any number of rows: it is all of them, and quicker to read without a second index.
        self._rows: IntArray | None = None if len(v) == 1 else np.arange(len(v))[:, None]
        self._weights = _prefix_sums(two_thirds(v))
        self._costs = _prefix_sums(v)

    @classmethod
    def of(cls, v: FloatArray, tie_order: IntArray | None = None) -> SortedRows:
        """One market or rows of them, sorted; equals go by `tie_order`, which no report may sway (default: position).

        A stable sort is slower, so it is used only if there are ties.
        """
        v = np.atleast_2d(v)
        order = np.argsort(v, axis=1)
        ordered = np.take_along_axis(v, order, axis=1)
        if np.any(ordered[:, 1:] == ordered[:, :-1]):
            if tie_order is None:
                order = np.argsort(v, axis=1, kind="stable")
            else:
                order = tie_order[np.argsort(v[:, tie_order], axis=1, kind="stable")]
            ordered = np.take_along_axis(v, order, axis=1)
        return cls(ordered, order, tie_order)

    @property
    def order(self) -> IntArray:
        """Rank -> client, a row for each market."""
        assert self._order is not None
        return self._order

    @cached_property
    def ties(self) -> IntArray:
        """Rank -> place in the tie order."""
        if self._tie_order is None:
            return self.order
        places = np.empty(len(self._tie_order), dtype=np.int64)
        places[self._tie_order] = np.arange(len(places))
        return np.asarray(places[self.order])

    @cached_property
    def _tie_keys(self) -> IntArray:
        """Of one market: numbers in rising order by virtual cost, then by place in the tie order."""
        v = self.v[0]
        level = np.concatenate([[0], np.cumsum(v[1:] > v[:-1])])
        return np.asarray(level * len(v) + self.ties[0])

    def take(self, rows: IntArray) -> SortedRows:
        """Some of the rows, in the given order, for sums and costs."""
        if self._rows is None:
            return self
        taken = copy.copy(self)
        taken._rows = self._rows[rows]
        return taken

    def weight_sum(self, count: IntArray) -> FloatArray:
        """Σ v^(2/3) over the `count` cheapest clients of each row."""
        return self._read(self._weights, count)

    def cost_sum(self, count: IntArray) -> FloatArray:
        """Σ v over the `count` cheapest clients of each row."""
        return self._read(self._costs, count)

    def cost_at(self, rank: IntArray) -> FloatArray:
        """v of the client at `rank`, counted from 0."""
        return self._read(self.v, rank)

    def _read(self, table: FloatArray, index: IntArray) -> FloatArray:
        return np.asarray(table[0][index] if self._rows is None else table[self._rows, index])

    def place(self, row: IntArray, rank: IntArray, v: FloatArray) -> IntArray:
        """Where the client of `rank` stands in its row once its virtual cost is v; among equals the tie order decides.

        Among many clients of one market it is looked up; of many markets each is counted through.
        """
        if len(self.v) > 1:
            others, own = self.v[row], self.ties[row, rank][:, None]
            before = (others < v[:, None]) | ((others == v[:, None]) & (self.ties[row] < own))
            before[np.arange(len(row)), rank] = False
            return np.asarray(before.sum(axis=1))
        costs, N = self.v[0], self.v.shape[1]
        left, right = (np.searchsorted(costs, v, side=side) for side in ("left", "right"))
        level = self._tie_keys[np.minimum(left, N - 1)] // N
        keyed = np.searchsorted(self._tie_keys, level * N + self.ties[0][rank], side="left")
        place = np.where(right > left, keyed, left)
        return np.asarray(np.where(v > costs[rank], place - 1, np.where(v == costs[rank], rank, place)))


class MovedRows:
    """Rows of `base` in each of which one client has moved to another virtual cost, read like `SortedRows`."""

    def __init__(self, base: SortedRows, row: IntArray, rank: IntArray, v: FloatArray) -> None:
        self.place = base.place(row, rank, v)
        self._base = base.take(row)
        self._rank, self._place, self._v = rank[:, None], self.place[:, None], v[:, None]
        self._own = self._base.cost_at(self._rank)
        self._w, self._own_w = two_thirds(self._v), two_thirds(self._own)
        self._last = base.v.shape[1] - 1

    def take(self, rows: IntArray) -> MovedRows:
        taken = copy.copy(self)
        taken._base = self._base.take(rows)
        for name in ("place", "_rank", "_place", "_v", "_w", "_own", "_own_w"):
            setattr(taken, name, getattr(self, name)[rows])
        return taken

    def weight_sum(self, count: IntArray) -> FloatArray:
        return self._moved(self._base.weight_sum, self._own_w, self._w, count)

    def cost_sum(self, count: IntArray) -> FloatArray:
        return self._moved(self._base.cost_sum, self._own, self._v, count)

    def cost_at(self, rank: IntArray) -> FloatArray:
        others = rank - (self._place < rank)
        v = self._base.cost_at(np.minimum(others + (others >= self._rank), self._last))
        return np.where(rank == self._place, self._v, v)

    def _moved(
        self, sums: Callable[[IntArray], FloatArray], own: FloatArray, moved: FloatArray, count: IntArray
    ) -> FloatArray:
        inside = self._place < count
        others = count - inside
        passed = others > self._rank
        total = sums(others + passed)
        # An infinite cost is not subtracted: inf − inf is not a number. Another infinite one then stays in the sum.
        total -= np.where(passed & np.isfinite(own), own, 0.0)
        total += np.where(inside, moved, 0.0)
        return total


Ranked = SortedRows | MovedRows


def _prefix_sums(rows: FloatArray) -> FloatArray:
    sums = np.zeros((rows.shape[0], rows.shape[1] + 1))
    np.cumsum(rows, axis=1, out=sums[:, 1:])
    return sums
