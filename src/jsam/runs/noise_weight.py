"""The noise weight Q from what is public before training: the model's size, a client's data, and the privacy rule.

The loss bound adds bias and noise of one mean update, both in units of the clipping norm C, which no clipped
gradient exceeds. The noise of all D coordinates, averaged over all draws of a run, has the variance
2 ln(1/δ) D (C/M)² Σ p²/ε², so Q = 2 ln(1/δ) D/M²; C and the numbers of rounds and draws cancel (docs/theory.md, "The
noise weight").
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from jsam.errors import InputError
from jsam.privacy import Adjacency
from jsam.runs.settings import TrainingSettings


@dataclass(frozen=True, kw_only=True)
class NoiseWeight:
    """Q with its parts: `constant` is the squared noise of one draw at ε = 1, in squares of the sensitivity C/M."""

    num_parameters: int
    samples: float  # of an average client
    constant: float

    def __post_init__(self) -> None:
        if not (self.num_parameters >= 1 and self.samples >= 1):
            raise InputError(
                f"a noise weight needs a model and data, not {self.num_parameters} parameters and"
                f" {self.samples:g} records of a client"
            )

    @classmethod
    def of(cls, settings: TrainingSettings, *, num_parameters: int, samples: float) -> NoiseWeight:
        """The weight for training with these settings; `samples` are the records of an average client.

        >>> NoiseWeight.of(TrainingSettings(), num_parameters=26_010, samples=600).value
        1.66
        """
        factor = 2.0 if settings.c2 is None else settings.c2**2
        if settings.c2 is None:
            factor *= Adjacency.of(settings.adjacency).factor ** 2
        return cls(num_parameters=num_parameters, samples=samples, constant=factor * math.log(1 / settings.delta))

    @property
    def value(self) -> float:
        """Q, to three digits: more would pretend to an accuracy that a bound does not have."""
        return float(f"{self.constant * self.num_parameters / self.samples**2:.3g}")

    @property
    def words(self) -> str:
        """The value and what it is made of."""
        return (
            f"{self.value:g} = {self.constant:.3g} · D/M², with D = {self.num_parameters:,} parameters"
            f" and M = {self.samples:,.6g} records of a client"
        )
