"""Features of records: the scattering transform, pooled, normalised record by record, and projected if asked.

Everything here is a fixed function of one record: no mean, no scale and no direction is taken from other records, nor
from the data as a whole. So neighbouring data sets have neighbouring features (one row differs), and a contract on the
features is a contract on the records: they cost no privacy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from jsam.errors import InputError
from jsam.training.features.blocks import in_blocks
from jsam.training.features.scattering import CHANNELS, ScatteringTransform

Counted = Callable[[int, int], None]
"""Hears how many records are done, and how many there are."""

_LEAST_NORM = 1e-12


@dataclass(frozen=True, kw_only=True)
class ScatteringFeatures:
    """How a record becomes a row of numbers.

    `groups` is into how many groups of neighbouring channels a record is divided; each group gets zero mean and unit
    variance, with 1e-5 added to the variance so that a group without contrast stays finite. `pool` makes means over the
    picture, so that pool x pool places are left. `projection` is to how many numbers a fixed random matrix takes them,
    which `projection_seed` decides. In the end the row has norm 1.
    """

    groups: int = 27
    pool: int | None = None
    projection: int | None = None
    projection_seed: int = 0

    def __post_init__(self) -> None:
        if self.groups < 1 or CHANNELS % self.groups:
            raise InputError(f"groups is {self.groups}; it must divide the {CHANNELS} channels of a plane")
        for name, value in (("pool", self.pool), ("projection", self.projection)):
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}; it must be at least 1, or left out")

    def size(self, shape: tuple[int, ...]) -> int:
        """How many numbers a record of this shape gets."""
        return self.projection or self._unprojected(ScatteringTransform(shape, torch.device("cpu")))

    def compute(
        self, images: NDArray[np.float32], *, device: torch.device | str = "cpu", progress: Counted | None = None
    ) -> NDArray[np.float32]:
        """The features of images (n, channels, height, width), float32 of shape (n, size).

        Up to 1 GiB is used beside the result. A row has the same bytes however many rows follow it and however many
        threads torch has; a CPU and a card round differently.
        """
        device = torch.device(device)
        transform = ScatteringTransform(images.shape[1:], device)
        matrix = self._matrix(transform, device)

        def features(block: Tensor) -> Tensor:
            return self._normalised(transform(block), matrix)

        return in_blocks(
            features,
            images,
            width=self.projection or self._unprojected(transform),
            bytes_a_record=transform.bytes_a_record,
            device=device,
            progress=progress,
        )

    def _unprojected(self, transform: ScatteringTransform) -> int:
        channels, height, width = transform.output_shape
        if self.pool is None:
            return channels * height * width
        if self.pool > min(height, width):
            raise InputError(f"pool is {self.pool}; the transform of these records has {height}x{width} places only")
        return channels * self.pool**2

    def _matrix(self, transform: ScatteringTransform, device: torch.device) -> Tensor | None:
        size = self._unprojected(transform)
        if self.projection is None:
            return None
        generator = torch.Generator().manual_seed(self.projection_seed)
        return torch.randn(size, self.projection, generator=generator).to(device)

    def _normalised(self, scattered: Tensor, matrix: Tensor | None) -> Tensor:
        if self.pool is not None:
            scattered = functional.adaptive_avg_pool2d(scattered, self.pool)
        rows: Tensor = functional.group_norm(scattered, self.groups).flatten(1)
        if matrix is not None:
            rows = rows @ matrix
        # A record without any contrast has no direction; it stays zero.
        norms: Tensor = rows.norm(dim=1, keepdim=True)
        return rows / norms.clamp_min(_LEAST_NORM)
