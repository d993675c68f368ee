"""One question to each of several clients, asked again after failures, until all have answered or the time is over."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from flwr.app import RecordDict

from jsam.campaign.server.asking import Asking
from jsam.campaign.server.roster import Roster
from jsam.flower.messaging import Exchange, Reply

_LOOK = 1.0  # seconds between looks at who is online


class Errands:
    """A client is asked wherever it is at the moment."""

    def __init__(
        self, exchange: Exchange, roster: Roster, names: Iterable[str], kind: str, *, seconds: float, repeat: float
    ) -> None:
        self._exchange, self._roster, self._seconds = exchange, roster, seconds
        self._asking = Asking(exchange, kind, names, repeat=repeat)

    def run(
        self,
        content: Callable[[str], RecordDict],
        take: Callable[[str, Reply], None],
        *,
        before: Callable[[str], None] = lambda name: None,
        group: str = "",
    ) -> dict[str, str]:
        """`before` a client is asked, and `take` its answer or refusal; why others did not answer, by name."""
        exchange, asking = self._exchange, self._asking
        deadline, look = exchange.now() + self._seconds, -math.inf
        while asking.open and exchange.now() < deadline:
            if exchange.now() >= look + _LOOK:
                self._roster.refresh()
                look = exchange.now()
            for name in asking.open:
                node = self._roster.node_of(name)
                if node is not None and asking.due(name, node):
                    before(name)
                    asking.ask(name, node, content(name), deadline=deadline, group=group)
            for name, reply in asking.answers():
                take(name, reply)
            if asking.open:
                exchange.pause()
        return {name: "no reply in time" if question.times else "not online" for name, question in asking.open.items()}
