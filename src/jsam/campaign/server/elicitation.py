"""Ask everybody who is online for a report, again after failures, and take down what they say."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from flwr.app import ConfigRecord, RecordDict

from jsam.campaign.campaign_rules import Conduct, Published
from jsam.campaign.server.answers import Flaw, UnusableError, name_in, refusal_in, report_in
from jsam.campaign.server.asking import Asking, Question
from jsam.campaign.server.roster import Roster
from jsam.errors import JsamError
from jsam.flower.messaging import Exchange, Reply

logger = logging.getLogger("flwr.jsam")

MOST_QUESTIONS = 5
"""So often is one node asked for its report, at most; then it counts as silent."""
_MOMENT = 10.0


@dataclass(frozen=True, kw_only=True)
class Report:
    """What one client said of itself."""

    sensitivity: float
    samples: int

    def as_dict(self) -> dict[str, Any]:
        return {"sensitivity": self.sensitivity, "samples": self.samples}


@dataclass(frozen=True, kw_only=True)
class Elicited:
    """Reports by name, and the named reason for each answer that could not be used: by name, or by node without one."""

    reports: dict[str, Report]
    rejected: dict[str, str]


class NobodyLeftError(JsamError):
    """No client answered, or none accepted; there is nothing to train."""


def elicit(exchange: Exchange, roster: Roster, published: Published, conduct: Conduct) -> Elicited:
    """Ask all who are online; whoever stays silent or gives no report that can be used is not in the market.

    A repeated question is the same question: the same words under the same digest, to which a client's answer is the
    same. So asking again does no harm, and the first report of a name stands.
    """
    found = _Elicitation(exchange, roster, published, conduct).run()
    if not found.reports:
        raise NobodyLeftError(
            f"no client reported within {conduct.elicit_seconds:g} s ({len(roster.online)} nodes are online)"
        )
    return found


class _Elicitation:
    def __init__(self, exchange: Exchange, roster: Roster, published: Published, conduct: Conduct) -> None:
        self._exchange, self._roster, self._published, self._conduct = exchange, roster, published, conduct
        self._asking: Asking[int] = Asking(exchange, "query.elicit", repeat=conduct.repeat_seconds)
        self._online: set[int] = set()
        self._asked: set[int] = set()
        self._reports: dict[str, Report] = {}
        self._rejected: dict[str, str] = {}
        words = ConfigRecord({"text": published.to_json(), "digest": published.digest})
        self._question = RecordDict({"published": words})

    def run(self) -> Elicited:
        exchange, conduct, asking = self._exchange, self._conduct, self._asking
        self._meet(exchange.wait_for_nodes(conduct.clients, conduct.wait_seconds))
        deadline = exchange.now() + conduct.elicit_seconds
        while asking.open and exchange.now() < deadline:
            for node, question in asking.open.items():
                if node in self._online and question.times < MOST_QUESTIONS and asking.due(node, node):
                    asking.ask(node, node, self._question, deadline=deadline)
            for node, reply in asking.answers():
                self._take_down(node, reply)
            silent = [node for node, q in asking.open.items() if q.times >= MOST_QUESTIONS and not q.waiting]
            for node in silent:
                del asking.open[node]
            if len(self._reports) >= conduct.clients:
                # Everybody who was expected is there; whoever else is online gets a moment more.
                deadline = min(deadline, exchange.now() + _MOMENT)
            # A node that was restarted is another node, and its client has not been heard.
            self._meet(exchange.nodes())
            if asking.open:
                exchange.pause()
        logger.info("%d clients reported, %d nodes asked", len(self._reports), len(self._asked))
        return Elicited(reports=dict(sorted(self._reports.items())), rejected=self._rejected)

    def _meet(self, nodes: set[int]) -> None:
        self._online = nodes
        self._roster.online |= nodes
        self._asking.open.update({node: Question() for node in sorted(nodes - self._asked)})
        self._asked |= nodes

    def _take_down(self, node: int, reply: Reply) -> None:
        """The first report of a name stands."""
        refused = refusal_in(reply)
        if refused is not None:
            logger.warning("a node does not report: %s", refused)
            return
        who = f"node {node}"
        try:
            said = name_in(reply)
            name = self._roster.hear(node, reply)
            if name is None:
                raise UnusableError(Flaw.NAME_TAKEN, f"the name {said} is another node's, or its key was not proved")
            if name in self._reports:
                return
            who = name
            sensitivity, samples = report_in(reply, name, self._published)
        except UnusableError as error:
            logger.warning("the answer of %s cannot be used: %s", who, error)
            self._rejected[who] = str(error.flaw)
            return
        self._rejected.pop(name, None)
        self._reports[name] = Report(sensitivity=sensitivity, samples=samples)
