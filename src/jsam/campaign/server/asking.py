"""With whom a question is open, who may be asked again, and which replies are answers."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from jsam.campaign.campaign_rules import CampaignRules
from jsam.campaign.messages import Question, Reply
from jsam.campaign.refusal import FAILED, Reason
from jsam.campaign.server.roster import Roster
from jsam.campaign.server.server_options import ServerOptions
from jsam.campaign.server.transport import Transport

logger = logging.getLogger("jsam.campaign")

_PATIENCE = (1.0, 2.0, 5.0, 10.0, 30.0)  # seconds before asking again after a failure
_PASSING = (Reason.BUSY.value, Reason.LEDGER_FAILED.value, FAILED)
_LOOK = 1.0  # seconds between looks at who is online

Who = TypeVar("Who", bound=Hashable)


@dataclass(kw_only=True)
class Attempts:
    """How often somebody was asked, where last, and which messages may still bring the answer."""

    times: int = 0
    failures: int = 0
    node: int | None = None
    sent: float = -math.inf
    not_before: float = -math.inf
    waiting: set[str] = field(default_factory=set)


class Asking(Generic[Who]):
    """Questions must be such that asking the same one twice does no harm: messages get lost, and so do replies.

    Somebody is asked again when its node reports an error, when it comes back as another node, and every `repeat`
    seconds: Flower loses a message without a word when a node restarts quickly.
    """

    def __init__(self, transport: Transport, who: Iterable[Who] = (), *, repeat: float) -> None:
        self._transport, self._repeat = transport, repeat
        self.open: dict[Who, Attempts] = {somebody: Attempts() for somebody in who}
        self._owner: dict[str, Who] = {}

    def due(self, who: Who, node: int) -> bool:
        """Whether to ask, now that it is at this node."""
        attempts, now = self.open[who], self._transport.now()
        waits = attempts.waiting and node == attempts.node and now < attempts.sent + self._repeat
        return not waits and now >= attempts.not_before

    def ask(self, who: Who, node: int, question: Question, *, deadline: float) -> None:
        """Send the question to the node; after `deadline` it is void."""
        attempts, now = self.open[who], self._transport.now()
        message_id = self._transport.send(node, question, seconds=max(1.0, deadline - now))
        attempts.times, attempts.node, attempts.sent = attempts.times + 1, node, now
        if message_id is None:
            self._later(attempts)
            return
        attempts.waiting.add(message_id)
        self._owner[message_id] = who

    def answers(self) -> Iterator[tuple[Who, Reply]]:
        """What has arrived, the first answer of each; after a failure that will pass the question stays open."""
        for reply in self._transport.collect(self._owner):
            who = self._owner.pop(reply.message_id)
            attempts = self.open.get(who)
            if attempts is None:  # answered already, by another message with the same question
                continue
            attempts.waiting.discard(reply.message_id)
            refused = reply.values.get("refused")
            if reply.error is not None or refused in _PASSING:
                logger.info("%s: %s", who, reply.error or refused)
                self._later(attempts)
                continue
            del self.open[who]
            yield who, reply

    def _later(self, attempts: Attempts) -> None:
        attempts.not_before = self._transport.now() + _PATIENCE[min(attempts.failures, len(_PATIENCE) - 1)]
        attempts.failures += 1
        attempts.node = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Office:
    """What every question to a client needs: the way to it, who is where, the rules, and how long to wait."""

    transport: Transport
    roster: Roster
    rules: CampaignRules
    options: ServerOptions


def ask_clients(
    office: Office,
    questions: Mapping[str, Question],
    take: Callable[[str, Reply], None],
    *,
    seconds: float,
    before: Callable[[str], object] = lambda name: None,
) -> dict[str, str]:
    """Ask each client its question, wherever it is at the moment, until all have answered or the time is over.

    `before` is called with a client's name each time before it is asked, `take` with its answer or refusal. What comes
    back says by name why others did not answer.
    """
    transport, roster = office.transport, office.roster
    asking = Asking(transport, questions, repeat=office.options.repeat_seconds)
    deadline, look = transport.now() + seconds, -math.inf
    while asking.open and transport.now() < deadline:
        if transport.now() >= look + _LOOK:
            roster.refresh()
            look = transport.now()
        for name in asking.open:
            node = roster.node_of(name)
            if node is not None and asking.due(name, node):
                before(name)
                asking.ask(name, node, questions[name], deadline=deadline)
        for name, reply in asking.answers():
            take(name, reply)
        if asking.open:
            transport.pause()
    return {name: "no reply in time" if attempts.times else "not online" for name, attempts in asking.open.items()}
