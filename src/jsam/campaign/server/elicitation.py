"""Ask everybody who is online for a report, again after failures, and take down what they say."""

from __future__ import annotations

import logging

from jsam.campaign.messages import Kind, Question, Reply
from jsam.campaign.server.answers import (
    Flaw,
    UnusableError,
    check_known_size,
    checked_report,
    name_in,
    refusal_in,
)
from jsam.campaign.server.asking import Asking, Attempts, Office
from jsam.campaign.server.storage import NobodyLeftError, Report

logger = logging.getLogger("jsam.campaign")

MOST_QUESTIONS = 5
"""So often is one node asked for its report, at most; then it counts as silent."""
_MOMENT = 10.0


def elicit(office: Office) -> tuple[dict[str, Report], dict[str, str]]:
    """Ask all who are online; whoever stays silent or gives no report that can be used is not in the market.

    What comes back are reports by name, and the named reason for each answer that could not be used: by name, or by
    node where it had none.

    A repeated question is the same question: the same words under the same digest, to which a client's answer is the
    same. So asking again does no harm, and the first report of a name stands.
    """
    reports, rejected = _Elicitation(office).run()
    if not reports:
        seconds, online = office.options.elicit_seconds, len(office.roster.online)
        raise NobodyLeftError(f"no client reported within {seconds:g} s ({online} nodes are online)")
    return reports, rejected


class _Elicitation:
    def __init__(self, office: Office) -> None:
        self._office, self._roster, self._rules = office, office.roster, office.rules
        self._asking: Asking[int] = Asking(office.transport, repeat=office.options.repeat_seconds)
        self._known_sizes = office.options.sizes_by_name()
        self._online: set[int] = set()
        self._asked: set[int] = set()
        self._reports: dict[str, Report] = {}
        self._rejected: dict[str, str] = {}

    def run(self) -> tuple[dict[str, Report], dict[str, str]]:
        transport, options, asking = self._office.transport, self._office.options, self._asking
        question = Question(kind=Kind.ELICIT, values={"text": self._rules.to_json(), "digest": self._rules.digest})
        self._wait_for_nodes()
        deadline = transport.now() + options.elicit_seconds
        while asking.open and transport.now() < deadline:
            for node, attempts in asking.open.items():
                if node in self._online and attempts.times < MOST_QUESTIONS and asking.due(node, node):
                    asking.ask(node, node, question, deadline=deadline)
            for node, reply in asking.answers():
                self._take_down(node, reply)
            silent = [node for node, a in asking.open.items() if a.times >= MOST_QUESTIONS and not a.waiting]
            for node in silent:
                del asking.open[node]
            if len(self._reports) >= options.clients:
                # Everybody who was expected is there; whoever else is online gets a moment more.
                deadline = min(deadline, transport.now() + _MOMENT)
            # A node that was restarted is another node, and its client has not been heard.
            self._meet(transport.nodes())
            if asking.open:
                transport.pause()
        logger.info("%d clients reported, %d nodes asked", len(self._reports), len(self._asked))
        return dict(sorted(self._reports.items())), self._rejected

    def _wait_for_nodes(self) -> None:
        """Until as many nodes are online as clients are expected, or the time for that is over."""
        transport, options = self._office.transport, self._office.options
        deadline = transport.now() + options.wait_seconds
        while len(nodes := transport.nodes()) < options.clients and transport.now() < deadline:
            transport.pause()
        self._meet(nodes)

    def _meet(self, nodes: set[int]) -> None:
        self._online = nodes
        self._roster.online |= nodes
        self._asking.open.update({node: Attempts() for node in sorted(nodes - self._asked)})
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
            sensitivity, samples = reply.values.get("sensitivity"), reply.values.get("samples")
            report = checked_report(name, sensitivity, samples, self._rules)
            check_known_size(name, report, self._known_sizes)
        except UnusableError as error:
            logger.warning("the answer of %s cannot be used: %s", who, error)
            self._rejected[who] = str(error.flaw)
            return
        self._rejected.pop(name, None)
        self._reports[name] = report
