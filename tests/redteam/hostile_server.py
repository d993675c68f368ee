"""A server in full control of what is said to one client, over real messages to its real app."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from jsam.campaign.campaign_rules import CampaignRules
from jsam.campaign.client.client_files import ClientFiles, write_client
from jsam.campaign.client.client_ledger import ClientLedger
from jsam.campaign.round_request import RoundRequest
from jsam.campaign.terms import Terms
from jsam.flower.client_app import client_app
from jsam.training.federated.parameters import flattened, initial_model
from tests.flower.loopback import LoopbackGrid

RECORDS = 60


class HostileServer:
    """One client with records of digits, and whatever this server says to it."""

    def __init__(self, folder: Path, *, policy: str | None = None, sensitivity: float = 0.2) -> None:
        rng = np.random.default_rng(0)
        self.file = write_client(
            folder / "client",
            name="hospital-a",
            sensitivity=sensitivity,
            inputs=rng.standard_normal((RECORDS, 1, 8, 8)).astype(np.float32),
            targets=rng.integers(0, 10, RECORDS),
            policy=policy,
        )
        self._grid = LoopbackGrid({7: (client_app(), {"client-file": str(self.file)})})
        self._parameters = flattened(initial_model("digits", 0))

    @property
    def ledger(self) -> ClientLedger:
        return ClientFiles.load(self.file).books()

    def rules(self, **changes: Any) -> CampaignRules:
        values: dict[str, Any] = {
            "campaign": "x",
            "loss_weight": 50.0,
            "model": "digits",
            "rounds": 6,
            "per_round": 4,
            "learning_rate": 0.5,
        }
        return CampaignRules.from_dict({**values, **changes})

    def terms(
        self, rules: CampaignRules, *, epsilon: float = 2.0, draws: int = 3, payment: float | None = None
    ) -> Terms:
        return Terms.of_contract(
            campaign=rules.campaign,
            client="hospital-a",
            epsilon=epsilon,
            delta=rules.training.delta,
            participations=draws,
            clip_norm=rules.training.clip_norm,
            samples=RECORDS,
            adjacency=rules.training.adjacency,
            payment=epsilon if payment is None else payment,
            public=rules.inputs(3, rules.rules.loss_weight or 0.0),
        )

    def elicit(self, rules: CampaignRules, **changes: Any) -> dict[str, Any]:
        """`changes` to the words that are sent, which need not be rules that anybody could publish."""
        text = json.dumps({**rules.as_dict(), **changes})
        return self._say("query.elicit", RecordDict({"published": ConfigRecord({"text": text})}))[0]

    def offer(self, terms: Terms) -> dict[str, Any]:
        return self._say("query.offer", RecordDict({"offer": ConfigRecord({"terms": terms.to_json()})}))[0]

    def offer_as_stored(self, stored: dict[str, Any]) -> dict[str, Any]:
        """Words in the place of terms, which need not be terms that anybody could make."""
        return self._say("query.offer", RecordDict({"offer": ConfigRecord({"terms": json.dumps(stored)})}))[0]

    def ask(self, terms: Terms, round: int, draws: int = 1) -> tuple[dict[str, Any], NDArray[np.float32] | None]:
        request = RoundRequest.of_terms(terms, round=round, multiplicity=draws)
        content = RecordDict(
            {
                "request": ConfigRecord({**request.as_dict(), "ask_id": "a"}),
                "model": ArrayRecord({"parameters": Array(self._parameters)}),
            }
        )
        return self._say("train", content)

    def close(self, campaign: str) -> dict[str, Any]:
        return self._say("query.close", RecordDict({"close": ConfigRecord({"campaign": campaign})}))[0]

    def hello(self) -> dict[str, Any]:
        return self._say("query.hello", RecordDict())[0]

    def agreed(self, *, epsilon: float = 2.0, draws: int = 3, payment: float | None = None, **rules: Any) -> Terms:
        """A campaign up to the client's yes."""
        published = self.rules(**rules)
        assert "refused" not in self.elicit(published)
        terms = self.terms(published, epsilon=epsilon, draws=draws, payment=payment)
        answer = self.offer(terms)
        assert "refused" not in answer, answer
        return terms

    def _say(self, kind: str, content: RecordDict) -> tuple[dict[str, Any], NDArray[np.float32] | None]:
        return self._grid.say(7, kind, content)
