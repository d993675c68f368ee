"""From reports to a contract: plan, offer, and once more after declines."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from flwr.app import ConfigRecord, RecordDict

from jsam.flower.elicitation import NobodyLeftError, Report
from jsam.flower.errands import Errands
from jsam.flower.exchange import Exchange, Reply
from jsam.flower.published import Conduct, Published
from jsam.flower.roster import Roster
from jsam.flower.terms import Terms
from jsam.mechanism.contract import Contract
from jsam.privacy import Schedule
from jsam.training.preparation import Preparation

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


def agree(
    exchange: Exchange, roster: Roster, published: Published, conduct: Conduct, reports: Mapping[str, Report]
) -> Agreement:
    """Plan and offer; after declines plan once more, by the same function at the new N, and offer to all that are left.

    A client that stays silent declines.
    """
    declined: dict[str, str] = {}
    left = dict(reports)
    terms: dict[str, Terms] = {}
    for attempt in (1, 2):
        if not left:
            raise NobodyLeftError(f"all clients declined: {_words(declined)}")
        preparation = prepared(published, left)
        before, terms = terms, terms_of(published, preparation, left)
        # Who accepted the first offer and is not bought from in the second plan is free again.
        withdraw(exchange, roster, published.campaign, before.keys() & left.keys() - terms.keys(), conduct)
        answers = _offer(exchange, roster, terms, conduct)
        said_no = {name: answer for name, answer in answers.items() if answer is not None}
        logger.info("offer %d: %d of %d accepted", attempt, len(answers) - len(said_no), len(answers))
        declined.update(said_no)
        if not said_no:
            break
        if attempt == 1:
            left = {name: report for name, report in left.items() if name not in said_no}
    accepted = {name: offer for name, offer in terms.items() if name not in said_no}
    # Also a yes that was lost on its way must not bind.
    withdraw(exchange, roster, published.campaign, declined.keys() - accepted.keys(), conduct)
    if not accepted:
        raise NobodyLeftError(f"nobody accepted: {_words(declined)}")
    return Agreement(preparation=preparation, terms=accepted, declined=declined)


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


def _offer(exchange: Exchange, roster: Roster, terms: Mapping[str, Terms], conduct: Conduct) -> dict[str, str | None]:
    """None for who accepted, else the reason that was given."""
    answers: dict[str, str | None] = dict.fromkeys(terms, SILENT)

    def take(name: str, reply: Reply) -> None:
        accepted = reply.config.get("accepted") == terms[name].hash
        reason = f"{reply.config.get('refused', SILENT)!s}: {reply.config.get('text', '')!s}"
        answers[name] = None if accepted else reason

    Errands(exchange, roster, terms, "query.offer", seconds=conduct.offer_seconds, repeat=conduct.repeat_seconds).run(
        lambda name: RecordDict({"offer": ConfigRecord({"terms": terms[name].to_json()})}), take
    )
    return answers


def _words(declined: Mapping[str, str]) -> str:
    return "; ".join(f"{name} ({why})" for name, why in declined.items())
