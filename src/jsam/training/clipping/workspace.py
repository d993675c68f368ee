"""Scratch memory that is kept between blocks: fresh pages cost more than the arithmetic done in them."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class Workspace:
    """Named buffers, one for each type, that grow to the largest request and are handed out as views.

    `generation` changes when a buffer is replaced: views kept from before still work, but hold on to the old memory.
    """

    def __init__(self) -> None:
        # By type too: a CUDA graph knows the address of what it was recorded with, so a request for another type, and
        # back, must not move it.
        self._buffers: dict[tuple[str, torch.dtype], Tensor] = {}
        self.generation = 0

    def take(self, name: str, shape: tuple[int, ...], *, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """An uninitialised tensor of `shape`, sharing memory with all others of this name and type."""
        size = math.prod(shape)
        dtype = like.dtype if dtype is None else dtype
        buffer = self._buffers.get((name, dtype))
        if buffer is None or buffer.numel() < size or buffer.device != like.device:
            if buffer is not None:
                self.generation += 1
            buffer = torch.empty(size, device=like.device, dtype=dtype)
            self._buffers[name, dtype] = buffer
        return buffer[:size].view(shape)
