"""Read plain numeric arrays out of a pickle that nobody vouches for.

A pickle may name any callable and have it called. Here the only names it may use are those that rebuild a numpy array,
and even these are stand-ins: the pickle's numbers never reach numpy's own `__setstate__`.
"""

from __future__ import annotations

import math
import pickle
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from jsam.training.data.errors import UnsafePickleError

__all__ = ["load_arrays"]

Nested = NDArray[Any] | tuple["Nested", ...]

# Python 2 wrote these codes as byte strings, Python 3 writes them as text.
_ITEM_TYPES = {b"f4": "<f4", b"i8": "<i8", "f4": "<f4", "i8": "<i8"}
_LITTLE_ENDIAN = (b"<", "<")


class _ItemType:
    def __init__(self, code: bytes | str, _align: int, _copy: int) -> None:
        if code not in _ITEM_TYPES:
            raise pickle.UnpicklingError(f"item type {code!r} is not allowed")
        self.text = _ITEM_TYPES[code]

    def __setstate__(self, state: Any) -> None:
        if state[1] not in _LITTLE_ENDIAN:
            raise pickle.UnpicklingError("only little-endian arrays are allowed")


class _Array:
    value: NDArray[Any] | None = None

    def __setstate__(self, state: Any) -> None:
        _version, shape, item_type, column_order, content = state
        if not (isinstance(item_type, _ItemType) and isinstance(content, bytes) and column_order is False):
            raise pickle.UnpicklingError("only plain row-ordered arrays are allowed")
        flat = np.frombuffer(content, dtype=item_type.text)
        if not all(isinstance(n, int) and n >= 0 for n in shape) or math.prod(shape) != flat.size:
            raise pickle.UnpicklingError(f"shape {shape} does not fit {flat.size} items")
        self.value = flat.reshape(shape)


def _reconstruct(_kind: Any, _shape: Any, _code: Any) -> _Array:
    return _Array()


_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _ItemType,
}


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed") from None


class _Stream(Protocol):
    def read(self, size: int = ..., /) -> bytes: ...
    def readline(self, size: int = ..., /) -> bytes: ...


class _Limited:
    """A stream that refuses to hand out more than `limit` bytes: a small file may unpack to a huge one."""

    def __init__(self, stream: _Stream, limit: int) -> None:
        self._stream, self._left = stream, limit

    def read(self, size: int = -1) -> bytes:
        return self._charge(self._stream.read(self._left + 1 if size < 0 else min(size, self._left + 1)))

    def readline(self) -> bytes:
        return self._charge(self._stream.readline(self._left + 1))

    def _charge(self, content: bytes) -> bytes:
        self._left -= len(content)
        if self._left < 0:
            raise pickle.UnpicklingError("it is larger than expected")
        return content


def load_arrays(stream: _Stream, *, limit_bytes: int, what: str) -> Nested:
    """The numeric arrays in a pickle, in tuples as it has them; anything else is refused, and nothing is run."""
    try:
        # As bytes: Python 2 wrote the array contents as byte strings, and text of them would double the memory.
        return _plain(_ArrayUnpickler(_Limited(stream, limit_bytes), encoding="bytes").load())
    except Exception as error:  # a hostile pickle can make the unpickler raise nearly anything
        reason = " ".join(str(error).split())[:120]
        raise UnsafePickleError(f"{what}: refused, not a pickle of plain arrays ({reason})") from error


def _plain(value: Any) -> Nested:
    if isinstance(value, _Array) and value.value is not None:
        return value.value
    if isinstance(value, tuple):
        return tuple(_plain(item) for item in value)
    raise pickle.UnpicklingError(f"a {type(value).__name__} is not allowed")
