"""One client with records and models of its own, and a server that says to it what it likes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from jsam.campaign.client.client_files import ClientFiles, write_client
from jsam.campaign.client.client_ledger import ClientLedger
from jsam.campaign.round_request import RoundRequest
from jsam.campaign.terms import Terms
from jsam.flower.client_app import client_app
from jsam.training.federated import fit_records, parameters
from jsam.training.models import build_model
from tests.flower.loopback import LoopbackGrid, no_noise, published

Answer = tuple[dict[str, Any], Any]
"""The words of an answer, and its gradient (fp32) or None."""


def install(folder: Path, patch: pytest.MonkeyPatch, code: str, *models: str) -> None:
    """A package, as pip would leave it behind, that offers these functions of a module of that code as models."""
    about = folder / "wards-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: wards\nVersion: 1.0\n")
    lines = [f"{name} = wards_of_test:{name}" for name in models]
    (about / "entry_points.txt").write_text("[jsam.models]\n" + "\n".join(lines) + "\n")
    (folder / "wards_of_test.py").write_text(code)
    patch.syspath_prepend(folder)
    patch.delitem(sys.modules, "wards_of_test", raising=False)
    for cached in (parameters._engine, parameters._classes, parameters._size):
        cached.cache_clear()


class LoneClient:
    """Noise is switched off where `noiseless`, so that a reply is the client's mean."""

    def __init__(
        self, folder: Path, inputs: NDArray[Any], targets: NDArray[Any], *, model: str, noiseless: bool = True
    ) -> None:
        self.samples, self.model = len(targets), model
        self.file = write_client(folder, name="hospital-a", sensitivity=0.2, inputs=inputs, targets=targets)
        app = client_app(no_noise) if noiseless else client_app()
        self._grid = LoopbackGrid({7: (app, {"client-file": str(self.file)})})
        self.parameters = parameters.flattened(build_model(model, 0))

    @property
    def ledger(self) -> ClientLedger:
        files = ClientFiles.load(self.file)
        return ClientLedger(files.ledger, files.policy)

    def fit(self) -> NDArray[np.bool_]:
        return fit_records.fit_records(ClientFiles.load(self.file), self.model)

    def offered(self, *, epsilon: float = 1.0, clip_norm: float = 1.0) -> tuple[Terms, dict[str, Any]]:
        """Elicit and offer; the terms and what the client says to them."""
        rules = published(model=self.model, campaign="x", clip_norm=clip_norm)
        self._say("query.elicit", RecordDict({"published": ConfigRecord({"text": rules.to_json()})}))
        terms = Terms.of_contract(
            campaign="x",
            client="hospital-a",
            epsilon=epsilon,
            delta=rules.training.delta,
            participations=3,
            clip_norm=clip_norm,
            samples=self.samples,
            adjacency=rules.training.adjacency,
            payment=epsilon,
            public=rules.inputs(3, 50.0),
        )
        return terms, self._say("query.offer", RecordDict({"offer": ConfigRecord({"terms": terms.to_json()})}))[0]

    def ask(self, terms: Terms, *, round: int = 0, vector: NDArray[np.float32] | None = None) -> Answer:
        request: dict[str, Any] = {**RoundRequest.of_terms(terms, round=round, multiplicity=1).as_dict(), "ask_id": "a"}
        vector = self.parameters if vector is None else vector
        model = ArrayRecord({"parameters": Array(vector)})
        return self._say("train", RecordDict({"request": ConfigRecord(request), "model": model}))

    def _say(self, kind: str, content: RecordDict) -> Answer:
        return self._grid.say(7, kind, content)
