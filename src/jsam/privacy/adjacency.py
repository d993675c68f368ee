"""Which change of one record a guarantee hides."""

from __future__ import annotations

import math
from enum import StrEnum

from jsam.errors import InputError


class Adjacency(StrEnum):
    """Which change of one record the guarantee hides. It sets the sensitivity Δ and is stated in every report."""

    ADD_REMOVE = "add-remove"
    REPLACE = "replace"

    @property
    def factor(self) -> int:
        """Δ ÷ (C/M): a mean over M of gradients clipped to C moves by C/M, or by 2C/M when one of them is swapped."""
        return 2 if self is Adjacency.REPLACE else 1

    @property
    def count_sensitivity(self) -> float:
        """How far counts of labels move, by the Euclidean norm: one by 1, or two of them when a record is swapped."""
        return math.sqrt(2) if self is Adjacency.REPLACE else 1.0

    @property
    def words(self) -> str:
        if self is Adjacency.REPLACE:
            return "one record replaced by any other (sensitivity 2C/M)"
        return "one record added, removed or zeroed with M held fixed (sensitivity C/M)"

    @classmethod
    def of(cls, name: str) -> Adjacency:
        try:
            return cls(name)
        except ValueError:
            raise InputError(f"adjacency is {name!r}; it must be one of: {', '.join(cls)}") from None
