"""The store of a campaign's server is a run's folder too: its noise is the clients', and its model may be shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from tests.conftest import require

if not TYPE_CHECKING:
    require("flwr", extra="flower")

from jsam.campaign.server.server_store import ServerStore
from jsam.runs.publishing import publish
from jsam.runs.settlement import settle
from tests.flower.loopback import Federation, published

SENSITIVITIES = [0.15, 0.3, 0.45]


def test_a_campaigns_model_is_published_without_reports_and_payments(tmp_path: Path) -> None:
    federation = Federation.make(tmp_path, SENSITIVITIES)
    federation.run(published())
    store = ServerStore(tmp_path / "server")
    # Stores of a version without noise seeds are no runs with known noise either.
    for without in (False, True):
        config = json.loads(store.run.config.read_text())
        if without:
            del config["settings"]["noise_seed"]
        store.run.config.write_text(json.dumps(config))
        settlement = settle(store.path, second_opinion=False)
        assert settlement.kept, settlement.lines()
        assert settlement.noise == "the noise is each client's own"
    copy = publish(store.path, tmp_path / "copy", settlement)
    assert {path.name for path in copy.iterdir()} == {"model.pt", "publication.json"}
    said = (copy / "publication.json").read_text()
    for client in json.loads(store.run.contract.read_text())["clients"]:
        assert repr(client["sensitivity"]) not in said
        assert repr(client["payment"]) not in said
    assert json.loads(said)["accuracy"] is None


def test_the_listed_files_are_those_of_a_campaign(tmp_path: Path) -> None:
    federation = Federation.make(tmp_path, SENSITIVITIES)
    federation.run(published())
    store = tmp_path / "server"
    files = settle(store, second_opinion=False).as_dict()["files"]
    patterns = [name.strip().rstrip("/") for file in files for name in file["name"].split(",")]
    for path in store.iterdir():
        assert any(path.match(pattern) for pattern in patterns), path.name
