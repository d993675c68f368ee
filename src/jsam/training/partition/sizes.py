"""How many samples each client gets, where they do not get equally many."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jsam.errors import InputError
from jsam.training.partition.result import IndexArray

EQUAL = "equal"
LAWS = ("lognormal", "zipf")


def is_law(text: str) -> bool:
    """Whether a text names a law of sizes, right or wrong in its number, and not a file."""
    return text == EQUAL or text.partition(":")[0] in LAWS


def sizes_by_law(text: str, num_clients: int, num_samples: int, rng: np.random.Generator) -> tuple[int, ...] | None:
    """Sizes that add up to all samples, at least one for each client; None for equal sizes.

    "lognormal:S" draws sizes whose logarithms have the standard deviation S. By "zipf:A" the k-th largest size is
    proportional to k^(−A), and chance decides who has it.
    """
    law, _, word = text.partition(":")
    if text == EQUAL:
        return None
    try:
        spread = float(word)
    except ValueError:
        spread = math.nan
    if law not in LAWS or not 0 < spread <= 10:
        raise InputError(
            f"sizes is {text!r}; it must be equal, lognormal:S or zipf:A with a number above 0 and up to 10"
        )
    if law == "lognormal":
        weights = np.exp(spread * rng.standard_normal(num_clients))
    else:
        weights = rng.permutation(np.arange(1, num_clients + 1) ** -spread)
    return apportioned(weights, num_samples)


def apportioned(weights: ArrayLike, total: int) -> tuple[int, ...]:
    """Whole numbers of at least 1 that add up to the total, as near to the weights' proportions as they can be."""
    shares = np.asarray(weights, dtype=np.float64)
    if not 1 <= len(shares) <= total:
        raise InputError(f"num_clients is {len(shares)}, must be 1 to {total}, the number of samples")
    exact = shares / shares.sum() * total
    sizes = np.maximum(1, np.floor(exact)).astype(np.int64)
    missing = total - int(sizes.sum())
    if missing > 0:
        sizes[np.argsort(sizes - exact, kind="stable")[:missing]] += 1
    for _ in range(-missing):
        sizes[np.argmax(np.where(sizes > 1, sizes - exact, -np.inf))] -= 1
    return tuple(sizes.tolist())


def checked_sizes(sizes: Sequence[int], num_clients: int | None, num_samples: int) -> NDArray[np.int64]:
    """The sizes as an array, if there is one for each client and there are enough samples."""
    held = np.asarray(sizes)
    if num_clients is not None and held.shape != (num_clients,):
        raise InputError(f"sizes is a list of {len(sizes)}, must have one number for each of {num_clients} clients")
    if held.dtype.kind not in "iu" or len(held) == 0 or held.min() < 1:
        raise InputError("sizes must be whole numbers of at least 1, one for each client")
    if int(held.sum()) > num_samples:
        raise InputError(f"sizes is a list that comes to {int(held.sum())}, must come to at most {num_samples} samples")
    return held.astype(np.int64)


def split_by_size(
    targets: IndexArray, sizes: NDArray[np.int64], similarity: float, blocks: bool, rng: np.random.Generator
) -> tuple[IndexArray, ...]:
    """`similarity` percent of each client's samples are uniform, the rest two pieces of what is left, sorted by label.

    With `blocks` the rest is one such piece. A piece may reach over the border between two labels.
    """
    order = rng.permutation(len(targets))[: int(sizes.sum())]
    uniform = np.floor(sizes * similarity / 100 + 0.5).astype(np.int64)
    held = [[part] for part in np.split(order[: uniform.sum()], np.cumsum(uniform)[:-1])]
    rest = order[uniform.sum() :]
    by_label = rest[np.argsort(targets[rest], kind="stable")]
    left = sizes - uniform
    lengths = left if blocks else np.concatenate([left // 2, left - left // 2])
    places = rng.permutation(len(lengths))
    for place, piece in zip(places, np.split(by_label, np.cumsum(lengths[places])[:-1]), strict=True):
        held[place % len(sizes)].append(piece)
    return tuple(np.concatenate(parts) for parts in held)
