"""One verb, `partition`, for all ways to deal a training set out to clients."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Literal, TypeVar, get_args

import numpy as np
from numpy.typing import ArrayLike

from jsam.errors import InputError
from jsam.training.partition.dirichlet import split_dirichlet_free, split_dirichlet_sized
from jsam.training.partition.result import IndexArray, Partition
from jsam.training.partition.sizes import checked_sizes, split_by_size
from jsam.training.partition.two_stage import split_two_stage

Scheme = Literal["similarity", "dirichlet", "writer", "iid"]
Number = TypeVar("Number", int, float)
SCHEMES: tuple[Scheme, ...] = get_args(Scheme)

# Keeps these draws apart from every other use of the same seed.
_PURPOSE = 0x70617274


def partition(
    targets: ArrayLike,
    *,
    num_clients: int | None = None,
    scheme: Scheme = "similarity",
    seed: int,
    similarity: float | None = None,
    blocks: bool = False,
    alpha: float | None = None,
    min_size: int | None = None,
    writers: ArrayLike | None = None,
    sizes: Sequence[int] | None = None,
) -> Partition:
    """Deal samples out to clients. It looks at labels and seed only, never at what the clients report.

    - "similarity": the paper's split. `similarity` percent of each client's samples are uniform, the rest are two
      single-class pieces; with `blocks`, one contiguous block of the label-sorted rest. Equal sizes.
    - "dirichlet": label mixes from Dirichlet(`alpha`), equal sizes; with `min_size`, sizes vary above it.
    - "writer": a client is a person, `writers` says whose each sample is; all of them, or `num_clients` drawn.
    - "iid": equal sizes at random.

    With `sizes` each client gets so many samples, under every scheme but "writer", and "dirichlet" with `min_size`,
    which have sizes of their own. Equal and given sizes leave out at random what is left over; otherwise every sample
    is used exactly once.
    """
    labels = _checked_labels(targets)
    if scheme not in SCHEMES:
        raise InputError(f"scheme is {scheme!r}, must be one of {', '.join(SCHEMES)}")
    given = {
        "similarity": similarity is not None or blocks,
        "dirichlet": alpha is not None or min_size is not None,
        "writer": writers is not None,
    }
    stray = next((other for other, present in given.items() if present and other != scheme), None)
    if stray is not None:
        raise InputError(f"scheme is {scheme!r} but an option of scheme {stray!r} is given; must be left out")
    if sizes is not None and (scheme == "writer" or min_size is not None):
        what = "scheme 'writer'" if scheme == "writer" else "min_size"
        raise InputError(f"sizes is given, and {what} has sizes of its own; leave one of them out")
    if seed < 0:
        raise InputError(f"seed is {seed}, must be 0 or more")
    rng = np.random.default_rng([_PURPOSE, seed])
    description: str = scheme
    given_sizes = None if sizes is None else checked_sizes(sizes, num_clients, len(labels))
    if given_sizes is not None:
        num_clients = len(given_sizes)
    if scheme == "writer":
        indices = _by_writer(len(labels), num_clients, writers, rng)
    elif scheme == "dirichlet":
        num_clients = _checked_clients(num_clients, len(labels))
        alpha = float(_checked("alpha", alpha, math.ulp(0.0), sys.float_info.max, "a number above 0"))
        description = f"dirichlet, alpha {alpha:g}"
        if min_size is None:
            equal = np.full(num_clients, len(labels) // num_clients)
            indices = split_dirichlet_sized(labels, equal if given_sizes is None else given_sizes, alpha, rng)
        else:
            most = len(labels) // num_clients
            min_size = _checked("min_size", min_size, 1, most, f"1 to {most}, the size of equal shares")
            indices = split_dirichlet_free(labels, num_clients, alpha, min_size, rng)
    else:
        num_clients = _checked_clients(num_clients, len(labels))
        percent = 100.0
        if scheme == "similarity":
            percent = float(_checked("similarity", similarity, 0, 100, "a percentage from 0 to 100"))
            description = f"similarity {percent:g}%{', blocks' if blocks else ''}"
        if given_sizes is None:
            indices = split_two_stage(labels, num_clients, percent, blocks, rng).indices
        else:
            indices = split_by_size(labels, given_sizes, percent, blocks, rng)
    if given_sizes is not None:
        description += ", given sizes"
    return Partition(
        indices=tuple(np.sort(held) for held in indices),
        num_samples=len(labels),
        description=description,
        seed=seed,
    )


def _by_writer(
    num_samples: int, num_clients: int | None, writers: ArrayLike | None, rng: np.random.Generator
) -> tuple[IndexArray, ...]:
    if writers is None:
        raise InputError("writers is missing, must say for each sample who wrote it (load_writers() has MNIST's)")
    names = np.asarray(writers)
    if names.shape != (num_samples,):
        raise InputError(f"writers has shape {names.shape}, must be ({num_samples},): one writer a target")
    distinct, person = np.unique(names, return_inverse=True)
    # In random order even when all are taken: NIST's numbers tell census workers from pupils.
    chosen = rng.permutation(len(distinct))[: _checked_clients(num_clients or len(distinct), len(distinct), "writers")]
    return tuple(np.flatnonzero(person == one) for one in chosen)


def _checked_labels(targets: ArrayLike) -> IndexArray:
    labels = np.asarray(targets)
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or len(labels) == 0:
        raise InputError(f"targets are {labels.dtype} of shape {labels.shape}, must be a row of whole-number labels")
    if labels.min() < 0:
        raise InputError(f"targets reach down to {labels.min()}, must be 0 or more")
    return labels.astype(np.int64)


def _checked_clients(num_clients: int | None, most: int, of_what: str = "samples") -> int:
    return _checked("num_clients", num_clients, 1, most, f"1 to {most}, the number of {of_what}")


def _checked(name: str, value: Number | None, least: float, most: float, allowed: str) -> Number:
    if value is None or not least <= value <= most:
        raise InputError(f"{name} is {value}, must be {allowed}")
    return value
