"""Who holds which samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jsam.errors import InputError

IndexArray = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Partition:
    """For each client the sorted indices of its training samples; no sample belongs to two clients."""

    indices: tuple[IndexArray, ...]
    num_samples: int
    description: str
    seed: int

    def __post_init__(self) -> None:
        if not self.indices:
            raise InputError("partition: no clients, must have at least one")
        empty = next((k for k, held in enumerate(self.indices) if len(held) == 0), None)
        if empty is not None:
            raise InputError(f"partition: client {empty} holds no samples, must hold at least one")
        held = np.concatenate(self.indices)
        if held.dtype != np.dtype(np.int64):
            raise InputError(f"partition: indices are {held.dtype}, must be int64")
        if held.min() < 0 or held.max() >= self.num_samples:
            last = self.num_samples - 1
            raise InputError(f"partition: indices reach from {held.min()} to {held.max()}, must be in 0 to {last}")
        if np.bincount(held, minlength=self.num_samples).max() > 1:
            raise InputError("partition: a sample belongs to more than one client, must belong to at most one")

    @property
    def num_clients(self) -> int:
        return len(self.indices)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Samples of each client."""
        return tuple(len(held) for held in self.indices)

    def label_counts(self, targets: IndexArray, num_classes: int | None = None) -> IndexArray:
        """Clients in rows, labels in columns: how many samples of each label a client holds."""
        if len(targets) != self.num_samples:
            raise InputError(
                f"targets: {len(targets)} labels, must be {self.num_samples}, one a sample of the partition"
            )
        classes = int(targets.max()) + 1 if num_classes is None else num_classes
        return np.stack([np.bincount(targets[held], minlength=classes) for held in self.indices]).astype(np.int64)
