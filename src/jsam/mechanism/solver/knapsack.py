"""Sums of clients' weights by the number of records that they hold: the least sum for every number, exactly.

A table has the least Σ w over all selections of clients that hold exactly U units of records together, for each U;
infinity stands where no selection holds so many. Sizes are whole numbers of units, so a table has one entry a unit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from jsam.mechanism._arrays import FloatArray, IntArray


def empty_table(total: int) -> FloatArray:
    """The table of no clients: nobody holds nothing."""
    table = np.full(total + 1, np.inf)
    table[0] = 0.0
    return table


def with_clients(table: FloatArray, sizes: IntArray, weights: FloatArray, skip: int = -1) -> FloatArray:
    """The table with several clients more; the one at the position `skip` is left out."""
    table, room = table.copy(), np.empty_like(table)
    for position, (size, weight) in enumerate(zip(sizes.tolist(), weights.tolist(), strict=True)):
        if position != skip:
            shifted = room[: len(table) - size]
            np.add(table[: len(table) - size], weight, out=shifted)
            np.minimum(table[size:], shifted, out=table[size:])
    return table


def without_each(
    sizes: IntArray, weights: Sequence[FloatArray], skipped: Sequence[int], clients: IntArray
) -> Iterator[tuple[int, list[FloatArray]]]:
    """For each of `clients`, in rising order, the tables of all the others.

    There is one table for each array of weights; the client `skipped[i]` is never in the i-th table (−1: nobody is
    skipped). Clients are halved again and again, so each enters only about log N tables for every set of weights.
    """
    total = int(sizes.sum())
    outside = np.setdiff1d(np.arange(len(sizes)), clients)

    def added(tables: list[FloatArray], some: IntArray) -> list[FloatArray]:
        return [
            with_clients(table, sizes[part], w[part])
            for table, w, skip in zip(tables, weights, skipped, strict=True)
            for part in [some[some != skip]]
        ]

    def split(tables: list[FloatArray], some: IntArray) -> Iterator[tuple[int, list[FloatArray]]]:
        if len(some) == 1:
            yield int(some[0]), tables
            return
        left, right = some[: len(some) // 2], some[len(some) // 2 :]
        yield from split(added(tables, right), left)
        yield from split(added(tables, left), right)

    yield from split(added([empty_table(total) for _ in weights], outside), clients)


def selection(sizes: IntArray, weights: FloatArray, units: int) -> IntArray:
    """Which clients have the least sum of weights among those who hold exactly `units` together; somebody must.

    Every client's choice is remembered for each number of units, a bit for each.
    """
    table = empty_table(units)
    taken: list[NDArray[np.uint8]] = []
    for size, weight in zip(sizes.tolist(), weights.tolist(), strict=True):
        better = np.zeros(units + 1, dtype=bool)
        if size <= units:
            shifted = table[: units + 1 - size] + weight
            better[size:] = shifted < table[size:]
            table[size:] = np.minimum(table[size:], shifted)
        taken.append(np.packbits(better))
    kept = []
    for client in reversed(range(len(sizes))):
        if taken[client][units >> 3] >> (7 - (units & 7)) & 1:
            kept.append(client)
            units -= int(sizes[client])
    return np.array(kept[::-1], dtype=np.int64)
