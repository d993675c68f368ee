"""Hospitals of 30 and of 700 records over Flower: planned by what they hold, and trained like the simulator does it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from tests.conftest import require

if not TYPE_CHECKING:
    require("flwr", extra="flower")

from jsam.campaign.server.server_store import ServerStore
from jsam.mechanism.contract_files import load_contract
from jsam.privacy import check_contract, read_ledger
from jsam.runs.run_folder import RunFolder
from jsam.runs.settlement import settle
from jsam.training import eager_rounds
from jsam.training.recorded_run import train
from tests.flower.loopback import Federation, no_noise, published

SENSITIVITIES, SIZES = [0.2, 0.3, 0.45, 0.8], (30, 700, 250, 90)
BY_SIZE = {"mechanism": "jsam-even", "sizes": "reported", "rounds": 4, "per_round": 6}


def test_a_campaign_by_sizes_is_what_the_simulator_does_by_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without noise the models agree to 1e-6, and the releases that are recorded agree to the last digit."""
    federation = Federation.make(tmp_path, SENSITIVITIES, noise=no_noise, sizes=SIZES)
    rules = published(**BY_SIZE)
    federation.run(rules)
    store = ServerStore(tmp_path / "server")
    contract = load_contract(store.run.contract)
    assert contract.data_shares == pytest.approx(np.array(SIZES) / sum(SIZES))

    monkeypatch.setattr(eager_rounds, "round_noise", lambda std, size, **_: torch.zeros(size))
    train(contract, federation.spec.build(), rules.training, tmp_path / "simulated")
    simulated = RunFolder(tmp_path / "simulated")
    models = [torch.load(path, weights_only=True) for path in (store.run.model, simulated.model)]
    for name, value in models[0].items():
        assert float((value - models[1][name]).abs().max()) <= 1e-6
    assert [r.to_record() for r in read_ledger(store.run.ledger)] == [
        r.to_record() for r in read_ledger(simulated.ledger)
    ]


def test_with_noise_both_sides_books_hold_each_contract(tmp_path: Path) -> None:
    federation = Federation.make(tmp_path, SENSITIVITIES, sizes=SIZES)
    books = federation.run(published(**BY_SIZE))
    store = ServerStore(tmp_path / "server")
    contract = load_contract(store.run.contract)
    assert books["kept"]
    assert settle(store.path, second_opinion=False).kept
    releases = read_ledger(store.run.ledger)
    assert {(entry.client, entry.samples) for entry in releases} <= {
        (f"client-{k}", size) for k, size in enumerate(SIZES)
    }
    bought = dict(zip(contract.ids, contract.epsilons.tolist(), strict=True))
    assert check_contract(releases, bought, published(**BY_SIZE).training.delta).kept
    for k, size in enumerate(SIZES):
        entry = federation.statement(k)
        assert entry.samples == size
        assert entry.epsilon_spent <= entry.epsilon_bought == contract.epsilons[k]
