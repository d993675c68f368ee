"""The paper's two-stage split (its experiments section): s percent uniform, the rest two single-class pieces."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jsam.errors import InputError
from jsam.training.partition.result import IndexArray

_PAIRINGS = 64


@dataclass(frozen=True, kw_only=True, eq=False)
class TwoStageSplit:
    """What each client got in each stage: uniform samples, then one or two runs of samples."""

    uniform: tuple[IndexArray, ...]
    pieces: tuple[tuple[IndexArray, ...], ...]

    @property
    def indices(self) -> tuple[IndexArray, ...]:
        pairs = zip(self.uniform, self.pieces, strict=True)
        return tuple(np.concatenate([uniform, *pieces]) for uniform, pieces in pairs)


def split_two_stage(
    targets: IndexArray, num_clients: int, similarity: float, blocks: bool, rng: np.random.Generator
) -> TwoStageSplit:
    """Every client gets the same number of samples; the few that do not divide evenly are left out at random."""
    size = len(targets) // num_clients
    num_uniform = int(np.floor(size * similarity / 100 + 0.5))
    order = rng.permutation(len(targets))[: num_clients * size]
    uniform = order[: num_clients * num_uniform].reshape(num_clients, num_uniform)
    rest, rest_size = order[num_clients * num_uniform :], size - num_uniform
    # The order within a class stays random: `order` is shuffled and the sort is stable.
    by_label = rest[np.argsort(targets[rest], kind="stable")]
    if rest_size == 0:
        pieces: tuple[tuple[IndexArray, ...], ...] = ((),) * num_clients
    elif blocks:
        cut = by_label.reshape(num_clients, rest_size)
        pieces = tuple((cut[block],) for block in rng.permutation(num_clients))
    else:
        counts = np.unique(targets[rest], return_counts=True)[1]
        shares = _shares(counts, num_clients, rest_size, rng)
        pieces = _cut(by_label, counts, shares)
    return TwoStageSplit(uniform=tuple(uniform), pieces=pieces)


# A share is what one client takes in the second stage: (class position, count) once or twice.
Share = tuple[tuple[int, int], ...]


def _cut(by_label: IndexArray, counts: NDArray[np.int64], shares: list[Share]) -> tuple[tuple[IndexArray, ...], ...]:
    position = np.concatenate([[0], np.cumsum(counts)[:-1]])
    result = []
    for share in shares:
        runs = []
        for label, count in share:
            runs.append(by_label[position[label] : position[label] + count])
            position[label] += count
        result.append(tuple(runs))
    return tuple(result)


def _shares(counts: NDArray[np.int64], num_clients: int, size: int, rng: np.random.Generator) -> list[Share]:
    """Shares of `size` samples from at most two classes a client that use up every class exactly."""
    if len(counts) > num_clients + 1:
        raise InputError(
            f"num_clients: {num_clients} clients with two classes each cannot hold all {len(counts)} classes in equal "
            f"sizes, must be at least {len(counts) - 1}; or set similarity to 100, or use another scheme"
        )
    best: list[Share] = []
    best_piece = 0
    for _ in range(_PAIRINGS):
        pairs = _paired_pieces(counts, num_clients, rng)
        shares = _near_halves(counts, pairs, size)
        smallest = min(count for share in shares for _, count in share) if shares else 0
        if smallest > best_piece:
            best, best_piece = shares, smallest
        if best_piece >= size // 4:
            break
    return best or _smallest_with_largest(counts, num_clients, size, rng)


def _paired_pieces(counts: NDArray[np.int64], num_clients: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Two classes for each client, at random, each class as often as its size asks for (and at least once)."""
    quota = 2 * num_clients * counts / counts.sum()
    times = np.maximum(1, np.floor(quota).astype(np.int64))
    while times.sum() != 2 * num_clients:
        step = 1 if times.sum() < 2 * num_clients else -1
        times[np.argmax(step * (quota - times) - (times + step < 1) * quota.sum())] += step
    pairs = rng.permutation(np.repeat(np.arange(len(counts)), times)).reshape(num_clients, 2)
    for client in np.flatnonzero(pairs[:, 0] == pairs[:, 1]):
        label = pairs[client, 0]
        partners = np.flatnonzero((pairs != label).all(axis=1))
        if len(partners):  # else one class fills more than half of everything, and some clients hold only that
            partner = rng.choice(partners)
            pairs[client, 1], pairs[partner, 1] = pairs[partner, 1], label
    return pairs


def _near_halves(counts: NDArray[np.int64], pairs: NDArray[np.int64], size: int) -> list[Share]:
    """Two pieces of about half of `size` for each client, shifted a little so that every class comes out even.

    Clients are edges between classes. A client that joins a and b takes size/2 + x_a - x_b samples of a; the potentials
    x solve the graph's Laplacian system, which spreads the corrections as evenly as they can be. Empty if some client
    would need less than nothing of a class, or if the graph falls apart.
    """
    num_classes = len(counts)
    clients: dict[tuple[int, int], list[int]] = {}
    for client, (a, b) in enumerate(np.sort(pairs, axis=1).tolist()):
        clients.setdefault((a, b), []).append(client)
    joined = np.zeros((num_classes, num_classes), dtype=np.int64)
    owed = counts.astype(np.int64)
    halves = {}
    for (a, b), members in clients.items():
        halves[a, b] = len(members) * size // 2
        owed[a] -= halves[a, b]
        owed[b] -= len(members) * size - halves[a, b]
        if a != b:
            joined[a, b] = joined[b, a] = len(members)
    laplacian = np.diag(joined.sum(axis=1)) - joined
    potentials = np.linalg.lstsq(laplacian.astype(np.float64), owed.astype(np.float64), rcond=None)[0]
    for (a, b), members in clients.items():
        shift = round(len(members) * (potentials[a] - potentials[b])) if a != b else 0
        halves[a, b] += shift
        owed[a] -= shift
        owed[b] += shift
    for leaf, parent in _leaves_first(joined):  # what rounding left over
        halves[min(leaf, parent), max(leaf, parent)] += owed[leaf] if leaf < parent else -owed[leaf]
        owed[parent] += owed[leaf]
        owed[leaf] = 0
    if owed.any():
        return []
    shares: list[Share] = [()] * len(pairs)
    for (a, b), members in clients.items():
        each, more = divmod(int(halves[a, b]), len(members))
        if each < 0 or each + (more > 0) > size:
            return []
        for rank, client in enumerate(members):
            count = each + (rank < more)
            pieces = ((a, size),) if a == b else ((a, count), (b, size - count))
            shares[client] = tuple((label, n) for label, n in pieces if n > 0)
    return shares


def _leaves_first(joined: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Edges (child, parent) of a spanning tree along the busiest pairs, children before their parents."""
    reached = {0}
    edges: list[tuple[int, int]] = []
    while True:
        frontier = [
            (joined[parent, child], child, parent)
            for parent, child in itertools.product(sorted(reached), range(len(joined)))
            if child not in reached and joined[parent, child]
        ]
        if not frontier:
            return edges[::-1]
        _, child, parent = max(frontier)
        reached.add(child)
        edges.append((child, parent))


def _smallest_with_largest(
    counts: NDArray[np.int64], num_clients: int, size: int, rng: np.random.Generator
) -> list[Share]:
    """Top up what is left of the smallest class from the largest, as in Walker's alias tables.

    It always works out for up to num_clients + 1 classes: if R clients are to share R + 1 classes, the largest holds at
    least size - smallest/R, and each step takes away one client and one class.
    """
    left = counts.astype(np.int64)
    shares: list[Share] = []
    for _ in range(num_clients):
        largest = int(np.argmax(left))
        others = np.where((left > 0) & (np.arange(len(left)) != largest), left, left.sum() + 1)
        smallest = int(np.argmin(others))
        count = int(others[smallest])  # more than everything, if no other class is left
        if count >= size:
            share: Share = ((largest, size),)
        else:
            share = ((smallest, count), (largest, size - count))
        for label, taken in share:
            left[label] -= taken
        shares.append(share)
    return [shares[k] for k in rng.permutation(num_clients)]
