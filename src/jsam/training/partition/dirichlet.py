"""Label skew by Dirichlet draws: a mix of classes for each client, or a mix of clients for each class."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from jsam.errors import InputError
from jsam.training.partition.result import IndexArray

_DRAWS = 200


def split_dirichlet_sized(
    targets: IndexArray, sizes: NDArray[np.int64], alpha: float, rng: np.random.Generator
) -> tuple[IndexArray, ...]:
    """Each client draws its own mix of classes and fills its given size from it, while the classes last.

    Clients late in the order find some classes used up and take what is left, so the order is random.
    """
    num_clients = len(sizes)
    order = rng.permutation(len(targets))[: int(sizes.sum())]
    labels, counts = np.unique(targets[order], return_counts=True)
    by_label = order[np.argsort(targets[order], kind="stable")]
    position, left = np.cumsum(counts) - counts, counts.copy()
    mixes = rng.dirichlet(np.full(len(labels), alpha), size=num_clients)
    held: list[IndexArray] = [by_label[:0]] * num_clients
    for client in rng.permutation(num_clients):
        taken = _draw_counts(mixes[client], left, int(sizes[client]), rng)
        held[client] = np.concatenate(
            [by_label[start : start + count] for start, count in zip(position, taken, strict=True)]
        )
        position, left = position + taken, left - taken
    return tuple(held)


def _draw_counts(
    mix: NDArray[np.float64], left: NDArray[np.int64], size: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """How many of each class: a multinomial draw, redrawn among the other classes for what a class could not give."""
    taken = np.zeros_like(left)
    while (need := size - int(taken.sum())) > 0:
        open_classes = taken < left
        weights = np.where(open_classes, mix, 0.0)
        if weights.sum() < 1e-12:  # only classes outside the client's mix are left: take them as they come
            weights = np.where(open_classes, left - taken, 0).astype(np.float64)
        taken = np.minimum(left, taken + rng.multinomial(need, weights / weights.sum()))
    return taken


def split_dirichlet_free(
    targets: IndexArray, num_clients: int, alpha: float, min_size: int, rng: np.random.Generator
) -> tuple[IndexArray, ...]:
    """Each class is dealt out to the clients by one Dirichlet draw, all samples used; redrawn until nobody is short."""
    order = rng.permutation(len(targets))
    classes = [order[targets[order] == label] for label in np.unique(targets)]
    smallest = 0
    for _ in range(_DRAWS):
        cuts = [
            np.floor(np.cumsum(rng.dirichlet(np.full(num_clients, alpha)))[:-1] * len(members)).astype(np.int64)
            for members in classes
        ]
        sizes = sum(np.diff(cut, prepend=0, append=len(members)) for cut, members in zip(cuts, classes, strict=True))
        smallest = max(smallest, int(np.min(sizes)))
        if np.min(sizes) >= min_size:
            dealt = [np.split(members, cut) for members, cut in zip(classes, cuts, strict=True)]
            return tuple(np.concatenate([pieces[client] for pieces in dealt]) for client in range(num_clients))
    raise InputError(
        f"min_size: no draw of {_DRAWS} gave every client {min_size} samples (best {smallest}); "
        f"lower it, raise alpha ({alpha}), or leave min_size out for equal sizes"
    )
