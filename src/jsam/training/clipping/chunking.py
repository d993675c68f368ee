"""How many examples go through at a time: chosen by rule, not by timing, so that a run repeats bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

# Bytes that a worker captures: on the CPU what stays in a cache, on CUDA enough to fill a large card.
_CHUNK_BYTES = {"cpu": 12 << 20, "cuda": 8 << 30}
# Of a card's memory, what is captured and kept may take one part in so many. The rest is for what autograd holds
# meanwhile (about as much again as is captured), the data, a block's scratch memory, and a few runs side by side.
_MEMORY_SHARE = 4
# A kernel's programs are numbered by example along an axis of a CUDA grid that has no more.
_MOST_ON_CUDA = 65_535


class Footprint(NamedTuple):
    """Floats that an example holds: captured by the forward and backward pass, and kept until its factor is known.

    A number captured in bf16 counts as a float too: autograd holds the fp32 outputs of its stage at the same time.
    """

    captured: int
    kept: int = 0


def samples_a_chunk(footprint: Footprint, device: str, memory: int | None) -> int:
    """Examples that one worker best takes at a time; 0 where not even one is within bounds.

    `memory` is all that the device has, not what is free of it just now: the same card gives the same chunks.
    """
    share = _CHUNK_BYTES.get(device, _CHUNK_BYTES["cuda"]) // (4 * footprint.captured)
    if memory is None:
        return share
    return min(share, memory // _MEMORY_SHARE // (4 * (footprint.captured + footprint.kept)), _MOST_ON_CUDA)


def memory_of(device: torch.device) -> int | None:
    """Bytes that a card has in all; None for the CPU, where chunks are far smaller than memory."""
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else None


def spans(n: int, size: int, multiple: int = 1) -> Iterator[tuple[int, int]]:
    """Even pieces of range(n), none longer than `size`, their number a multiple of `multiple` where n allows."""
    count = min(n, -(-n // (size * multiple)) * multiple)
    for i in range(count):
        yield n * i // count, n * (i + 1) // count
