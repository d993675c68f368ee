"""FSBM-M: a fixed number of the cheapest clients, all selected equally often."""

from __future__ import annotations

from dataclasses import dataclass

from jsam.errors import InputError
from jsam.mechanism.families.base import RangeMechanism
from jsam.mechanism.solver.profiles import Profiles, equal_probabilities


@dataclass(frozen=True, kw_only=True, eq=False)
class FSBM(RangeMechanism):
    """The M lowest virtual costs at p = 1/M; it does not count the bias that this causes."""

    num_selected: int

    @property
    def name(self) -> str:
        return f"fsbm-{self.num_selected}"

    def profiles(self, num_clients: int) -> Profiles:
        check_size(self.name, self.num_selected, num_clients, self.max_selection_prob)
        return equal_probabilities(num_clients, self.num_selected)


def check_size(name: str, num_selected: int, num_clients: int, max_selection_prob: float | None) -> None:
    """M must be a possible number of clients and 1/M within the cap."""
    if not 1 <= num_selected <= num_clients:
        raise InputError(f"{name} selects {num_selected} of {num_clients} clients; 1 to {num_clients} are possible")
    if max_selection_prob is not None and max_selection_prob * num_selected < 1 - 1e-12:
        raise InputError(
            f"{name} selects each of its clients with probability 1/{num_selected}, above max_selection_prob"
            f" {max_selection_prob:g}; raise the cap or select more clients"
        )
