"""What a client has sold, spent and earned in one campaign, read off its own books."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from jsam.flower.terms import Terms
from jsam.privacy import Release, spent_epsilons


@dataclass(frozen=True, kw_only=True)
class Statement:
    """`participations` and `epsilon_spent` count all that is recorded; `payment` only what was answered.

    So both err on the safe side: privacy counts as spent before a reply can leave, money as earned after.
    """

    campaign: str
    id: str
    epsilon_bought: float
    epsilon_spent: float
    delta: float
    adjacency: str
    participations: int
    participations_bought: int
    releases: int
    payment: float
    payment_agreed: float
    closed: bool

    @classmethod
    def of(cls, terms: Terms, releases: Sequence[Release], answered_draws: int, *, closed: bool) -> Statement:
        return cls(
            campaign=terms.campaign,
            id=terms.client,
            epsilon_bought=terms.epsilon,
            epsilon_spent=spent_epsilons(releases, terms.delta).get(terms.client, 0.0),
            delta=terms.delta,
            adjacency=terms.adjacency,
            participations=sum(release.multiplicity for release in releases),
            participations_bought=terms.participations,
            releases=len(releases),
            payment=terms.payment_for(answered_draws),
            payment_agreed=terms.payment,
            closed=closed,
        )

    @property
    def epsilon_at_stake(self) -> float:
        """What an open campaign may come to spend."""
        return self.epsilon_bought if self.participations_bought else 0.0

    @property
    def overspent(self) -> bool:
        return self.epsilon_spent > self.epsilon_bought or self.participations > self.participations_bought

    def as_dict(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}
