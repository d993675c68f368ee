"""One client's side of a contract, as it is offered, checked, accepted and later held against every request."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from jsam.errors import InputError
from jsam.files import write_atomically
from jsam.privacy import Adjacency, Release, epsilon_of, noise_multiplier

TERMS_FORMAT = 1
PAID_BY_EPSILON = "paid-by-epsilon-spent"
# The rule of terms that an earlier version offered. Campaigns under it are settled by it; it is not accepted any more.
PAID_BY_DRAWS = "paid-for-what-was-released"
DROP_OUT_WORDS = {
    PAID_BY_EPSILON: "a client that drops out is paid the payment times the share of ε that it spent, or times its "
    "share of draws where that is larger; a client that is never drawn is paid in full",
    PAID_BY_DRAWS: "a client that drops out is paid for what it released: the payment times the spent share of μ², "
    "which is the share of its draws; a client that is never drawn is paid in full",
}
_LONGEST_TEXT = 200
_LARGEST_FILE = 1_000_000


@dataclass(frozen=True, kw_only=True)
class PublicInputs:
    """What was published before anybody reported, and N: from these and the reports everybody's contract follows.

    The function η(N) is the constant `loss_weight` where there is no budget; with one, `loss_weight` is what
    `loss_weight_for_budget` gives for that budget, prior, mechanism and N, and so can be computed again by anybody.
    """

    prior: str
    mechanism: str
    num_clients: int
    loss_weight: float
    budget: float | None = None
    budget_probability: float | None = None
    budget_seed: int = 0
    noise_weight: float = 1.0
    bias_weight: float = 1.0
    max_selection_prob: float | None = None
    max_epsilon: float | None = None
    rounds: int
    per_round: int
    learning_rate: float
    model: str
    precision: str = "float32"

    def __post_init__(self) -> None:
        _texts(self, "prior", "mechanism", "model", "precision")
        _whole_numbers(self, 1, "num_clients", "rounds", "per_round")
        _whole_numbers(self, 0, "budget_seed")
        _numbers(self, 0.0, "loss_weight", "noise_weight", "bias_weight", "learning_rate")
        for name in ("budget", "budget_probability", "max_selection_prob", "max_epsilon"):
            if getattr(self, name) is not None:
                _numbers(self, 0.0, name)

    def as_dict(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_dict(cls, stored: Any) -> PublicInputs:
        return cls(**_exactly(cls, stored, "public"))


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What one client is offered. Only shapes and ranges are checked here; `verify` judges whether the terms are good.

    `noise_multiplier` and `noise_std` are those of a single draw: std = multiplier × clip_norm ÷ samples, on the mean
    of clipped gradients; a client drawn m times in a round releases once, with std ÷ √m (docs/theory.md).
    `hash` is the SHA-256 of everything else as canonical JSON. Left empty it is computed; given, it is kept as claimed.
    """

    campaign: str
    client: str
    epsilon: float
    delta: float
    participations: int
    noise_multiplier: float
    noise_std: float
    clip_norm: float
    samples: int
    adjacency: str
    payment: float
    public: PublicInputs
    drop_out_rule: str = PAID_BY_EPSILON
    hash: str = ""

    def __post_init__(self) -> None:
        _texts(self, "campaign", "client", "adjacency", "drop_out_rule")
        object.__setattr__(self, "adjacency", Adjacency.of(self.adjacency).value)
        if self.drop_out_rule not in DROP_OUT_WORDS:
            raise InputError(f"drop_out_rule is {self.drop_out_rule!r}; it must be one of: {', '.join(DROP_OUT_WORDS)}")
        _whole_numbers(self, 0, "participations")
        _whole_numbers(self, 1, "samples")
        _numbers(self, 0.0, "epsilon", "delta", "noise_multiplier", "noise_std", "clip_norm", "payment")
        if not 0 < self.delta < 1:
            raise InputError(f"delta is {self.delta:g}; it must lie strictly between 0 and 1")
        if self.clip_norm == 0:
            raise InputError("clip_norm is 0; it must be above 0")
        if not isinstance(self.public, PublicInputs):
            raise InputError("public is missing; it must hold the public inputs of the campaign")
        if not isinstance(self.hash, str):
            raise InputError(f"hash is {self.hash!r}; it must be 64 hexadecimal digits")
        if not self.hash:
            object.__setattr__(self, "hash", self.digest)

    @classmethod
    def of_contract(
        cls,
        *,
        campaign: str,
        client: str,
        epsilon: float,
        delta: float,
        participations: int,
        clip_norm: float,
        samples: int,
        adjacency: str,
        payment: float,
        public: PublicInputs,
    ) -> Terms:
        """The offer with exactly the noise that it needs."""
        if samples < 1:
            raise InputError(f"samples is {samples}; it must be a whole number of at least 1")
        multiplier = float(noise_multiplier(epsilon, delta, participations, adjacency=adjacency))
        return cls(
            campaign=campaign,
            client=client,
            epsilon=epsilon,
            delta=delta,
            participations=participations,
            noise_multiplier=multiplier,
            noise_std=multiplier * (clip_norm / samples),
            clip_norm=clip_norm,
            samples=samples,
            adjacency=adjacency,
            payment=payment,
            public=public,
        )

    @cached_property
    def digest(self) -> str:
        """What `hash` must be."""
        content = self.as_dict()
        del content["hash"]
        return hashlib.sha256(_canonical(content)).hexdigest()

    @property
    def sensitivity(self) -> float:
        """Δ: how far one record can move the mean of clipped gradients."""
        return Adjacency.of(self.adjacency).factor * (self.clip_norm / self.samples)

    @property
    def mu(self) -> float:
        """μ of all draws together, √T_k Δ ÷ std; infinite where there are draws without noise."""
        if self.participations == 0:
            return 0.0
        return math.sqrt(self.participations) * self.sensitivity / self.noise_std if self.noise_std > 0 else math.inf

    def release(self, round: int, multiplicity: int) -> Release:
        """The release of one round under these terms, as the books will have it."""
        return Release(
            round=round,
            client=self.client,
            multiplicity=multiplicity,
            samples=self.samples,
            clip_norm=self.clip_norm,
            sensitivity=self.sensitivity,
            noise_std=self.noise_std / math.sqrt(multiplicity),
            adjacency=Adjacency.of(self.adjacency),
            delta=self.delta,
        )

    def payment_for(self, draws: int) -> float:
        """What is due once so many draws were released, by the terms' drop-out rule.

        The first draws cost the most ε: of 1,000 draws one alone may spend a tenth of it. So by `PAID_BY_EPSILON` what
        is due is never below payment × ε spent ÷ ε bought, never above the payment, and grows with every draw.
        """
        if self.participations == 0 or draws >= self.participations:
            return self.payment
        share = draws / self.participations
        if self.drop_out_rule == PAID_BY_EPSILON and share > 0:
            share = max(share, self._share_of_epsilon(share))
        return self.payment * share

    def _share_of_epsilon(self, draws_share: float) -> float:
        """ε of so large a share of the draws ÷ ε of all of them, which is at most the ε that was bought."""
        whole = min(float(epsilon_of(self.mu, self.delta)), self.epsilon)
        if not 0 < whole < math.inf:
            return 0.0
        return min(float(epsilon_of(self.mu * math.sqrt(draws_share), self.delta)) / whole, 1.0)

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers and strings, ready for JSON."""
        content = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"jsam_terms": TERMS_FORMAT, **content, "public": self.public.as_dict()}

    def to_json(self) -> str:
        return json.dumps(self.as_dict(), indent=1, sort_keys=True, allow_nan=False) + "\n"

    @classmethod
    def from_dict(cls, stored: Any) -> Terms:
        """The inverse of `as_dict`; a hash that does not fit is kept, for `verify` to find."""
        if not isinstance(stored, Mapping) or stored.get("jsam_terms") != TERMS_FORMAT:
            raise InputError(f"not terms of this version: jsam_terms must be {TERMS_FORMAT}")
        content = _exactly(cls, {name: value for name, value in stored.items() if name != "jsam_terms"}, "terms")
        if not content["hash"]:
            raise InputError("terms have no hash; it must be 64 hexadecimal digits")
        return cls(**{**content, "public": PublicInputs.from_dict(content["public"])})

    @classmethod
    def from_json(cls, text: str | bytes) -> Terms:
        if len(text) > _LARGEST_FILE:
            raise InputError(f"terms are {len(text)} characters long; they must be at most {_LARGEST_FILE}")
        try:
            stored = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"terms are not JSON: {error}") from error
        return cls.from_dict(stored)

    def save(self, path: Path | str) -> None:
        write_atomically(Path(path), self.to_json().encode())

    @classmethod
    def load(cls, path: Path | str) -> Terms:
        try:
            text = Path(path).read_bytes()
        except OSError as error:
            raise InputError(f"terms {path} cannot be read: {error.strerror}") from error
        try:
            return cls.from_json(text)
        except InputError as error:
            raise InputError(f"{path}: {error}") from error


def _canonical(content: Mapping[str, Any]) -> bytes:
    """One text for one content: sorted keys, no spaces, ASCII, floats as their shortest exact digits."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _exactly(kind: type, stored: Any, where: str) -> dict[str, Any]:
    names = {field.name for field in fields(kind)}
    if not isinstance(stored, Mapping):
        raise InputError(f"{where} must be an object with: {', '.join(sorted(names))}")
    odd = sorted(map(str, stored.keys() ^ names))
    if odd:
        words = [f"{'has unknown' if name in stored else 'lacks'} {name[:_LONGEST_TEXT]!r}" for name in odd]
        raise InputError(f"{where} {', '.join(words)}; it must hold exactly: {', '.join(sorted(names))}")
    return dict(stored)


def _texts(holder: object, *names: str) -> None:
    for name in names:
        value = getattr(holder, name)
        if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_TEXT or not value.isprintable():
            raise InputError(f"{name} must be a text of 1 to {_LONGEST_TEXT} printable characters")


def _whole_numbers(holder: object, low: int, *names: str) -> None:
    for name in names:
        value = getattr(holder, name)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value < 2**63:
            raise InputError(f"{name} is {value!r}; it must be a whole number of at least {low}")


def _numbers(holder: object, low: float, *names: str) -> None:
    for name in names:
        value = getattr(holder, name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(f"{name} is {value!r}; it must be a number")
        try:
            # One form for one number, or 1 and 1.0 (0.0 and −0.0) would differ in the hash.
            number = float(value) + 0.0
        except OverflowError:
            number = math.inf
        if not (math.isfinite(number) and number >= low):
            raise InputError(f"{name} is {number:g}; it must be finite and at least {low:g}")
        object.__setattr__(holder, name, number)
