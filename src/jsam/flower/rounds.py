"""One round on the server: ask whoever is drawn, again after failures, and take what has come when the time is over.

A request is known by its ask id, a function of campaign, terms, round, draws and model. It may travel in several of
Flower's messages (after a lost one, or to a node that came back under another id) and is always the same request: the
client's ledger answers it once and repeats that answer ever after.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from jsam.flower.errands import Errands
from jsam.flower.exchange import Exchange, Reply
from jsam.flower.published import Conduct
from jsam.flower.requests import Request
from jsam.flower.roster import Roster
from jsam.flower.terms import Terms

logger = logging.getLogger("flwr.jsam")
Vector = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What one client is asked for in one round."""

    client: str
    request: Request
    model_digest: str

    @classmethod
    def of(cls, terms: Terms, *, round: int, multiplicity: int, model_digest: str) -> Ask:
        request = Request.of_terms(terms, round=round, multiplicity=multiplicity)
        return cls(client=terms.client, request=request, model_digest=model_digest)

    @property
    def ask_id(self) -> str:
        request = self.request
        parts = (request.campaign, request.terms_hash, request.round, request.multiplicity, self.model_digest)
        return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:32]

    def content(self, parameters: Vector) -> RecordDict:
        request = ConfigRecord({**self.request.as_dict(), "ask_id": self.ask_id})
        return RecordDict({"request": request, "model": ArrayRecord({"parameters": Array(parameters)})})


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """What a round brought: noisy means by client, and why others are missing."""

    releases: Mapping[str, Vector]
    missing: Mapping[str, str]


def gather(
    exchange: Exchange,
    roster: Roster,
    asks: Mapping[str, Ask],
    parameters: Vector,
    conduct: Conduct,
    *,
    before_asking: Callable[[Ask], None],
    on_reply: Callable[[Ask, Vector], None],
) -> Gathered:
    """`before_asking` writes an ask into the books, `on_reply` stores a reply; both are on disk when they return."""
    releases: dict[str, Vector] = {}
    missing: dict[str, str] = {}

    def take(name: str, reply: Reply) -> None:
        refused = reply.config.get("refused")
        release = None if refused is not None else _release_in(reply, asks[name], parameters)
        if release is None:
            logger.warning("%s: %s (%s)", name, refused or "no release of this round", reply.config.get("text", ""))
            missing[name] = str(refused or "unusable")
            return
        on_reply(asks[name], release)
        releases[name] = release

    rounds = {str(ask.request.round) for ask in asks.values()}
    errands = Errands(exchange, roster, asks, "train", seconds=conduct.round_seconds, repeat=conduct.repeat_seconds)
    silent = errands.run(
        lambda name: asks[name].content(parameters),
        take,
        before=lambda name: before_asking(asks[name]),
        group=rounds.pop() if len(rounds) == 1 else "",
    )
    return Gathered(releases=releases, missing={**missing, **silent})


def _release_in(reply: Reply, ask: Ask, parameters: Vector) -> Vector | None:
    if reply.content is None or reply.config.get("ask_id") != ask.ask_id:
        return None
    try:
        release = reply.content.array_records["release"]["gradient"].numpy()
    except (KeyError, ValueError, TypeError):
        return None
    if release.shape != parameters.shape or release.dtype != np.float32 or not np.isfinite(release).all():
        return None
    return release
