"""One round on the server: ask whoever is drawn, again after failures, and take what has come when the time is over.

A request is known by its ask id, a function of campaign, terms, round, draws and model. It may travel in several of
Flower's messages (after a lost one, or to a node that came back under another id) and is always the same request: the
client's ledger answers it once and repeats that answer ever after.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from jsam.flower.exchange import Exchange, Reply
from jsam.flower.refusal import Reason
from jsam.flower.requests import Request
from jsam.flower.roster import Roster
from jsam.flower.terms import Terms

logger = logging.getLogger("flwr.jsam")
Vector = NDArray[np.float32]

_LOOK = 1.0  # seconds between looks at who is online
_PATIENCE = (1.0, 2.0, 5.0, 10.0, 30.0)  # before asking again after a failure
_PASSING = (Reason.BUSY.value, Reason.LEDGER_FAILED.value, "failed")


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


@dataclass(kw_only=True)
class _Pending:
    ask: Ask
    node: int | None = None
    sent: float = 0.0
    not_before: float = 0.0
    failures: int = 0
    waiting: set[str] = field(default_factory=set)


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """What a round brought: noisy means by client, and why others are missing."""

    releases: Mapping[str, Vector]
    missing: Mapping[str, str]


class Gathering:
    """The asks of one round under way."""

    def __init__(
        self,
        exchange: Exchange,
        roster: Roster,
        asks: Mapping[str, Ask],
        parameters: Vector,
        *,
        round_seconds: float,
        repeat_seconds: float,
        before_asking: Callable[[Ask], None],
        on_reply: Callable[[Ask, Vector], None],
    ) -> None:
        """`before_asking` writes an ask into the books, `on_reply` stores a reply; on disk when they return."""
        self._exchange, self._roster, self._parameters = exchange, roster, parameters
        self._seconds, self._repeat = round_seconds, repeat_seconds
        self._before_asking, self._on_reply = before_asking, on_reply
        self._pending = {name: _Pending(ask=ask) for name, ask in asks.items()}
        self._owner: dict[str, str] = {}
        self._releases: dict[str, Vector] = {}
        self._missing: dict[str, str] = {}

    def run(self) -> Gathered:
        exchange = self._exchange
        deadline, look = exchange.now() + self._seconds, -np.inf
        while self._pending and exchange.now() < deadline:
            if exchange.now() >= look + _LOOK:
                self._roster.refresh()
                look = exchange.now()
            for pending in self._pending.values():
                self._send(pending, deadline)
            for reply in exchange.collect(self._owner):
                self._take(reply)
            if self._pending:
                exchange.pause()
        for name, pending in self._pending.items():
            self._missing[name] = "no reply in time" if pending.sent else "not online"
        return Gathered(releases=self._releases, missing=self._missing)

    def _send(self, pending: _Pending, deadline: float) -> None:
        now, node = self._exchange.now(), self._roster.node_of(pending.ask.client)
        if node is None or now < pending.not_before:
            return
        # Flower loses a message without a word when a node restarts quickly: ask again from time to time.
        if pending.waiting and node == pending.node and now < pending.sent + self._repeat:
            return
        self._before_asking(pending.ask)
        content = pending.ask.content(self._parameters)
        message_id = self._exchange.send(
            node, "train", content, ttl=max(1.0, deadline - now), group=str(pending.ask.request.round)
        )
        pending.node, pending.sent = node, now
        if message_id is None:
            self._later(pending)
            return
        pending.waiting.add(message_id)
        self._owner[message_id] = pending.ask.client

    def _take(self, reply: Reply) -> None:
        name = self._owner.pop(reply.message_id)
        pending = self._pending.get(name)
        if pending is None:  # answered already, by another message of the same ask
            return
        pending.waiting.discard(reply.message_id)
        refused = reply.config.get("refused")
        if reply.content is None or refused in _PASSING:
            logger.info("%s: %s", name, reply.error or refused)
            self._later(pending)
            return
        if refused is not None:
            logger.warning("%s refuses: %s (%s)", name, refused, reply.config.get("text", ""))
            self._missing[name] = str(refused)
            del self._pending[name]
            return
        release = self._release_in(reply, pending.ask)
        if release is None:
            logger.warning("%s sent something that is no release of this round", name)
            self._missing[name] = "unusable"
            del self._pending[name]
            return
        self._on_reply(pending.ask, release)
        self._releases[name] = release
        del self._pending[name]

    def _release_in(self, reply: Reply, ask: Ask) -> Vector | None:
        assert reply.content is not None
        if reply.config.get("ask_id") != ask.ask_id:
            return None
        try:
            release = reply.content.array_records["release"]["gradient"].numpy()
        except (KeyError, ValueError, TypeError):
            return None
        if release.shape != self._parameters.shape or release.dtype != np.float32 or not np.isfinite(release).all():
            return None
        return release

    def _later(self, pending: _Pending) -> None:
        wait = _PATIENCE[min(pending.failures, len(_PATIENCE) - 1)]
        pending.failures += 1
        pending.not_before = self._exchange.now() + wait
        pending.node = None
