"""The idx format of MNIST's and QMNIST's files."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jsam.errors import DataError

__all__ = ["parse_idx"]

_MOST_DIMENSIONS = 4
_ITEM_TYPES: dict[int, np.dtype[Any]] = {0x08: np.dtype(np.uint8), 0x0C: np.dtype(">i4")}


def parse_idx(content: bytes, *, what: str) -> NDArray[Any]:
    """The array of an idx file: two zero bytes, item type, number of dimensions, big-endian sizes, items. No copy."""
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _ITEM_TYPES:
        raise DataError(f"{what}: not an idx file of bytes or 32-bit integers")
    item_type, start = _ITEM_TYPES[content[2]], 4 + 4 * content[3]
    if content[3] > _MOST_DIMENSIONS:
        raise DataError(f"{what}: {content[3]} dimensions do not fit an idx file of at most {_MOST_DIMENSIONS}")
    shape = tuple(int(n) for n in np.frombuffer(content[4:start], dtype=">u4"))
    if len(shape) != content[3] or len(content) != start + math.prod(shape) * item_type.itemsize:
        raise DataError(f"{what}: {len(content)} bytes do not fit an idx file of shape {shape}")
    if 0 in shape:  # numpy refuses some of these for their other sizes
        raise DataError(f"{what}: an idx file of shape {shape} holds nothing")
    return np.frombuffer(content, dtype=item_type, offset=start).reshape(shape)
