"""Array types that the economics modules share, and what dataclasses of arrays have in common."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


class Columns:
    """For a dataclass of arrays whose last axes all run over the same things."""

    def some(self, which: Any) -> Self:
        """Those that a mask, indices or a slice picks."""
        return type(self)(**{name: values[..., which] for name, values in vars(self).items()})

    def joined(self, other: Self) -> Self:
        """These, then the others."""
        theirs = vars(other)
        return type(self)(**{n: np.concatenate([mine, theirs[n]], axis=-1) for n, mine in vars(self).items()})
