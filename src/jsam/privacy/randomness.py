"""All randomness of a simulation comes from here, one stream for each purpose, round and client.

`generator` and `derived_seed` draw from a seed, which may be known: first weights, partitions, schedules. Noise that
protects somebody must not be among them. It is drawn from a secret key by `keyed_normals`, or from the operating
system's entropy where a release leaves the machine.

Streams do not depend on the order in which they are asked for, so a resumed run repeats the very draws of an
uninterrupted one.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from jsam.errors import InputError

KEY_BYTES = 16

_WORD = 2**32 - 1
_BITS = 53
_BLOCK = 2**16


def generator(seed: int, purpose: str, *, round: int | None = None, client: int | None = None) -> np.random.Generator:
    """The generator of this purpose, and of this round and client where given; the same on every machine."""
    return np.random.Generator(np.random.PCG64(_sequence(seed, purpose, round, client)))


def derived_seed(seed: int, purpose: str, *, round: int | None = None, client: int | None = None) -> int:
    """A 63-bit seed of the same independent stream, for generators that are not numpy's."""
    words = _sequence(seed, purpose, round, client).generate_state(1, np.uint64)
    return int(words[0]) >> 1


def keyed_bytes(key: bytes, purpose: str, *, size: int, round: int = 0, block: int = 0) -> bytes:
    """`size` bytes that follow from the key, and that nobody can tell from random ones, or wind back, without it.

    SHAKE-256 of the key, the purpose, the round and the block; each takes a fixed width, so no two inputs are alike.
    numpy's generators are not used here: from enough of their output their state, and so the rest, can be computed.
    """
    if len(key) != KEY_BYTES:
        raise InputError(f"key has {len(key)} bytes; it must have {KEY_BYTES}")
    name = hashlib.sha256(purpose.encode()).digest()
    return hashlib.shake_256(key + name + round.to_bytes(8, "little") + block.to_bytes(8, "little")).digest(size)


def keyed_normals(key: bytes, purpose: str, size: int, *, round: int) -> NDArray[np.float64]:
    """`size` independent draws of N(0, 1) that follow from the key, the purpose and the round."""
    draws = np.empty(size)
    for block, start in enumerate(range(0, size, _BLOCK)):
        part = draws[start : start + _BLOCK]
        pairs = (part.size + 1) // 2
        part[:] = normals_from(keyed_bytes(key, purpose, size=16 * pairs, round=round, block=block))[: part.size]
    return draws


def normals_from(random_bytes: bytes) -> NDArray[np.float64]:
    """Draws of N(0, 1) by Box and Muller's transform: one for every eight random bytes, of which there are pairs."""
    words = np.frombuffer(random_bytes, dtype=np.uint64) >> np.uint64(64 - _BITS)
    # In (0, 1]: the logarithm of 0 is no number.
    points = (words + np.uint64(1)) * 2.0**-_BITS
    half = points.size // 2
    radius = np.sqrt(-2 * np.log(points[:half]))
    angle = 2 * np.pi * points[half:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])


def _sequence(seed: int, purpose: str, round: int | None, client: int | None) -> np.random.SeedSequence:
    if not 0 <= seed < 2**128:
        raise InputError(f"seed is {seed}; it must be a whole number from 0 to 2**128 - 1")
    digest = hashlib.blake2b(purpose.encode(), digest_size=16).digest()
    key = [int.from_bytes(digest[i : i + 4], "little") for i in range(0, 16, 4)]
    # Fixed width, absence marked: otherwise two keys could flatten to one sequence of 32-bit words.
    return np.random.SeedSequence(seed, spawn_key=(*key, *_words("round", round), *_words("client", client)))


def _words(name: str, value: int | None) -> tuple[int, int, int]:
    if value is None:
        return (0, 0, 0)
    if not 0 <= value < 2**64:
        raise InputError(f"{name} is {value}; it must be a whole number from 0 to 2**64 - 1")
    return (1, value & _WORD, value >> 32)
