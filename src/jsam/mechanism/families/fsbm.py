"""FSBM-M: a fixed number of the cheapest clients, all selected equally often."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jsam.errors import InputError
from jsam.mechanism.families.fixed import FixedSelection
from jsam.mechanism.solver.profiles import Profiles, equal_probabilities


@dataclass(frozen=True, kw_only=True, eq=False)
class FSBM(FixedSelection):
    """The M lowest virtual costs at p = 1/M; it does not count the bias that this causes."""

    label: ClassVar[str] = "fsbm-M"

    num_selected: int

    @property
    def name(self) -> str:
        return self.label.replace("-M", f"-{self.num_selected}")

    def profiles(self, num_clients: int) -> Profiles:
        self._check_size(num_clients)
        return equal_probabilities(num_clients, self.num_selected)

    def _check_size(self, num_clients: int) -> None:
        if not 1 <= self.num_selected <= num_clients:
            raise InputError(
                f"{self.name} selects {self.num_selected} of {num_clients} clients; 1 to {num_clients} are possible"
            )
