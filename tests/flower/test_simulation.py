"""The same apps on Flower's own simulation engine: equal to the simulator without noise, and a hundred clients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from tests.conftest import require

if not TYPE_CHECKING:
    require("flwr", extra="flower")
    require("ray", extra="flower")

from benchmarks.simulated_federation import SimulatedFederation
from jsam.campaign.campaign_rules import CampaignRules
from jsam.campaign.client.client_files import ClientFiles
from jsam.campaign.client.client_ledger import ClientLedger
from jsam.campaign.server.server_store import ServerStore
from jsam.flower.launch.app_folder import write_app
from jsam.flower.launch.deploy import Shares
from jsam.mechanism.contract_files import load_contract
from jsam.training import eager_rounds
from jsam.training.recorded_run import train
from jsam.training.task import TaskSpec
from tests.flower.loopback import published

NOISELESS = """\
import numpy as np

from jsam.flower.client_app import client_app

app = client_app(lambda std, size: np.zeros(size, dtype=np.float32))
"""


def _run(folder: Path, rules: CampaignRules, clients: int, app: Path | None = None) -> ServerStore:
    store = ServerStore(folder / "server")
    Shares.deal(rules, clients=clients, dataset="digits").write(folder / "clients")
    values: dict[str, Any] = {**rules.as_dict(), "clients": clients, "store": str(store.path), "dataset": "digits"}
    if app is not None:
        write_app(app, values, clientapp="noiseless:app")
    with SimulatedFederation(folder, folder / "clients") as federation:
        run_id = federation.submit(values, app=app)
        run = federation.wait(run_id, timeout=240, over=store.outcome.exists)
        log = federation.superlink.tail() if federation.superlink is not None else ""
    assert run.completed, log
    return store


def _parameters(path: Path) -> np.ndarray[Any, Any]:
    return np.concatenate([value.numpy().ravel() for value in torch.load(path, weights_only=True).values()])


@pytest.mark.slow
def test_without_noise_flowers_engine_and_ours_give_the_same_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """3 rounds, 5 clients: every parameter agrees to 1e-6."""
    app = tmp_path / "app"
    app.mkdir()
    (app / "noiseless.py").write_text(NOISELESS)
    rules = published(rounds=3, per_round=6)
    store = _run(tmp_path, rules, 5, app)
    monkeypatch.setattr(eager_rounds, "round_noise", lambda std, size, **_: torch.zeros(size))
    task = TaskSpec(dataset="digits", num_clients=5, seed=rules.rules.seed).build()
    start = np.concatenate([value.detach().numpy().ravel() for value in task.model.parameters()])
    train(load_contract(store.run.contract), task, rules.training, tmp_path / "simulated")
    ours, flowers = _parameters(tmp_path / "simulated" / "model.pt"), _parameters(store.run.model)
    assert np.abs(ours - flowers).max() <= 1e-6
    assert np.abs(ours - start).max() > 1e-2, "training must have moved the model, or the comparison says nothing"


@pytest.mark.slow
def test_a_hundred_virtual_clients_keep_a_hundred_ledgers(tmp_path: Path) -> None:
    rules = published(rounds=2, per_round=10, loss_weight=500.0)
    store = _run(tmp_path, rules, 100)
    books = json.loads((store.path / "books.json").read_text())
    assert books["kept"]
    assert len(books["clients"]) == 100
    for account in books["clients"]:
        k = int(account["id"].removeprefix("client-"))
        files = ClientFiles.load(tmp_path / "clients" / f"client-{k}" / "client.toml")
        (own,) = ClientLedger(files.ledger, files.policy).statement()
        assert not own.overspent
        assert (own.participations, own.releases) == (account["participations"], account["releases"])
    assert sum(account["answered"] for account in books["clients"]) == 2 * 10
