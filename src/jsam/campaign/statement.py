"""What a client has sold, spent and earned in one campaign, read off its own books, and in all of them together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from jsam.campaign.terms import Terms
from jsam.privacy import Adjacency, Release, spent_mus
from jsam.privacy.gaussian import composed_epsilon, epsilon_of


@dataclass(frozen=True, kw_only=True)
class Total:
    """What campaigns come to together: μ of all that was sold under each adjacency, and beside it the plain sums.

    All releases are Gaussian, so μ composes exactly: √(Σ μ²). Moving one record's gradient by 2 C ÷ M (`replace`) is
    moving it twice by C ÷ M, so for a guarantee of `replace` campaigns sold for `add-remove` count with 2 μ. For a
    guarantee of `add-remove` campaigns sold for `replace` would count with μ ÷ 2; they count with μ as they were sold,
    so that a total is never less than what any campaign in it spent.

    `samples` is the largest number of records that any of them was about.
    """

    mu_add_remove: float = 0.0
    mu_replace: float = 0.0
    sum_epsilon: float = 0.0
    sum_delta: float = 0.0
    samples: int = 1

    @classmethod
    def of(cls, mu: float, *, epsilon: float, delta: float, adjacency: str, samples: int) -> Total:
        """The total of one campaign; all 0 where nothing was released."""
        if mu == 0:
            return cls()
        replace = Adjacency.of(adjacency) is Adjacency.REPLACE
        return cls(
            mu_add_remove=0.0 if replace else mu,
            mu_replace=mu if replace else 0.0,
            sum_epsilon=epsilon,
            sum_delta=delta,
            samples=samples,
        )

    @classmethod
    def of_terms(cls, terms: Terms) -> Total:
        """What one client may come to spend under these terms."""
        return cls.of(
            terms.mu, epsilon=terms.epsilon, delta=terms.delta, adjacency=terms.adjacency, samples=terms.samples
        )

    def epsilon(self, delta: float, adjacency: str = "add-remove") -> float:
        """ε of all together at this δ, by exact composition, rounded up."""
        factor = Adjacency.of(adjacency).factor
        return composed_epsilon([factor * self.mu_add_remove, self.mu_replace], delta)


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
    samples: int
    mu_bought: float
    mu_spent: float
    participations: int
    participations_bought: int
    releases: int
    payment: float
    payment_agreed: float
    drop_out_rule: str
    closed: bool
    withdrawn: bool

    @classmethod
    def of(cls, terms: Terms, releases: Sequence[Release], answered_draws: int, *, closed: bool) -> Statement:
        withdrawn = closed and not releases
        mu = spent_mus(releases).get(terms.client, 0.0)
        return cls(
            campaign=terms.campaign,
            id=terms.client,
            epsilon_bought=terms.epsilon,
            epsilon_spent=float(epsilon_of(mu, terms.delta)),
            delta=terms.delta,
            # Any release at all takes the whole of it.
            delta_spent=terms.delta if releases else 0.0,
            adjacency=terms.adjacency,
            samples=terms.samples,
            mu_bought=terms.mu,
            mu_spent=mu,
            participations=sum(release.multiplicity for release in releases),
            participations_bought=terms.participations,
            releases=len(releases),
            payment=0.0 if withdrawn else terms.payment_for(answered_draws),
            payment_agreed=terms.payment,
            drop_out_rule=terms.drop_out_rule,
            closed=closed,
            withdrawn=withdrawn,
        )

    @property
    def spent(self) -> Total:
        return self._total(self.mu_spent, self.epsilon_spent, self.delta_spent)

    @property
    def committed(self) -> Total:
        """What the campaign may come to spend, or did spend if it is over."""
        if self.closed:
            return self.spent
        return self._total(max(self.mu_bought, self.mu_spent), self.epsilon_bought, self.delta)

    @property
    def overspent(self) -> bool:
        return self.epsilon_spent > self.epsilon_bought or self.participations > self.participations_bought

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def _total(self, mu: float, epsilon: float, delta: float) -> Total:
        return Total.of(mu, epsilon=epsilon, delta=delta, adjacency=self.adjacency, samples=self.samples)


def total(parts: Iterable[Total]) -> Total:
    parts = list(parts)
    return Total(
        mu_add_remove=math.hypot(*(part.mu_add_remove for part in parts)),
        mu_replace=math.hypot(*(part.mu_replace for part in parts)),
        sum_epsilon=math.fsum(part.sum_epsilon for part in parts),
        sum_delta=math.fsum(part.sum_delta for part in parts),
        samples=max((part.samples for part in parts), default=1),
    )
