"""One question to each of several clients, asked again after failures, until all have answered or the time is over."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from flwr.app import RecordDict

from jsam.flower.exchange import Exchange, Reply
from jsam.flower.refusal import FAILED, Reason
from jsam.flower.roster import Roster

logger = logging.getLogger("flwr.jsam")

_LOOK = 1.0  # seconds between looks at who is online
_PATIENCE = (1.0, 2.0, 5.0, 10.0, 30.0)  # before asking again after a failure
_PASSING = (Reason.BUSY.value, Reason.LEDGER_FAILED.value, FAILED)


def patience(failures: int) -> float:
    """Seconds to let pass before asking again, after so many earlier failures."""
    return _PATIENCE[min(failures, len(_PATIENCE) - 1)]


def will_pass(reply: Reply) -> bool:
    """Whether a reply is a failure after which the same question may well be answered."""
    return reply.content is None or reply.config.get("refused") in _PASSING


@dataclass(kw_only=True)
class _Pending:
    node: int | None = None
    sent: float = -math.inf
    not_before: float = -math.inf
    failures: int = 0
    waiting: set[str] = field(default_factory=set)


class Errands:
    """Questions must be such that asking the same one twice does no harm: messages get lost, and so do replies.

    A client is asked again when its node reports an error, when it comes back as another node, and from time to time:
    Flower loses a message without a word when a node restarts quickly.
    """

    def __init__(
        self, exchange: Exchange, roster: Roster, names: Iterable[str], kind: str, *, seconds: float, repeat: float
    ) -> None:
        self._exchange, self._roster, self._kind = exchange, roster, kind
        self._seconds, self._repeat = seconds, repeat
        self._pending = {name: _Pending() for name in names}
        self._owner: dict[str, str] = {}

    def run(
        self,
        content: Callable[[str], RecordDict],
        take: Callable[[str, Reply], None],
        *,
        before: Callable[[str], None] = lambda name: None,
        group: str = "",
    ) -> dict[str, str]:
        """`before` a client is asked, and `take` its answer or refusal; why others did not answer, by name."""
        exchange = self._exchange
        deadline, look = exchange.now() + self._seconds, -math.inf
        while self._pending and exchange.now() < deadline:
            if exchange.now() >= look + _LOOK:
                self._roster.refresh()
                look = exchange.now()
            for name, pending in self._pending.items():
                self._send(name, pending, deadline, content, before, group)
            for reply in exchange.collect(self._owner):
                self._hear(reply, take)
            if self._pending:
                exchange.pause()
        return {
            name: "no reply in time" if math.isfinite(pending.sent) else "not online"
            for name, pending in self._pending.items()
        }

    def _send(
        self,
        name: str,
        pending: _Pending,
        deadline: float,
        content: Callable[[str], RecordDict],
        before: Callable[[str], None],
        group: str,
    ) -> None:
        now, node = self._exchange.now(), self._roster.node_of(name)
        if node is None or now < pending.not_before:
            return
        if pending.waiting and node == pending.node and now < pending.sent + self._repeat:
            return
        before(name)
        message_id = self._exchange.send(node, self._kind, content(name), ttl=max(1.0, deadline - now), group=group)
        pending.node, pending.sent = node, now
        if message_id is None:
            self._later(pending)
            return
        pending.waiting.add(message_id)
        self._owner[message_id] = name

    def _hear(self, reply: Reply, take: Callable[[str, Reply], None]) -> None:
        name = self._owner.pop(reply.message_id)
        pending = self._pending.get(name)
        if pending is None:  # answered already, by another message of the same errand
            return
        pending.waiting.discard(reply.message_id)
        if will_pass(reply):
            logger.info("%s: %s", name, reply.error or reply.config["refused"])
            self._later(pending)
            return
        take(name, reply)
        del self._pending[name]

    def _later(self, pending: _Pending) -> None:
        pending.not_before = self._exchange.now() + patience(pending.failures)
        pending.failures += 1
        pending.node = None
