"""Scratch memory that is kept between blocks: fresh pages cost more than the arithmetic done in them."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class Workspace:
    """Named buffers that grow to the largest request and are handed out as views."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], *, like: Tensor) -> Tensor:
        """An uninitialised tensor of `shape`; valid until the same name is taken again."""
        size = math.prod(shape)
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < size or buffer.device != like.device or buffer.dtype != like.dtype:
            buffer = torch.empty(size, device=like.device, dtype=like.dtype)
            self._buffers[name] = buffer
        return buffer[:size].view(shape)

    def clear(self) -> None:
        self._buffers.clear()
