"""All randomness of a simulation comes from here: (seed, purpose, round, client) → generator.

Streams do not depend on the order in which they are asked for, so a resumed run repeats the very draws of an
uninterrupted one. For noise that must be unpredictable (deployment), use the operating system's entropy instead.
"""

from __future__ import annotations

import hashlib

import numpy as np

from jsam.errors import InputError

_WORD = 2**32 - 1


def generator(seed: int, purpose: str, *, round: int | None = None, client: int | None = None) -> np.random.Generator:
    """The generator of this purpose, and of this round and client where given; the same on every machine."""
    return np.random.Generator(np.random.PCG64(_sequence(seed, purpose, round, client)))


def derived_seed(seed: int, purpose: str, *, round: int | None = None, client: int | None = None) -> int:
    """A 63-bit seed of the same independent stream, for generators that are not numpy's."""
    words = _sequence(seed, purpose, round, client).generate_state(1, np.uint64)
    return int(words[0]) >> 1


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
