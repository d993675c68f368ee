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

from jsam.campaign.checked import RULE_NAMES, exactly, number, refuse_imports, rules_of, text, whole_number
from jsam.errors import InputError
from jsam.mechanism.rules import LATER, Rules
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
_LARGEST_FILE = 1_000_000


@dataclass(frozen=True, kw_only=True)
class PublicInputs:
    """What was published before anybody reported, and N: from these and the reports everybody's contract follows.

    The function η(N) is the constant of the rules where there is no budget; with one, `loss_weight` is what the rules
    give for that budget, prior, mechanism and N, and so can be computed again by anybody. Where the plan counts how
    much data clients hold, it follows from all their numbers of records, `sizes`, in rising order.
    """

    rules: Rules
    num_clients: int
    loss_weight: float
    rounds: int
    per_round: int
    learning_rate: float
    model: str
    precision: str = "float32"
    sizes: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        refuse_imports(self.rules)
        for name in ("model", "precision"):
            text(name, getattr(self, name))
        for name in ("num_clients", "rounds", "per_round"):
            whole_number(name, getattr(self, name), 1)
        for name in ("loss_weight", "learning_rate"):
            object.__setattr__(self, name, number(name, getattr(self, name)))
        if self.sizes is not None:
            self._check_sizes(self.sizes)
        if self.rules.loss_weight not in (None, self.loss_weight):
            raise InputError(f"loss_weight is {self.loss_weight:g}; the rules have {self.rules.loss_weight:g}")

    def _check_sizes(self, sizes: object) -> None:
        if not isinstance(sizes, tuple) or len(sizes) != self.num_clients:
            raise InputError(f"sizes must be a list of {self.num_clients} numbers, one for each client")
        for size in sizes:
            whole_number("sizes", size, 1)
        if list(sizes) != sorted(sizes):
            raise InputError("sizes must be in rising order")

    def as_dict(self) -> dict[str, Any]:
        """One flat object: the settings of the rules (their seed as `budget_seed`) beside the others."""
        rules = self.rules.as_dict()
        rules["budget_seed"] = rules.pop("seed")
        own = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in ("rules", "sizes")}
        # Left out where they do not count, as in earlier versions.
        sizes = {} if self.sizes is None else {"sizes": list(self.sizes)}
        return {**rules, **own, **sizes}

    @classmethod
    def from_dict(cls, stored: Any) -> PublicInputs:
        """The inverse of `as_dict`."""
        own = {field.name for field in fields(cls)} - {"rules"}
        unsaid = {name for name in (*LATER, "sizes") if not (isinstance(stored, Mapping) and name in stored)}
        flat = exactly({*RULE_NAMES, "budget_seed", *own} - {"seed"} - unsaid, stored, "public")
        constant = None if flat["budget"] is not None else flat["loss_weight"]
        rules = rules_of({**flat, "loss_weight": constant, "seed": flat["budget_seed"]})
        if isinstance(flat.get("sizes"), list):
            flat["sizes"] = tuple(flat["sizes"])
        return cls(rules=rules, **{name: flat[name] for name in own if name in flat})


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
        for name in ("campaign", "client", "adjacency", "drop_out_rule"):
            text(name, getattr(self, name))
        object.__setattr__(self, "adjacency", Adjacency.of(self.adjacency).value)
        if self.drop_out_rule not in DROP_OUT_WORDS:
            raise InputError(f"drop_out_rule is {self.drop_out_rule!r}; it must be one of: {', '.join(DROP_OUT_WORDS)}")
        whole_number("participations", self.participations, 0)
        whole_number("samples", self.samples, 1)
        for name in ("epsilon", "delta", "noise_multiplier", "noise_std", "clip_norm", "payment"):
            object.__setattr__(self, name, number(name, getattr(self, name)))
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
        # One text for one content: sorted keys, no spaces, ASCII, floats as their shortest exact digits.
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(canonical.encode()).hexdigest()

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
        names = [field.name for field in fields(cls)]
        content = exactly(names, {name: value for name, value in stored.items() if name != "jsam_terms"}, "terms")
        if not content["hash"]:
            raise InputError("terms have no hash; it must be 64 hexadecimal digits")
        return cls(**{**content, "public": PublicInputs.from_dict(content["public"])})

    @classmethod
    def from_json(cls, content: str | bytes) -> Terms:
        if len(content) > _LARGEST_FILE:
            raise InputError(f"terms are {len(content)} characters long; they must be at most {_LARGEST_FILE}")
        try:
            stored = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise InputError(f"terms are not JSON: {error}") from error
        return cls.from_dict(stored)

    @classmethod
    def load(cls, path: Path | str) -> Terms:
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise InputError(f"terms {path} cannot be read: {error.strerror}") from error
        try:
            return cls.from_json(content)
        except InputError as error:
            raise InputError(f"{path}: {error}") from error
