"""With whom a question is open, who may be asked again, and which replies are answers."""

from __future__ import annotations

import logging
import math
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from flwr.app import RecordDict

from jsam.campaign.refusal import FAILED, Reason
from jsam.flower.messaging import Exchange, Reply

logger = logging.getLogger("flwr.jsam")

_PATIENCE = (1.0, 2.0, 5.0, 10.0, 30.0)  # before asking again after a failure
_PASSING = (Reason.BUSY.value, Reason.LEDGER_FAILED.value, FAILED)

Who = TypeVar("Who", bound=Hashable)


@dataclass(kw_only=True)
class Question:
    """How often it was asked, where last, and which messages may still bring the answer."""

    times: int = 0
    failures: int = 0
    node: int | None = None
    sent: float = -math.inf
    not_before: float = -math.inf
    waiting: set[str] = field(default_factory=set)


class Asking(Generic[Who]):
    """Questions must be such that asking the same one twice does no harm: messages get lost, and so do replies.

    Somebody is asked again when its node reports an error, when it comes back as another node, and from time to time:
    Flower loses a message without a word when a node restarts quickly.
    """

    def __init__(self, exchange: Exchange, kind: str, who: Iterable[Who] = (), *, repeat: float) -> None:
        self._exchange, self._kind, self._repeat = exchange, kind, repeat
        self.open: dict[Who, Question] = {one: Question() for one in who}
        self._owner: dict[str, Who] = {}

    def due(self, who: Who, node: int) -> bool:
        """Whether to ask, now that it is at this node."""
        question, now = self.open[who], self._exchange.now()
        waits = question.waiting and node == question.node and now < question.sent + self._repeat
        return not waits and now >= question.not_before

    def ask(self, who: Who, node: int, content: RecordDict, *, deadline: float, group: str = "") -> None:
        question, now = self.open[who], self._exchange.now()
        message_id = self._exchange.send(node, self._kind, content, ttl=max(1.0, deadline - now), group=group)
        question.times, question.node, question.sent = question.times + 1, node, now
        if message_id is None:
            self._later(question)
            return
        question.waiting.add(message_id)
        self._owner[message_id] = who

    def answers(self) -> Iterator[tuple[Who, Reply]]:
        """What has arrived, the first answer of each; after a failure that will pass the question stays open."""
        for reply in self._exchange.collect(self._owner):
            who = self._owner.pop(reply.message_id)
            question = self.open.get(who)
            if question is None:  # answered already, by another message with the same question
                continue
            question.waiting.discard(reply.message_id)
            refused = reply.config.get("refused")
            if (reply.content is None and reply.readable) or refused in _PASSING:
                logger.info("%s: %s", who, reply.error or refused)
                self._later(question)
                continue
            del self.open[who]
            yield who, reply

    def _later(self, question: Question) -> None:
        question.not_before = self._exchange.now() + _PATIENCE[min(question.failures, len(_PATIENCE) - 1)]
        question.failures += 1
        question.node = None
