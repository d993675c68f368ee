"""One noisy release of one client, as it happened; accountants read these and decide what they cost."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum

from jsam.errors import InputError
from jsam.privacy.adjacency import Adjacency

Client = int | str
Key = tuple[str, int, Client]

_ROUNDING = 1e-9


class Query(StrEnum):
    """What was asked of a client's records."""

    GRADIENT = "gradient"  # the mean of clipped gradients
    LABEL_COUNTS = "label counts"  # how many records have each label, before the first round


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """A client drawn m times in a round releases once, its weight m and its noise the m-th root less: the same privacy.

    `noise_std` is that of the single release made, on the mean of clipped gradients over `samples` records.
    A standard deviation of 0 is recorded as what it is: the accountants then report infinite spending. Of label counts
    it is that on each count, where a record counts with `clip_norm`, and the round is 0, before which they were asked.
    """

    round: int
    client: Client
    multiplicity: int
    samples: int
    clip_norm: float
    sensitivity: float
    noise_std: float
    adjacency: Adjacency
    delta: float
    query: Query = Query.GRADIENT

    def __post_init__(self) -> None:
        # A ledger holds these by the hundred thousand: what already has its plain type is not set again.
        for name, low in (("round", 0), ("multiplicity", 1), ("samples", 1)):
            value = getattr(self, name)
            if type(value) is not int or value < low:
                object.__setattr__(self, name, _whole(name, value, low))
        if not isinstance(self.client, str):
            object.__setattr__(self, "client", _whole("client", self.client, 0))
        for name in ("clip_norm", "sensitivity", "noise_std", "delta"):
            value = getattr(self, name)
            if type(value) is not float or not math.isfinite(value):
                object.__setattr__(self, name, _finite(name, value))
        if type(self.adjacency) is not Adjacency:
            object.__setattr__(self, "adjacency", Adjacency.of(self.adjacency))
        if self.clip_norm <= 0:
            raise InputError(f"clip_norm is {self.clip_norm:g}; it must be above 0")
        if self.noise_std < 0:
            raise InputError(f"noise_std is {self.noise_std:g}; it must be at least 0")
        if not 0 < self.delta < 1:
            raise InputError(f"delta is {self.delta:g}; it must lie strictly between 0 and 1")
        if type(self.query) is not Query:
            object.__setattr__(self, "query", _query(self.query))
        if self.query is Query.LABEL_COUNTS and self.round:
            raise InputError(f"round is {self.round}; label counts are asked for before round 0")
        least = self._least_sensitivity
        if self.sensitivity < least * (1 - _ROUNDING):
            raise InputError(
                f"sensitivity is {self.sensitivity:g}; with clip_norm {self.clip_norm:g}, {self.samples} samples and "
                f"adjacency {self.adjacency} it must be at least {least:g}"
            )

    @property
    def _least_sensitivity(self) -> float:
        if self.query is Query.LABEL_COUNTS:
            return self.adjacency.count_sensitivity * self.clip_norm
        return self.adjacency.factor * self.clip_norm / self.samples

    @property
    def key(self) -> Key:
        """What a ledger has once at most."""
        return self.query, self.round, self.client

    @property
    def place(self) -> str:
        """Where it belongs, in words."""
        return f"round {self.round}" if self.query is Query.GRADIENT else str(self.query)

    @classmethod
    def of_draws(
        cls,
        *,
        round: int,
        client: Client,
        multiplicity: int,
        noise_multiplier: float,
        clip_norm: float,
        samples: int,
        adjacency: str,
        delta: float,
    ) -> Release:
        """The release of a client drawn `multiplicity` times, with the multiplier of a single draw."""
        kind = Adjacency.of(adjacency)
        unit = clip_norm / samples
        return cls(
            round=round,
            client=client,
            multiplicity=multiplicity,
            samples=samples,
            clip_norm=clip_norm,
            sensitivity=kind.factor * unit,
            noise_std=noise_multiplier * unit / math.sqrt(multiplicity),
            adjacency=kind,
            delta=delta,
        )

    @classmethod
    def of_label_counts(
        cls, *, client: Client, samples: int, noise_std: float, adjacency: str, delta: float
    ) -> Release:
        """The release of a client's label counts, each with noise of this standard deviation."""
        kind = Adjacency.of(adjacency)
        return cls(
            round=0,
            client=client,
            multiplicity=1,
            samples=samples,
            clip_norm=1.0,
            sensitivity=kind.count_sensitivity,
            noise_std=noise_std,
            adjacency=kind,
            delta=delta,
            query=Query.LABEL_COUNTS,
        )

    @classmethod
    def from_record(cls, record: Mapping[str, object]) -> Release:
        missing = _NAMES - record.keys() - _LATER
        unknown = record.keys() - _NAMES
        if missing or unknown:
            words = [f"lacks {name}" for name in sorted(missing)] + [f"has unknown {name}" for name in sorted(unknown)]
            raise InputError(f"the record {', '.join(words)}; it must hold exactly: {', '.join(FIELD_NAMES)}")
        return cls(**record)  # type: ignore[arg-type]  # every field is checked at construction

    def to_record(self) -> dict[str, object]:
        """The fields by name; a gradient is what is asked for where the record does not say it."""
        skipped = _LATER if self.query is Query.GRADIENT else frozenset()
        return {name: getattr(self, name) for name in FIELD_NAMES if name not in skipped}


FIELD_NAMES = tuple(field.name for field in fields(Release))
_NAMES = frozenset(FIELD_NAMES)
_LATER = frozenset({"query"})  # left out of records of gradients, as in earlier versions


def _query(name: object) -> Query:
    try:
        return Query(name)  # type: ignore[arg-type]  # anything may stand in a file
    except ValueError:
        raise InputError(f"query is {name!r}; it must be one of: {', '.join(Query)}") from None


def _whole(name: str, value: object, low: int) -> int:
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # refuses floats and words, takes numpy's integers
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or number < low:
        raise InputError(f"{name} is {value!r}; it must be a whole number of at least {low}")
    return number


def _finite(name: str, value: object) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]  # numpy's scalars too
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(value, str) or not math.isfinite(number):
        raise InputError(f"{name} is {value!r}; it must be a finite number")
    return number
