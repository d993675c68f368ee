"""From reports to a contract: plan, offer, and once more after declines."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from jsam.campaign.campaign_rules import CampaignRules
from jsam.campaign.messages import Kind, Question, Reply
from jsam.campaign.server.answers import Flaw, answer_to_offer
from jsam.campaign.server.asking import Office, ask_clients
from jsam.campaign.server.storage import Agreement, NobodyLeftError, Report, ServerStorage, reasons
from jsam.campaign.terms import Terms
from jsam.errors import ReportError
from jsam.runs.noise_plan import NoisePlan

logger = logging.getLogger(__name__)

SILENT = "silent"
_WITHDRAWING = 30.0  # seconds, at the most, for telling clients that a campaign is over


def agree(
    office: Office, reports: Mapping[str, Report], store: ServerStorage, rejected: Mapping[str, str] | None = None
) -> Agreement:
    """Plan and offer; after declines plan once more, by the same function at the new N, and offer to all that are left.

    A client that stays silent declines. `rejected` has the reasons of those who are not in the market.
    Clients judge two offers of a campaign and no third, so each draft is kept before it is offered:
    a server that was killed in between says the same again, to the last bit.
    """
    first, second = store.draft(office.rules, 1), store.draft(office.rules, 2)
    if first is None:
        first = _drafted(office.rules, reports, rejected or {})
        store.save_draft(1, first)
    if second is None:
        said_no = _offer(office, first.terms)
        if not said_no:
            return first.after({})
        out = {**first.declined, **said_no}
        left = {name: report for name, report in reports.items() if name not in out}
        if not left:
            raise NobodyLeftError(f"all clients declined: {reasons(said_no)}")
        second = _drafted(office.rules, left, out)
        store.save_draft(2, second)
    # Who accepted the first offer and is not bought from in the second plan is free again.
    withdraw(office, first.terms.keys() - second.terms.keys() - second.declined.keys())
    said_no = _offer(office, second.terms)
    # Also a yes that was lost on its way must not bind.
    withdraw(office, second.declined.keys() | said_no.keys())
    return second.after(said_no)


def withdraw(office: Office, names: Iterable[str]) -> None:
    """Tell clients that a campaign is over for them, so that their books need not hold ε ready for it any longer.

    Nobody's privacy depends on this message, so it is not insisted on: who is not online is not waited for.
    """
    question = Question(kind=Kind.CLOSE, values={"campaign": office.rules.campaign})
    online = [name for name in names if office.roster.node_of(name) is not None]
    seconds = min(office.options.offer_seconds, _WITHDRAWING)
    ask_clients(office, dict.fromkeys(online, question), lambda *_: None, seconds=seconds)


def prepared(rules: CampaignRules, reports: Mapping[str, Report]) -> NoisePlan:
    """Contract, schedule and noise for those who reported."""
    names = list(reports)
    samples = tuple(reports[name].samples for name in names)
    contract = rules.contract(names, [reports[name].sensitivity for name in names], rules.counted(samples))
    return NoisePlan.of(contract, rules.training, samples)


def terms_of(rules: CampaignRules, noise_plan: NoisePlan, reports: Mapping[str, Report]) -> dict[str, Terms]:
    """An offer for each client whose privacy is bought."""
    contract, training = noise_plan.contract, rules.training
    inputs = rules.inputs(contract.num_clients, contract.loss_weight, rules.counted(noise_plan.sizes))
    assert contract.payments is not None
    return {
        name: Terms.of_contract(
            campaign=rules.campaign,
            client=name,
            epsilon=float(contract.epsilons[k]),
            delta=training.delta,
            participations=int(noise_plan.schedule.participations[k]),
            clip_norm=training.clip_norm,
            samples=reports[name].samples,
            adjacency=training.adjacency,
            payment=float(contract.payments[k]),
            public=inputs,
        )
        for k, name in enumerate(contract.ids)
        if contract.epsilons[k] > 0
    }


def _drafted(rules: CampaignRules, reports: Mapping[str, Report], declined: Mapping[str, str]) -> Agreement:
    """A plan for all whom this mechanism can plan for: a report that it cannot price must not stop the others."""
    left, out = dict(reports), dict(declined)
    while left:
        try:
            noise_plan = prepared(rules, left)
        except ReportError as error:
            name = list(left)[error.client]
            logger.warning("%s is left out: %s", name, error)
            out[name] = f"{Flaw.BAD_REPORT}: this mechanism cannot price it"
            del left[name]
            continue
        return Agreement(noise_plan=noise_plan, terms=terms_of(rules, noise_plan, left), declined=out)
    raise NobodyLeftError(f"no report can be planned with: {reasons(out)}")


def _offer(office: Office, terms: Mapping[str, Terms]) -> dict[str, str]:
    """Who did not accept, and the reason that was given."""
    answers: dict[str, str | None] = dict.fromkeys(terms, SILENT)

    def take(name: str, reply: Reply) -> None:
        answers[name] = answer_to_offer(reply, terms[name])

    questions = {name: Question(kind=Kind.OFFER, values={"terms": offer.to_json()}) for name, offer in terms.items()}
    ask_clients(office, questions, take, seconds=office.options.offer_seconds)
    said_no = {name: answer for name, answer in answers.items() if answer is not None}
    logger.info("an offer to all: %d of %d accepted", len(answers) - len(said_no), len(answers))
    return said_no
