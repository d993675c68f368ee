"""What a client has sold, spent and earned in one campaign, read off its own books, and in all of them together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from jsam.flower.terms import Terms
from jsam.privacy import Release, spent_epsilons


@dataclass(frozen=True, kw_only=True)
class Total:
    """(Σ ε, Σ δ) over campaigns: what they come to together, by basic composition."""

    epsilon: float = 0.0
    delta: float = 0.0

    def as_dict(self) -> dict[str, float]:
        return {"epsilon": self.epsilon, "delta": self.delta}


NOTHING = Total()


@dataclass(frozen=True, kw_only=True)
class Statement:
    """`participations` and `epsilon_spent` count all that is recorded; `payment` only what was answered.

    So both err on the safe side: privacy counts as spent before a reply can leave, money as earned after. A campaign
    that was closed before anything was released is `withdrawn`: nothing was spent, nothing is due, not even for terms
    without draws, and no ε is held ready for it.
    """

    campaign: str
    id: str
    epsilon_bought: float
    epsilon_spent: float
    delta: float
    delta_spent: float
    adjacency: str
    participations: int
    participations_bought: int
    releases: int
    payment: float
    payment_agreed: float
    closed: bool
    withdrawn: bool

    @classmethod
    def of(cls, terms: Terms, releases: Sequence[Release], answered_draws: int, *, closed: bool) -> Statement:
        withdrawn = closed and not releases
        return cls(
            campaign=terms.campaign,
            id=terms.client,
            epsilon_bought=terms.epsilon,
            epsilon_spent=spent_epsilons(releases, terms.delta).get(terms.client, 0.0),
            delta=terms.delta,
            # Any release at all takes the whole of it.
            delta_spent=terms.delta if releases else 0.0,
            adjacency=terms.adjacency,
            participations=sum(release.multiplicity for release in releases),
            participations_bought=terms.participations,
            releases=len(releases),
            payment=0.0 if withdrawn else terms.payment_for(answered_draws),
            payment_agreed=terms.payment,
            closed=closed,
            withdrawn=withdrawn,
        )

    @property
    def spent(self) -> Total:
        return Total(epsilon=self.epsilon_spent, delta=self.delta_spent)

    @property
    def committed(self) -> Total:
        """What the campaign may come to spend, or did spend if it is over."""
        if self.closed:
            return self.spent
        return Total(epsilon=self.epsilon_bought, delta=self.delta) if self.participations_bought else NOTHING

    @property
    def overspent(self) -> bool:
        return self.epsilon_spent > self.epsilon_bought or self.participations > self.participations_bought

    def as_dict(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


def total(parts: Iterable[Total]) -> Total:
    parts = list(parts)
    return Total(epsilon=math.fsum(part.epsilon for part in parts), delta=math.fsum(part.delta for part in parts))
