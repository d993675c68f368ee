"""The rounds on the server: ask whoever is drawn, sum up what comes back, apply it, and write all of it down.

A request is known by its ask id, a function of campaign, terms, round, draws and model. It may travel in several
messages (after a lost one, or to a node that came back under another id) and is always the same request: the
client's ledger answers it once and repeats that answer ever after.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from jsam.campaign.messages import Kind, Question, Reply, Vector
from jsam.campaign.round_request import RoundRequest, model_digest
from jsam.campaign.server.answers import UnusableError, check_release, refusal_in, release_in, words_in
from jsam.campaign.server.asking import Office, ask_clients
from jsam.campaign.server.storage import Agreement, ModelState, ReleaseLedger, ServerStorage
from jsam.campaign.terms import Terms
from jsam.errors import JsamError
from jsam.privacy import Release, Round

logger = logging.getLogger(__name__)


class CampaignStoppedError(JsamError):
    """Too few slots answered; the same store goes on from here."""


class ServerModel(Protocol):
    """The model that is trained. A campaign sees only its parameters, as one vector."""

    def load(self) -> None:
        """Get ready whatever may be missing, such as the server's own test data."""

    def first(self) -> Vector:
        """The parameters before the first round."""

    def environment(self) -> Mapping[str, str]:
        """The versions of whatever the model's numbers depend on."""

    def evaluate(self, parameters: Vector) -> dict[str, Any]:
        """Accuracy and loss on test data, which belong to no client; empty where the server has none."""

    def stored(self, parameters: Vector) -> bytes:
        """The content of a file from which the model can be loaded."""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What one client is asked for in one round."""

    request: RoundRequest
    release: Release
    ask_id: str

    @classmethod
    def of(cls, terms: Terms, *, round: int, multiplicity: int, model_digest: str) -> Ask:
        request = RoundRequest.of_terms(terms, round=round, multiplicity=multiplicity)
        parts = (terms.campaign, terms.hash, round, multiplicity, model_digest)
        ask_id = hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:32]
        return cls(request=request, release=terms.release(round, multiplicity), ask_id=ask_id)

    def question(self, parameters: Vector) -> Question:
        values = {**self.request.as_dict(), "ask_id": self.ask_id}
        return Question(kind=Kind.ROUND, values=values, parameters=parameters)


class Rounds:
    """The rounds of an agreement: who is drawn is asked, what comes back is summed up and applied."""

    def __init__(
        self, office: Office, store: ServerStorage, agreement: Agreement, ledger: ReleaseLedger, model: ServerModel
    ) -> None:
        self.office, self.store, self.agreement = office, store, agreement
        self.ledger, self.model = ledger, model
        self.settings = agreement.noise_plan.settings
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
        """Ask, apply, and advance the state by one round; the round's record."""
        ids, terms = self.agreement.contract.ids, self.agreement.terms
        digest = model_digest(state.parameters)
        asks = {
            ids[k]: Ask.of(terms[ids[k]], round=drawn.index, multiplicity=int(m), model_digest=digest)
            for k, m in zip(drawn.clients.tolist(), drawn.multiplicities.tolist(), strict=True)
            if ids[k] in terms
        }
        releases, missing = self._gathered(asks, state)
        draws = {name: ask.release.multiplicity for name, ask in asks.items() if name in releases}
        update = self._update(state.parameters.size, releases, draws)
        self._apply(update, self.settings.learning_rate_at(drawn.index), state)
        state.rounds_done = drawn.index + 1
        for name, multiplicity in draws.items():
            state.answered[name] = state.answered.get(name, 0) + multiplicity
        return {
            "round": state.rounds_done,
            "slots": self.settings.per_round,
            "answered": sum(draws.values()),
            "missing": missing,
            "update_norm": float(np.linalg.norm(update.astype(np.float64))),
            **self.model.evaluate(state.parameters),
        }

    def _gathered(self, asks: Mapping[str, Ask], state: ModelState) -> tuple[dict[str, Vector], dict[str, str]]:
        """Noisy means by client, and why others are missing; `CampaignStoppedError` if these are too many."""
        index, options = state.rounds_done, self.office.options
        releases = self._stored(asks, state)
        final: dict[str, str] = {}  # answers that would be the same if they were asked for again

        def take(name: str, reply: Reply) -> None:
            refused = refusal_in(reply)
            if refused is not None:
                logger.warning("%s: %s (%s)", name, refused, words_in(reply))
                final[name] = refused
                return
            try:
                release = release_in(reply, asks[name].ask_id, state.parameters.size, asks[name].release)
            except UnusableError as error:
                logger.warning("%s: %s", name, error)
                final[name] = str(error.flaw)
                return
            self.store.keep_reply(index, name, release)
            releases[name] = release

        silent = ask_clients(
            self.office,
            {name: ask.question(state.parameters) for name, ask in asks.items() if name not in releases},
            take,
            seconds=options.round_seconds,
            # Spent from the moment it is asked for, whether or not a reply ever comes.
            before=lambda name: self.ledger.append([asks[name].release]),
        )
        missing = {**final, **silent}
        self.useless = (self.useless | final.keys()) - releases.keys()
        # A client whose answer was unusable gives no better one later: a run that stops for it would stop for good.
        asked = sum(ask.release.multiplicity for name, ask in asks.items() if name not in final)
        answered = sum(asks[name].release.multiplicity for name in releases)
        all_useless = options.min_share > 0 and self.useless >= self.agreement.terms.keys()
        if (asked and answered < options.min_share * asked) or all_useless:
            why = ", ".join(f"{name}: {reason}" for name, reason in missing.items())
            raise CampaignStoppedError(
                f"round {index + 1} of {self.settings.rounds}: {answered} of {asked} slots answered, below "
                f"min-share {options.min_share:g} ({why}); run again with the same store to go on"
            )
        return releases, missing

    def _stored(self, asks: Mapping[str, Ask], state: ModelState) -> dict[str, Vector]:
        """Replies from before a kill that are still good; the others are asked for again, and are the same then."""
        good = {}
        for name, release in self.store.replies(state.rounds_done).items():
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
        for name, multiplicity in draws.items():
            total += multiplicity * weights[name] / self.settings.per_round * releases[name].astype(np.float64)
        return total.astype(np.float32)

    def _apply(self, update: Vector, step: float, state: ModelState) -> None:
        if self.settings.momentum:
            before = np.zeros_like(update) if state.velocity is None else state.velocity
            state.velocity = (np.float32(self.settings.momentum) * before + update).astype(np.float32)
            update = state.velocity
        state.parameters = (state.parameters - np.float32(step) * update).astype(np.float32)
