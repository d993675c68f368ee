"""From reports to a contract: plan, offer, and once more after declines."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from flwr.app import ConfigRecord, RecordDict

from jsam.campaign.campaign_rules import Conduct, Published
from jsam.campaign.server.answers import Flaw, answer_to_offer
from jsam.campaign.server.elicitation import NobodyLeftError, Report
from jsam.campaign.server.errands import Errands
from jsam.campaign.server.roster import Roster
from jsam.campaign.terms import Terms
from jsam.errors import ReportError
from jsam.flower.messaging import Exchange, Reply
from jsam.mechanism.contract import Contract
from jsam.privacy import Schedule
from jsam.runs.noise_plan import Preparation

logger = logging.getLogger("flwr.jsam")

SILENT = "silent"


@dataclass(frozen=True, kw_only=True, eq=False)
class Agreement:
    """A contract, the schedule drawn from it, and the terms of those who accepted.

    Whoever declined the second offer is in contract and schedule but not in `terms`: its slots stay empty.
    """

    preparation: Preparation
    terms: Mapping[str, Terms]
    declined: Mapping[str, str]

    @property
    def contract(self) -> Contract:
        return self.preparation.contract

    @property
    def schedule(self) -> Schedule:
        return self.preparation.schedule


@dataclass(frozen=True, kw_only=True, eq=False)
class Draft:
    """A plan as it is offered: who may buy what, and why others are not in it any more."""

    preparation: Preparation
    terms: Mapping[str, Terms]
    declined: Mapping[str, str]


class Drafts(Protocol):
    """Where drafts are kept; on disk when `save_draft` returns."""

    def draft(self, published: Published, attempt: int) -> Draft | None: ...
    def save_draft(self, attempt: int, draft: Draft) -> None: ...


def agree(
    exchange: Exchange,
    roster: Roster,
    published: Published,
    conduct: Conduct,
    reports: Mapping[str, Report],
    drafts: Drafts,
    rejected: Mapping[str, str] | None = None,
) -> Agreement:
    """Plan and offer; after declines plan once more, by the same function at the new N, and offer to all that are left.

    A client that stays silent declines. `rejected` has the reasons of those who are not in the market.
    Clients judge two offers of a campaign and no third, so each draft is kept before it is offered:
    a server that was killed in between says the same again, to the last bit.
    """
    first, second = drafts.draft(published, 1), drafts.draft(published, 2)
    if first is None:
        first = _drafted(published, reports, rejected or {})
        drafts.save_draft(1, first)
    if second is None:
        said_no = _offer(exchange, roster, first.terms, conduct)
        if not said_no:
            return _agreed(first, {})
        out = {**first.declined, **said_no}
        left = {name: report for name, report in reports.items() if name not in out}
        if not left:
            raise NobodyLeftError(f"all clients declined: {_words(said_no)}")
        second = _drafted(published, left, out)
        drafts.save_draft(2, second)
    # Who accepted the first offer and is not bought from in the second plan is free again.
    free = first.terms.keys() - second.terms.keys() - second.declined.keys()
    withdraw(exchange, roster, published.campaign, free, conduct)
    said_no = _offer(exchange, roster, second.terms, conduct)
    # Also a yes that was lost on its way must not bind.
    withdraw(exchange, roster, published.campaign, second.declined.keys() | said_no.keys(), conduct)
    return _agreed(second, said_no)


def _drafted(published: Published, reports: Mapping[str, Report], declined: Mapping[str, str]) -> Draft:
    """A plan for all whom this mechanism can plan for: a report that it cannot price must not stop the others."""
    left, out = dict(reports), dict(declined)
    while left:
        try:
            preparation = prepared(published, left)
        except ReportError as error:
            name = list(left)[error.client]
            logger.warning("%s is left out: %s", name, error)
            out[name] = f"{Flaw.BAD_REPORT}: this mechanism cannot price it"
            del left[name]
            continue
        return Draft(preparation=preparation, terms=terms_of(published, preparation, left), declined=out)
    raise NobodyLeftError(f"no report can be planned with: {_words(out)}")


def _agreed(draft: Draft, said_no: Mapping[str, str]) -> Agreement:
    declined = {**draft.declined, **said_no}
    accepted = {name: offer for name, offer in draft.terms.items() if name not in said_no}
    if not accepted:
        raise NobodyLeftError(f"nobody accepted: {_words(declined)}")
    return Agreement(preparation=draft.preparation, terms=accepted, declined=declined)


def withdraw(exchange: Exchange, roster: Roster, campaign: str, names: Iterable[str], conduct: Conduct) -> None:
    """Tell clients that a campaign is over for them, so that their books need not hold ε ready for it any longer.

    Nobody's privacy depends on this message, so it is sent once and not insisted on.
    """
    nodes = [node for name in names if (node := roster.node_of(name)) is not None]
    content = RecordDict({"close": ConfigRecord({"campaign": campaign})})
    exchange.ask(dict.fromkeys(nodes, content), "query.close", min(conduct.offer_seconds, 30.0))


def prepared(published: Published, reports: Mapping[str, Report]) -> Preparation:
    """Contract, schedule and noise for those who reported."""
    names = list(reports)
    contract = published.contract(names, [reports[name].sensitivity for name in names])
    return Preparation.of(contract, published.training, tuple(reports[name].samples for name in names))


def terms_of(published: Published, preparation: Preparation, reports: Mapping[str, Report]) -> dict[str, Terms]:
    """An offer for each client whose privacy is bought."""
    contract, inputs = preparation.contract, published.inputs(preparation.contract)
    assert contract.payments is not None
    return {
        name: Terms.of_contract(
            campaign=published.campaign,
            client=name,
            epsilon=float(contract.epsilons[k]),
            delta=published.delta,
            participations=int(preparation.schedule.participations[k]),
            clip_norm=published.clip_norm,
            samples=reports[name].samples,
            adjacency=published.adjacency,
            payment=float(contract.payments[k]),
            public=inputs,
        )
        for k, name in enumerate(contract.ids)
        if contract.epsilons[k] > 0
    }


def _offer(exchange: Exchange, roster: Roster, terms: Mapping[str, Terms], conduct: Conduct) -> dict[str, str]:
    """Who did not accept, and the reason that was given."""
    answers: dict[str, str | None] = dict.fromkeys(terms, SILENT)

    def take(name: str, reply: Reply) -> None:
        answers[name] = answer_to_offer(reply, terms[name])

    Errands(exchange, roster, terms, "query.offer", seconds=conduct.offer_seconds, repeat=conduct.repeat_seconds).run(
        lambda name: RecordDict({"offer": ConfigRecord({"terms": terms[name].to_json()})}), take
    )
    said_no = {name: answer for name, answer in answers.items() if answer is not None}
    logger.info("an offer to all: %d of %d accepted", len(answers) - len(said_no), len(answers))
    return said_no


def _words(declined: Mapping[str, str]) -> str:
    return "; ".join(f"{name} ({why})" for name, why in declined.items())
