"""Three real SuperNodes without noise against the simulator: the same model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from tests.conftest import require

if not TYPE_CHECKING:
    require("flwr", extra="flower")

from jsam.campaign.server.server_store import ServerStore
from jsam.flower.launch.deploy import Shares
from jsam.flower.launch.federation import LocalFederation
from jsam.mechanism.contract_files import load_contract
from jsam.privacy import read_ledger
from jsam.training import eager_rounds
from jsam.training.recorded_run import train
from jsam.training.task import TaskSpec
from tests.flower.loopback import published

CLIENTS = 3
# What a client would have to install, and to name when it starts its SuperNode (`--app`), to leave the noise out.
NOISELESS = """\
import numpy as np

from jsam.flower.client_app import client_app

app = client_app(lambda std, size: np.zeros(size, dtype=np.float32))
"""


def _parameters(path: Path) -> np.ndarray[Any, Any]:
    return np.concatenate([value.numpy().ravel() for value in torch.load(path, weights_only=True).values()])


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="starts processes as Linux does")
def test_without_noise_real_processes_and_the_simulator_give_the_same_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """3 rounds, 3 SuperNodes: every parameter agrees to 1e-6. The run ships the usual app; nodes run their own."""
    own = tmp_path / "installed by the clients"
    own.mkdir()
    (own / "noiseless.py").write_text(NOISELESS)
    rules = published(rounds=3, per_round=6)
    store = ServerStore(tmp_path / "server")
    files = Shares.deal(rules, clients=CLIENTS, dataset="digits").write(tmp_path / "clients")
    with LocalFederation(tmp_path, own_app="noiseless:app") as federation:
        federation.environment["PYTHONPATH"] = str(own)
        for k, file in enumerate(files):
            federation.add_node(f"client-{k}", file)
        values = {**rules.as_dict(), "clients": CLIENTS, "store": str(store.path), "rebind": True}
        run_id = federation.submit(values)
        run = federation.wait(run_id, timeout=300, over=store.outcome.exists)
        assert run.completed, federation.superlink and federation.superlink.tail()

    monkeypatch.setattr(eager_rounds, "round_noise", lambda std, size, **_: torch.zeros(size))
    task = TaskSpec(dataset="digits", num_clients=CLIENTS, seed=rules.rules.seed).build()
    start = np.concatenate([value.detach().numpy().ravel() for value in task.model.parameters()])
    train(load_contract(store.run.contract), task, rules.training, tmp_path / "simulated")
    ours, theirs = _parameters(tmp_path / "simulated" / "model.pt"), _parameters(store.run.model)
    assert np.abs(ours - theirs).max() <= 1e-6
    assert np.abs(ours - start).max() > 1e-2, "training must have moved the model, or the comparison says nothing"
    assert read_ledger(store.run.ledger) == read_ledger(tmp_path / "simulated" / "ledger.jsonl")
