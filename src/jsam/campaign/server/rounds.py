"""One round on the server: ask whoever is drawn, again after failures, and take what has come when the time is over.

A request is known by its ask id, a function of campaign, terms, round, draws and model. It may travel in several
messages (after a lost one, or to a node that came back under another id) and is always the same request: the
client's ledger answers it once and repeats that answer ever after.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from jsam.campaign.messages import Kind, Question, Reply, Vector
from jsam.campaign.round_request import RoundRequest
from jsam.campaign.server.agreement import Office
from jsam.campaign.server.answers import UnusableError, refusal_in, release_in, words_in
from jsam.campaign.server.asking import ask_clients
from jsam.campaign.terms import Terms
from jsam.privacy import Release

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What one client is asked for in one round."""

    client: str
    request: RoundRequest
    release: Release
    model_digest: str

    @classmethod
    def of(cls, terms: Terms, *, round: int, multiplicity: int, model_digest: str) -> Ask:
        request = RoundRequest.of_terms(terms, round=round, multiplicity=multiplicity)
        release = terms.release(round, multiplicity)
        return cls(client=terms.client, request=request, release=release, model_digest=model_digest)

    @property
    def ask_id(self) -> str:
        request = self.request
        parts = (request.campaign, request.terms_hash, request.round, request.multiplicity, self.model_digest)
        return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:32]

    def question(self, parameters: Vector) -> Question:
        values = {**self.request.as_dict(), "ask_id": self.ask_id}
        return Question(kind=Kind.ROUND, values=values, parameters=parameters)


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """What a round brought: noisy means by client, and why others are missing.

    `final` names the missing clients that did answer: asked again, they would answer the same.
    """

    releases: Mapping[str, Vector]
    missing: Mapping[str, str]
    final: frozenset[str] = frozenset()


def gather(
    office: Office,
    asks: Mapping[str, Ask],
    parameters: Vector,
    *,
    before_asking: Callable[[Ask], None],
    on_reply: Callable[[Ask, Vector], None],
) -> Gathered:
    """`before_asking` writes an ask into the books, `on_reply` stores a reply; both are on disk when they return."""
    releases: dict[str, Vector] = {}
    final: dict[str, str] = {}

    def take(name: str, reply: Reply) -> None:
        refused = refusal_in(reply)
        if refused is not None:
            logger.warning("%s: %s (%s)", name, refused, words_in(reply))
            final[name] = refused
            return
        try:
            release = release_in(reply, asks[name].ask_id, parameters.size, asks[name].release)
        except UnusableError as error:
            logger.warning("%s: %s", name, error)
            final[name] = str(error.flaw)
            return
        on_reply(asks[name], release)
        releases[name] = release

    silent = ask_clients(
        office.transport,
        office.roster,
        {name: ask.question(parameters) for name, ask in asks.items()},
        take,
        seconds=office.options.round_seconds,
        repeat=office.options.repeat_seconds,
        before=lambda name: before_asking(asks[name]),
    )
    return Gathered(releases=releases, missing={**final, **silent}, final=frozenset(final))
