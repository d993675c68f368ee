"""Label counts that a run bought of every client before its plan: what for, at what ε and what price (decision 0027).

The price of a unit of ε is that of the dearest client that the prior allows, the same for everybody. It is fixed before
anybody reports, and is paid beside the budget.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from jsam.errors import RunFolderError
from jsam.mechanism.priors import Prior
from jsam.privacy import Release, label_noise
from jsam.privacy.label_counts import LEAST_EPSILON, MOST_EPSILON
from jsam.runs.settings import TrainingSettings

CONFIG_KEY = "label_counts"
LARGEST = 1e100  # of any number here; what they multiply to is finite
BEYOND = 1e-3  # where a prior has no end, this share of clients is dearer than the price


@dataclass(frozen=True, kw_only=True)
class LabelCounts:
    """Each of `num_clients` clients sold `epsilon` for its counts, at `price` a unit; they gave ζ² = `heterogeneity`.

    `dearer` is the share of clients whose own price may be above it: 0 unless the prior has no end.
    """

    epsilon: float
    price: float
    dearer: float
    num_clients: int
    heterogeneity: float

    @property
    def payment(self) -> float:
        """What each client is paid for its counts."""
        return self.epsilon * self.price

    @property
    def total(self) -> float:
        """What all clients are paid for them."""
        return self.payment * self.num_clients

    @property
    def words(self) -> str:
        """What they told and what they cost, in a line."""
        rational = f" (one client in {1 / self.dearer:,.0f} is dearer)" if self.dearer else ""
        return (
            f"ζ² = {self.heterogeneity:.4g}; ε = {self.epsilon:g} charged to each of {self.num_clients} clients,"
            f" paid {self.payment:.4g} each{rational}, {self.total:.6g} in total, beside the budget"
        )

    def releases(self, ids: Sequence[str], samples: Sequence[int], settings: TrainingSettings) -> tuple[Release, ...]:
        """What goes into the ledger before a count is used."""
        std = label_noise(self.epsilon, settings.delta, settings.adjacency)
        return tuple(
            Release.of_label_counts(
                client=client, samples=held, noise_std=std, adjacency=settings.adjacency, delta=settings.delta
            )
            for client, held in zip(ids, samples, strict=True)
        )

    def as_dict(self) -> dict[str, Any]:
        """All fields, with what follows from them for readers of the file."""
        return {**asdict(self), "payment": self.payment, "total": self.total}

    @classmethod
    def of_run(cls, config: Mapping[str, Any]) -> LabelCounts | None:
        """Those of a run folder's config.json; None where nobody was asked."""
        stored = config.get(CONFIG_KEY)
        if stored is None:
            return None
        names = [field.name for field in fields(cls)]
        given: dict[str, Any] = {name: stored.get(name) for name in names} if isinstance(stored, dict) else {}
        plain = all(isinstance(value, int | float) and not isinstance(value, bool) for value in given.values())
        if not given or not plain or not all(0 <= value < LARGEST for value in given.values()):
            raise RunFolderError(f"config.json is damaged: {CONFIG_KEY} must have the numbers {', '.join(names)}")
        if not (LEAST_EPSILON <= given["epsilon"] <= MOST_EPSILON and isinstance(given["num_clients"], int)):
            raise RunFolderError(f"config.json is damaged: {CONFIG_KEY} has an ε or a number of clients that none has")
        return cls(**given)


def dearest_price(priors: Iterable[Prior]) -> tuple[float, float]:
    """What a unit of ε costs the dearest client under these priors, and the share of clients that are dearer.

    Where a prior has no end, its quantile takes the place of the end.
    """
    prices, dearer = [], 0.0
    for prior in priors:
        top = float(prior.support()[1])
        if math.isinf(top):
            top, dearer = float(prior.isf(BEYOND)), BEYOND
        prices.append(top)
    return max(prices), dearer
