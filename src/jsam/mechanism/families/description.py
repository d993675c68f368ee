"""What a mechanism says of itself, so that nobody has to know it by its name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Need:
    """A number of each client, beside its sensitivity, by which a mechanism selects."""

    argument: str  # its name in Python: of the market if `in_market`, else of the mechanism
    column: str  # its name in CLIENTS.csv
    words: str  # what it is, as in "selects by local loss"
    in_market: bool
    from_records: bool  # computed from the clients' records, so that no noise covers what it gives away


LOSSES = Need(argument="losses", column="loss", words="local loss", in_market=True, from_records=True)
SELECTION_PROBS = Need(
    argument="selection_probs",
    column="selection_prob",
    words="given probabilities",
    in_market=False,
    from_records=False,
)


@dataclass(frozen=True, kw_only=True)
class Description:
    """What may be asked of a mechanism before one is made."""

    name: str  # by which it is made; -M stands for a number of clients, -K for one of types
    summary: str
    truthful: bool  # it claims that no client can gain by misreporting
    optimal: bool  # it claims the least objective of all selection probabilities and budgets
    chooses_probs: bool  # a cap on p shapes its choice; the others' fixed p keeps to the cap or is refused
    knows_sensitivities: bool  # the server must know every sensitivity, so reports prove nothing
    spends_budget: bool  # it divides a given budget after the reports, and has no loss weight
    needs: tuple[Need, ...]

    @classmethod
    def of(cls, name: str, mechanism: type[Any]) -> Description:
        """The description of a class by what it says; a user's own class need not say anything but `truthful`."""
        return cls(
            name=name,
            summary=(mechanism.__doc__ or "").strip().partition("\n")[0],
            truthful=getattr(mechanism, "truthful", False) is True,
            optimal=getattr(mechanism, "optimal", False) is True,
            chooses_probs=getattr(mechanism, "chooses_probs", False) is True,
            knows_sensitivities=getattr(mechanism, "knows_sensitivities", False) is True,
            spends_budget=getattr(mechanism, "spends_budget", False) is True,
            needs=tuple(getattr(mechanism, "needs", ())),
        )

    @property
    def chooses_by_records(self) -> bool:
        """Whether who is selected gives away something of the clients' records, which no noise covers."""
        return any(need.from_records for need in self.needs)

    @property
    def sized(self) -> bool:
        """Whether the name ends in a number: of clients, or of types."""
        return self.name.endswith(("-M", "-K"))

    @property
    def example(self) -> str:
        """A name that can be used as it stands."""
        return self.name.removesuffix("-M").removesuffix("-K") + "-50" if self.sized else self.name
