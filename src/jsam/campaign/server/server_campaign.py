"""A campaign on the server from the first question to the books, and again from wherever a kill left it."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from jsam.campaign.campaign_rules import Conduct, Published
from jsam.campaign.server.agreement import Agreement, agree
from jsam.campaign.server.answers import UnusableError, check_release
from jsam.campaign.server.elicitation import elicit
from jsam.campaign.server.roster import Roster
from jsam.campaign.server.rounds import Ask, Gathered, gather
from jsam.campaign.server.server_accounts import books_of
from jsam.campaign.server.server_store import ModelState, ServerStore
from jsam.errors import JsamError
from jsam.files import write_atomically
from jsam.flower.messaging import Exchange
from jsam.privacy import Ledger, Round
from jsam.runs.run_folder import MetricsFile, write_json
from jsam.training.checkpoint import as_bytes
from jsam.training.clipping import cross_entropy
from jsam.training.data import Dataset, load_dataset
from jsam.training.evaluation import evaluate
from jsam.training.federated.installed_models import check_model
from jsam.training.federated.parameters import digest, flattened, initial_model, put_into

logger = logging.getLogger("flwr.jsam")
Vector = NDArray[np.float32]


class CampaignStoppedError(JsamError):
    """Too few slots answered; the same store goes on from here."""


def run_campaign(exchange: Exchange, published: Published, conduct: Conduct) -> dict[str, Any]:
    """Begin the campaign, or go on with the one in the store; the books at its end."""
    check_model(published.model)
    store = ServerStore(conduct.store)
    store.begin(published)
    # The lock first: a second server must not touch the first one's files.
    with store.writing() as ledger, store.telling_the_end():
        return _run(exchange, published, conduct, store, ledger)


def _run(
    exchange: Exchange, published: Published, conduct: Conduct, store: ServerStore, ledger: Ledger
) -> dict[str, Any]:
    # Before anybody is asked: a client that has accepted holds ε ready for a campaign that could not begin.
    dataset = load_dataset(conduct.dataset) if conduct.dataset else None
    roster = Roster(
        exchange,
        rebind=conduct.rebind,
        keys=conduct.public_keys(),
        known=None if conduct.rebind else store.nodes(),
    )
    agreement = store.agreement(published)
    if agreement is None:
        reports = store.reports(published)
        if reports is None:
            elicited = elicit(exchange, roster, published, conduct)
            reports = elicited.reports
            store.save_nodes(roster.names)
            store.save_reports(reports, elicited.rejected)
        else:
            _find(exchange, roster, conduct, set(reports))
        agreement = agree(exchange, roster, published, conduct, reports, store, store.rejected())
        store.save_agreement(published, agreement)
    campaign = _Campaign(exchange, roster, published, conduct, store, agreement, ledger, dataset)
    try:
        campaign.train()
    finally:
        books = books_of(agreement, tuple(ledger), campaign.answered, store.run.read_metrics())
        store.save_books(books)
    return books


def _find(exchange: Exchange, roster: Roster, conduct: Conduct, names: set[str]) -> None:
    """Wait until everybody who reported is online again, or the time is over."""
    deadline = exchange.now() + conduct.wait_seconds
    roster.refresh()
    while any(roster.node_of(name) is None for name in names) and exchange.now() < deadline:
        exchange.pause()
        roster.refresh()


class _Campaign:
    def __init__(
        self,
        exchange: Exchange,
        roster: Roster,
        published: Published,
        conduct: Conduct,
        store: ServerStore,
        agreement: Agreement,
        ledger: Ledger,
        dataset: Dataset | None,
    ) -> None:
        self.exchange, self.roster, self.published, self.conduct = exchange, roster, published, conduct
        self.store, self.agreement, self.ledger = store, agreement, ledger
        self.settings = agreement.preparation.settings
        self.model = initial_model(published.model, published.seed)
        self.dataset = dataset
        self.answered: dict[str, int] = {}
        self.useless: set[str] = set()

    def train(self) -> None:
        state = self.store.state()
        if state is None:
            state = ModelState(rounds_done=0, parameters=flattened(self.model), velocity=None)
            self.store.save_state(state)
        self.answered = state.answered
        last: dict[str, Any] = {}
        with MetricsFile(self.store.run.metrics, size=state.metrics_size) as metrics:
            if state.rounds_done == 0:
                metrics.add({"round": 0, **self._evaluation(state)})
            for index in range(state.rounds_done, self.settings.rounds):
                last = self._round(self.agreement.schedule.round(index), state)
                metrics.add(last)
                state.metrics_size = metrics.sync()
                self.store.save_state(state)
                self.store.drop_replies()
                accuracy = f", accuracy {last['accuracy']:.1%}" if "accuracy" in last else ""
                logger.info(
                    "round %d of %d: %d of %d slots answered%s",
                    index + 1, self.settings.rounds, last["answered"], last["slots"], accuracy,
                )  # fmt: skip
        put_into(self.model, state.parameters)
        write_atomically(self.store.run.model, as_bytes(self.model.state_dict()))
        last = last or self.store.run.read_metrics()[-1]
        known: dict[str, Any] = {name: last[name] for name in ("accuracy", "loss", "class_accuracy") if name in last}
        write_json(self.store.run.summary, {"status": "complete", "rounds": self.settings.rounds, **known})

    def _round(self, drawn: Round, state: ModelState) -> dict[str, Any]:
        contract = self.agreement.contract
        multiplicities = {
            contract.ids[k]: int(m) for k, m in zip(drawn.clients.tolist(), drawn.multiplicities.tolist(), strict=True)
        }
        asks = {
            name: Ask.of(
                self.agreement.terms[name],
                round=drawn.index,
                multiplicity=m,
                model_digest=digest(state.parameters),
            )
            for name, m in multiplicities.items()
            if name in self.agreement.terms
        }
        gathered = self._gathered(asks, state, drawn.index)
        answered = sum(multiplicities[name] for name in gathered.releases)
        self.useless = (self.useless | gathered.final) - gathered.releases.keys()
        # A client whose answer was unusable gives no better one later: a run that stops for it would stop for good.
        asked = sum(multiplicities[name] for name in asks if name not in gathered.final)
        if (asked and answered < self.conduct.min_share * asked) or self._all_useless():
            why = ", ".join(f"{name}: {reason}" for name, reason in gathered.missing.items())
            raise CampaignStoppedError(
                f"round {drawn.index + 1} of {self.settings.rounds}: {answered} of {asked} slots answered, below "
                f"min-share {self.conduct.min_share:g} ({why}); run again with the same store to go on"
            )
        update = self._update(gathered.releases, multiplicities)
        self._apply(update, self.settings.learning_rate_at(drawn.index), state)
        state.rounds_done = drawn.index + 1
        for name in gathered.releases:
            state.answered[name] = state.answered.get(name, 0) + multiplicities[name]
        return {
            "round": state.rounds_done,
            "slots": self.settings.per_round,
            "answered": answered,
            "missing": dict(gathered.missing),
            "update_norm": float(np.linalg.norm(update.astype(np.float64))),
            **self._evaluation(state),
        }

    def _all_useless(self) -> bool:
        return self.conduct.min_share > 0 and self.useless >= self.agreement.terms.keys()

    def _gathered(self, asks: Mapping[str, Ask], state: ModelState, index: int) -> Gathered:
        stored = self._stored(asks, state, index)
        found = gather(
            self.exchange,
            self.roster,
            {name: ask for name, ask in asks.items() if name not in stored},
            state.parameters,
            self.conduct,
            before_asking=self._record,
            on_reply=lambda ask, release: self.store.keep_reply(index, ask.client, release),
        )
        return Gathered(releases={**stored, **found.releases}, missing=found.missing, final=found.final)

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

    def _record(self, ask: Ask) -> None:
        """Spent from the moment it is asked for, whether or not a reply ever comes."""
        terms = self.agreement.terms[ask.client]
        self.ledger.append([terms.release(ask.request.round, ask.request.multiplicity)])

    def _update(self, releases: Mapping[str, Vector], multiplicities: Mapping[str, int]) -> Vector:
        """Σ m w r / K over those who answered: slots that stayed empty contribute 0, as in the simulator.

        In the contract's order, not in that of arrival: the same replies give the same model to the last bit, and
        clients that hold a round against its model would refuse another.
        """
        contract = self.agreement.contract
        weights = dict.fromkeys(contract.ids, 1.0)
        if contract.update_weights is not None:
            weights = dict(zip(contract.ids, contract.update_weights.tolist(), strict=True))
        total = np.zeros_like(flattened(self.model), dtype=np.float64)
        for name in (name for name in multiplicities if name in releases):
            share = multiplicities[name] * weights[name] / self.settings.per_round
            total += share * releases[name].astype(np.float64)
        return total.astype(np.float32)

    def _apply(self, update: Vector, step: float, state: ModelState) -> None:
        if self.settings.momentum:
            before = np.zeros_like(update) if state.velocity is None else state.velocity
            state.velocity = (np.float32(self.settings.momentum) * before + update).astype(np.float32)
            update = state.velocity
        state.parameters = (state.parameters - np.float32(step) * update).astype(np.float32)

    def _evaluation(self, state: ModelState) -> dict[str, Any]:
        """On test data, which belong to no client."""
        if self.dataset is None:
            return {}
        put_into(self.model, state.parameters)
        found = evaluate(
            self.model,
            torch.from_numpy(self.dataset.test_inputs),
            torch.from_numpy(self.dataset.test_targets),
            num_classes=self.dataset.num_classes,
            loss=cross_entropy,
        )
        loss = found.loss if math.isfinite(found.loss) else None
        return {"accuracy": found.accuracy, "loss": loss, "class_accuracy": list(found.class_accuracy)}
