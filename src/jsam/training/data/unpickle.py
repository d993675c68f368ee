"""Read plain numeric arrays out of a pickle that nobody vouches for.

A pickle is a program: it may name any callable and have it called, and a few bytes of it can ask for all memory or all
time. So Python's own reader is not used. Here is one that knows the few instructions of which arrays in tuples are
made, calls nothing, and counts: bytes before they are read, instructions, what is remembered, and parts of the result.
"""

from __future__ import annotations

import codecs
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from jsam.errors import UnsafePickleError

Nested = NDArray[Any] | tuple["Nested", ...]

# MNIST takes about 300 instructions.
MOST_INSTRUCTIONS, MOST_REMEMBERED, MOST_PARTS, MOST_DIMENSIONS = 10_000, 1_000, 1_000, 4
_LONGEST_WORD, _LARGEST_NUMBER, _CHUNK = 200, 8, 1 << 20
# Python 2 wrote these codes as byte strings, Python 3 writes them as text.
_ITEM_TYPES = {b"f4": "<f4", b"i8": "<i8", "f4": "<f4", "i8": "<i8"}
_LITTLE_ENDIAN = (b"<", "<")
_MARK = object()


class _Stream(Protocol):
    def read(self, size: int = ..., /) -> bytes: ...
    def readline(self, size: int = ..., /) -> bytes: ...


class _Name:
    """One of the names that stand for a part of an array; anything else is refused when it is read."""

    ALLOWED = frozenset({
        ("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct"),
        ("numpy", "ndarray"), ("numpy", "dtype"),
    })  # fmt: skip

    def __init__(self, module: object, name: object) -> None:
        if (module, name) not in self.ALLOWED:
            raise ValueError(f"{module}.{name} is not allowed")
        self.name = name

    def called_with(self, arguments: object) -> _Array | _ItemType:
        """What numpy would make of a call, without one."""
        if not isinstance(arguments, tuple) or len(arguments) != 3 or self.name == "ndarray":
            raise ValueError(f"such a call of {self.name} is not allowed")
        return _Array() if self.name == "_reconstruct" else _ItemType(arguments[0])


class _ItemType:
    def __init__(self, code: object) -> None:
        if not isinstance(code, bytes | str) or code not in _ITEM_TYPES:
            raise ValueError(f"item type {code!r} is not allowed")
        self.text = _ITEM_TYPES[code]

    def set(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) < 2 or state[1] not in _LITTLE_ENDIAN:
            raise ValueError("only little-endian arrays are allowed")


class _Array:
    value: NDArray[Any] | None = None

    def set(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) != 5:
            raise ValueError("only plain row-ordered arrays are allowed")
        _version, shape, item_type, column_order, content = state
        plain = isinstance(item_type, _ItemType) and isinstance(content, bytes | bytearray) and column_order is False
        if not plain or not isinstance(shape, tuple) or len(shape) > MOST_DIMENSIONS:
            raise ValueError("only plain row-ordered arrays are allowed")
        flat = np.frombuffer(content, dtype=item_type.text)
        if not all(isinstance(n, int) and n >= 0 for n in shape) or math.prod(shape) != flat.size:
            raise ValueError(f"shape {shape} does not fit {flat.size} items")
        self.value = flat.reshape(shape)


class _Reader:
    """The machine that a pickle is a program of: a stack of values, and a memory by number."""

    def __init__(self, stream: _Stream, limit: int) -> None:
        self._stream, self._left = stream, limit
        self._stack: list[Any] = []
        self._memory: dict[int, Any] = {}

    def run(self) -> Any:
        for _ in range(MOST_INSTRUCTIONS):
            code = bytes(self._read(1))
            if code == b".":
                return self._stack.pop()
            if code in _VALUES:
                self._stack.append(_VALUES[code](self))
            elif code in _EFFECTS:
                _EFFECTS[code](self)
            else:
                raise ValueError(f"instruction {code!r} is not allowed")
        raise ValueError(f"it has more than {MOST_INSTRUCTIONS} instructions")

    def _read(self, size: int) -> bytes | bytearray:
        """So many bytes; a size that cannot be is refused before there is room for it."""
        if size > self._left:
            raise ValueError("it is larger than expected")
        self._left -= size
        content = bytearray()
        while (missing := size - len(content)) > 0:
            piece = self._stream.read(min(missing, _CHUNK))
            if not piece:
                raise ValueError("it ends too early")
            content += piece
        return bytes(content) if size <= _CHUNK else content

    def _number(self, size: int, *, signed: bool = False) -> int:
        if size > _LARGEST_NUMBER:
            raise ValueError(f"a number of {size} bytes is not allowed")
        return int.from_bytes(self._read(size), "little", signed=signed)

    def _line(self, longest: int = _LONGEST_WORD) -> bytes:
        line = self._stream.readline(min(longest, self._left) + 1)
        self._left -= len(line)
        if not line.endswith(b"\n") or self._left < 0:
            raise ValueError("a line is too long or has no end")
        return line[:-1]

    def _word(self, size: int) -> str:
        if size > _LONGEST_WORD:
            raise ValueError("a text is too long")
        return bytes(self._read(size)).decode()

    def _whole_number(self) -> int:
        line = self._line(24).removesuffix(b"L")
        return {b"00": False, b"01": True}.get(line, int(line))

    def _quoted(self) -> bytes:
        line = self._line(self._left)
        if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in (b"'", b'"'):
            raise ValueError("a text has no quotes")
        return codecs.escape_decode(line[1:-1])[0]

    def _to_mark(self) -> tuple[Any, ...]:
        place = len(self._stack) - 1 - self._stack[::-1].index(_MARK)
        items = tuple(self._stack[place + 1 :])
        del self._stack[place:]
        return items

    def _last(self, count: int) -> tuple[Any, ...]:
        if len(self._stack) < count:
            raise ValueError("its stack is empty")
        items = tuple(self._stack[len(self._stack) - count :])
        del self._stack[len(self._stack) - count :]
        return items

    def _keep(self, number: int) -> None:
        if number not in self._memory and len(self._memory) >= MOST_REMEMBERED:
            raise ValueError(f"it remembers more than {MOST_REMEMBERED} values")
        self._memory[number] = self._stack[-1]

    def _reduce(self) -> _Array | _ItemType:
        name, arguments = self._last(2)
        if not isinstance(name, _Name):
            raise ValueError(f"a call of a {type(name).__name__} is not allowed")
        return name.called_with(arguments)

    def _build(self) -> _Array | _ItemType:
        made, state = self._last(2)
        if not isinstance(made, _Array | _ItemType):
            raise ValueError(f"a state of a {type(made).__name__} is not allowed")
        made.set(state)
        return made


_VALUES: dict[bytes, Callable[[_Reader], Any]] = {
    b"(": lambda _: _MARK,
    b"N": lambda _: None,
    b"\x88": lambda _: True,
    b"\x89": lambda _: False,
    b"I": lambda r: r._whole_number(),
    b"L": lambda r: r._whole_number(),
    b"J": lambda r: r._number(4, signed=True),
    b"K": lambda r: r._number(1),
    b"M": lambda r: r._number(2),
    b"\x8a": lambda r: r._number(r._number(1), signed=True),
    b"S": lambda r: r._quoted(),
    b"T": lambda r: r._read(r._number(4)),
    b"U": lambda r: r._read(r._number(1)),
    b"B": lambda r: r._read(r._number(4)),
    b"C": lambda r: r._read(r._number(1)),
    b"\x8e": lambda r: r._read(r._number(8)),
    b"X": lambda r: r._word(r._number(4)),
    b"\x8c": lambda r: r._word(r._number(1)),
    b")": lambda _: (),
    b"t": lambda r: r._to_mark(),
    b"\x85": lambda r: r._last(1),
    b"\x86": lambda r: r._last(2),
    b"\x87": lambda r: r._last(3),
    b"g": lambda r: r._memory[r._whole_number()],
    b"h": lambda r: r._memory[r._number(1)],
    b"j": lambda r: r._memory[r._number(4)],
    b"c": lambda r: _Name(r._line().decode(), r._line().decode()),
    b"\x93": lambda r: _Name(*r._last(2)),
    b"R": lambda r: r._reduce(),
    b"b": lambda r: r._build(),
}
"""Instructions that push what they give."""
_EFFECTS: dict[bytes, Callable[[_Reader], object]] = {
    b"\x80": lambda r: r._read(1),  # protocol
    b"\x95": lambda r: r._read(8),  # frame
    b"0": lambda r: r._last(1),
    b"1": lambda r: r._to_mark(),
    b"p": lambda r: r._keep(r._whole_number()),
    b"q": lambda r: r._keep(r._number(1)),
    b"r": lambda r: r._keep(r._number(4)),
    b"\x94": lambda r: r._keep(len(r._memory)),
}
"""Those that push nothing."""


def load_arrays(stream: _Stream, *, limit_bytes: int, what: str) -> Nested:
    """The numeric arrays in a pickle, in tuples as it has them; anything else is refused, and nothing is run."""
    try:
        return _plain(_Reader(stream, limit_bytes).run(), itertools.count(1))
    except Exception as error:  # a hostile pickle, or the archive that it is in, can raise nearly anything
        reason = " ".join(str(error).split())[:120]
        raise UnsafePickleError(f"{what}: refused, not a pickle of plain arrays ({reason})") from error


def _plain(value: Any, parts: Iterator[int]) -> Nested:
    """A tuple may hold another one many times over, so its parts are counted as they are gone through."""
    if next(parts) > MOST_PARTS:
        raise ValueError(f"it has more than {MOST_PARTS} parts")
    if isinstance(value, _Array) and value.value is not None:
        return value.value
    if isinstance(value, tuple):
        return tuple(_plain(item, parts) for item in value)
    raise ValueError(f"a {type(value).__name__} is not allowed")
