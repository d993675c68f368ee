"""A campaign on the server from the first question to the books, and again from wherever a kill left it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from jsam.campaign.campaign_rules import CampaignRules
from jsam.campaign.messages import Vector
from jsam.campaign.round_request import model_digest
from jsam.campaign.server.agreement import Agreement, Office, agree
from jsam.campaign.server.answers import UnusableError, check_release
from jsam.campaign.server.elicitation import elicit
from jsam.campaign.server.roster import Roster
from jsam.campaign.server.rounds import Ask, Gathered, gather
from jsam.campaign.server.server_accounts import accounts_of
from jsam.campaign.server.server_options import ServerOptions
from jsam.campaign.server.storage import ModelState, ServerStorage
from jsam.campaign.server.transport import Transport
from jsam.errors import JsamError
from jsam.privacy import Ledger, Round

logger = logging.getLogger(__name__)


class CampaignStoppedError(JsamError):
    """Too few slots answered; the same store goes on from here."""


class ServerModel(Protocol):
    """The model that is trained. A campaign sees only its parameters, as one vector."""

    def load(self) -> None:
        """Get ready whatever may be missing, such as the server's own test data."""
        ...

    def first(self) -> Vector:
        """The parameters before the first round."""
        ...

    def environment(self) -> Mapping[str, str]:
        """The versions of whatever the model's numbers depend on."""
        ...

    def evaluate(self, parameters: Vector) -> dict[str, Any]:
        """Accuracy and loss on test data, which belong to no client; empty where the server has none."""
        ...

    def stored(self, parameters: Vector) -> bytes:
        """The content of a file from which the model can be loaded."""
        ...


def run_campaign(
    transport: Transport, store: ServerStorage, rules: CampaignRules, options: ServerOptions, model: ServerModel
) -> dict[str, Any]:
    """Begin the campaign, or go on with the one in the store; the books at its end."""
    store.begin(rules)
    # The lock first: a second server must not touch the first one's files.
    with store.writing() as ledger, store.telling_the_end():
        # Before anybody is asked: a client that has accepted holds ε ready for a campaign that could not begin.
        model.load()
        known = None if options.rebind else store.nodes()
        roster = Roster(transport, rebind=options.rebind, keys=options.public_keys(), known=known)
        office = Office(transport=transport, roster=roster, rules=rules, options=options)
        agreement = store.agreement(rules)
        if agreement is None:
            agreement = _agreed(office, store)
            store.save_agreement(rules, agreement, model.environment())
        rounds = _Rounds(office, store, agreement, ledger, model)
        try:
            rounds.train()
        finally:
            books = accounts_of(agreement, tuple(ledger), rounds.answered, store.read_metrics())
            store.save_books(books)
        return books


def _agreed(office: Office, store: ServerStorage) -> Agreement:
    reports = store.reports(office.rules)
    if reports is None:
        elicited = elicit(office.transport, office.roster, office.rules, office.options)
        reports = elicited.reports
        store.save_nodes(office.roster.names)
        store.save_reports(reports, elicited.rejected)
    else:
        _find(office, set(reports))
    return agree(office, reports, store, store.rejected())


def _find(office: Office, names: set[str]) -> None:
    """Wait until everybody who reported is online again, or the time is over."""
    transport, roster = office.transport, office.roster
    deadline = transport.now() + office.options.wait_seconds
    roster.refresh()
    while any(roster.node_of(name) is None for name in names) and transport.now() < deadline:
        transport.pause()
        roster.refresh()


class _Rounds:
    """The rounds of an agreement: who is drawn is asked, what comes back is summed up and applied."""

    def __init__(
        self, office: Office, store: ServerStorage, agreement: Agreement, ledger: Ledger, model: ServerModel
    ) -> None:
        self.office, self.store, self.agreement = office, store, agreement
        self.ledger, self.model = ledger, model
        self.settings = agreement.preparation.settings
        self.answered: dict[str, int] = {}
        self.useless: set[str] = set()

    def train(self) -> None:
        state = self.store.state()
        if state is None:
            state = ModelState(rounds_done=0, parameters=self.model.first(), velocity=None)
            self.store.save_state(state)
        self.answered = state.answered
        with self.store.metrics(state.metrics_size) as metrics:
            if state.rounds_done == 0:
                metrics.add({"round": 0, **self.model.evaluate(state.parameters)})
            for index in range(state.rounds_done, self.settings.rounds):
                record = self._round(self.agreement.schedule.round(index), state)
                metrics.add(record)
                state.metrics_size = metrics.sync()
                self.store.save_state(state)
                self.store.drop_replies()
                accuracy = f", accuracy {record['accuracy']:.1%}" if "accuracy" in record else ""
                logger.info(
                    "round %d of %d: %d of %d slots answered%s",
                    index + 1, self.settings.rounds, record["answered"], record["slots"], accuracy,
                )  # fmt: skip
        last = self.store.read_metrics()[-1]
        known: dict[str, Any] = {name: last[name] for name in ("accuracy", "loss", "class_accuracy") if name in last}
        summary = {"status": "complete", "rounds": self.settings.rounds, **known}
        self.store.finish(self.model.stored(state.parameters), summary)

    def _round(self, drawn: Round, state: ModelState) -> dict[str, Any]:
        ids, terms = self.agreement.contract.ids, self.agreement.terms
        draws = {ids[k]: int(m) for k, m in zip(drawn.clients.tolist(), drawn.multiplicities.tolist(), strict=True)}
        digest = model_digest(state.parameters)
        asks = {
            name: Ask.of(terms[name], round=drawn.index, multiplicity=multiplicity, model_digest=digest)
            for name, multiplicity in draws.items()
            if name in terms
        }
        gathered = self._gathered(asks, state, drawn.index)
        answered = sum(draws[name] for name in gathered.releases)
        self._check_share(drawn.index, gathered, answered, draws, asks)
        update = self._update(state.parameters.size, gathered.releases, draws)
        self._apply(update, self.settings.learning_rate_at(drawn.index), state)
        state.rounds_done = drawn.index + 1
        for name in gathered.releases:
            state.answered[name] = state.answered.get(name, 0) + draws[name]
        return {
            "round": state.rounds_done,
            "slots": self.settings.per_round,
            "answered": answered,
            "missing": dict(gathered.missing),
            "update_norm": float(np.linalg.norm(update.astype(np.float64))),
            **self.model.evaluate(state.parameters),
        }

    def _check_share(
        self, index: int, gathered: Gathered, answered: int, draws: Mapping[str, int], asks: Mapping[str, Ask]
    ) -> None:
        """Stop if too few slots were answered by those who may still answer."""
        least = self.office.options.min_share
        self.useless = (self.useless | gathered.final) - gathered.releases.keys()
        # A client whose answer was unusable gives no better one later: a run that stops for it would stop for good.
        asked = sum(draws[name] for name in asks if name not in gathered.final)
        all_useless = least > 0 and self.useless >= self.agreement.terms.keys()
        if (asked and answered < least * asked) or all_useless:
            why = ", ".join(f"{name}: {reason}" for name, reason in gathered.missing.items())
            raise CampaignStoppedError(
                f"round {index + 1} of {self.settings.rounds}: {answered} of {asked} slots answered, below "
                f"min-share {least:g} ({why}); run again with the same store to go on"
            )

    def _gathered(self, asks: Mapping[str, Ask], state: ModelState, index: int) -> Gathered:
        stored = self._stored(asks, state, index)
        gathered = gather(
            self.office,
            {name: ask for name, ask in asks.items() if name not in stored},
            state.parameters,
            before_asking=self._record,
            on_reply=lambda ask, release: self.store.keep_reply(index, ask.client, release),
        )
        return Gathered(releases={**stored, **gathered.releases}, missing=gathered.missing, final=gathered.final)

    def _record(self, ask: Ask) -> None:
        """Spent from the moment it is asked for, whether or not a reply ever comes."""
        self.ledger.append([ask.release])

    def _stored(self, asks: Mapping[str, Ask], state: ModelState, index: int) -> dict[str, Vector]:
        """Replies from before a kill that are still good; the others are asked for again, and are the same then."""
        good = {}
        for name, release in self.store.replies(index).items():
            if name not in asks:
                continue
            try:
                check_release(release, state.parameters.size, asks[name].release)
            except UnusableError as error:
                logger.warning("%s: the stored reply cannot be used: %s", name, error)
                continue
            good[name] = release
        return good

    def _update(self, size: int, releases: Mapping[str, Vector], draws: Mapping[str, int]) -> Vector:
        """Σ m w r / K over those who answered: slots that stayed empty contribute 0, as in the simulator.

        In the contract's order, not in that of arrival: the same replies give the same model to the last bit, and
        clients that hold a round against its model would refuse another.
        """
        contract = self.agreement.contract
        weights = dict.fromkeys(contract.ids, 1.0)
        if contract.update_weights is not None:
            weights = dict(zip(contract.ids, contract.update_weights.tolist(), strict=True))
        total = np.zeros(size)
        for name in (name for name in draws if name in releases):
            total += draws[name] * weights[name] / self.settings.per_round * releases[name].astype(np.float64)
        return total.astype(np.float32)

    def _apply(self, update: Vector, step: float, state: ModelState) -> None:
        if self.settings.momentum:
            before = np.zeros_like(update) if state.velocity is None else state.velocity
            state.velocity = (np.float32(self.settings.momentum) * before + update).astype(np.float32)
            update = state.velocity
        state.parameters = (state.parameters - np.float32(step) * update).astype(np.float32)
