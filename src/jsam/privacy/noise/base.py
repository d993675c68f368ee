"""What a noise rule is: how much noise a contract needs, and what the releases under it cost."""

from __future__ import annotations

from typing import ClassVar, Protocol

from jsam.privacy.accounting import Accountant
from jsam.privacy.adjacency import Adjacency
from jsam.privacy.gaussian import FloatArray


class NoiseRule(Protocol):
    """A dataclass whose fields are the constants that the rule leaves open; it is known by its `label`."""

    label: ClassVar[str]
    keeps_contracts: ClassVar[bool]  # False: only the ledger tells whether more ε was spent than was sold
    accountant: ClassVar[Accountant]

    @property
    def words(self) -> str:
        """How the noise is calibrated, for a report, as in "the noise is calibrated exactly"."""
        ...

    def multipliers(
        self, epsilons: FloatArray, delta: float, participations: FloatArray, adjacency: Adjacency
    ) -> FloatArray:
        """One multiplier (std ÷ (C/M)) for each client drawn at least once; the arguments are valid, of one shape."""
        ...
