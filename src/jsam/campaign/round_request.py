"""A server's request for one round, with everything that it claims was agreed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from jsam.campaign.messages import Value, Vector
from jsam.campaign.refusal import Reason, Refused
from jsam.campaign.terms import Terms

# What a request repeats from the terms that were accepted.
AGREED = ("clip_norm", "noise_std", "samples", "delta", "adjacency")


@dataclass(frozen=True, kw_only=True)
class RoundRequest:
    """Rounds are counted from 0; `noise_std` is that of a single draw, as in the terms."""

    campaign: str
    terms_hash: str
    round: int
    multiplicity: int
    clip_norm: float
    noise_std: float
    samples: int
    delta: float
    adjacency: str

    def __post_init__(self) -> None:
        for name in ("campaign", "terms_hash", "adjacency"):
            if not isinstance(getattr(self, name), str):
                raise Refused(Reason.MALFORMED, f"{name} must be a text")
        for name, low in (("round", 0), ("multiplicity", 1), ("samples", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < low:
                raise Refused(Reason.MALFORMED, f"{name} must be a whole number of at least {low}")
        for name in ("clip_norm", "noise_std", "delta"):
            value = getattr(self, name)
            # Not a number is no error here: it equals nothing, so it differs from the terms.
            if not isinstance(value, int | float) or isinstance(value, bool):
                raise Refused(Reason.MALFORMED, f"{name} must be a number")

    @classmethod
    def of_terms(cls, terms: Terms, *, round: int, multiplicity: int) -> RoundRequest:
        """What an honest server asks."""
        agreed = {name: getattr(terms, name) for name in ("campaign", *AGREED)}
        return cls(terms_hash=terms.hash, round=round, multiplicity=multiplicity, **agreed)

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> RoundRequest:
        """From a message's record; it must hold exactly these fields."""
        odd = given.keys() ^ {field.name for field in fields(cls)}
        if odd:
            raise Refused(Reason.MALFORMED, "the request must hold exactly the fields of a round")
        return cls(**given)

    def as_dict(self) -> dict[str, Value]:
        return asdict(self)


def model_digest(parameters: Vector) -> str:
    """The SHA-256 of a round's parameters, to which the round is bound on both sides."""
    return hashlib.sha256(np.ascontiguousarray(parameters).tobytes()).hexdigest()
