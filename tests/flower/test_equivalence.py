"""The federation and the simulator carry out the same contract: the same model, the same noise, the same books."""

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

from jsam.campaign.server import rounds
from jsam.campaign.server.server_store import ServerStore
from jsam.mechanism.contract_files import load_contract
from jsam.privacy import read_ledger
from jsam.runs.run_folder import RunFolder
from jsam.runs.settlement import settle
from jsam.training import eager_rounds
from jsam.training.recorded_run import train
from tests.flower.loopback import Federation, no_noise, published

SENSITIVITIES = [0.15, 0.3, 0.45, 0.6, 0.8]


def _parameters(path: Path) -> np.ndarray[Any, Any]:
    stored = torch.load(path, weights_only=True)
    return np.concatenate([value.numpy().ravel() for value in stored.values()])


@pytest.mark.parametrize("changes", [{}, {"momentum": 0.5, "learning_rate_schedule": "cosine"}])
def test_without_noise_flower_and_the_simulator_give_the_same_model(
    changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """3 rounds, 5 clients, some drawn several times in a round: parameters agree to 1e-6."""
    federation = Federation.make(tmp_path, SENSITIVITIES, noise=no_noise)
    rules = published(per_round=6, **changes)
    federation.run(rules)
    store = ServerStore(tmp_path / "server")
    contract = load_contract(store.run.contract)

    monkeypatch.setattr(eager_rounds, "round_noise", lambda std, size, **_: torch.zeros(size))
    train(contract, federation.spec.build(), rules.training, tmp_path / "simulated")
    simulated = RunFolder(tmp_path / "simulated")

    before = _parameters(store.run.model)
    assert np.abs(before - _parameters(simulated.model)).max() <= 1e-6
    assert store.run.schedule.read_bytes() == simulated.schedule.read_bytes()
    draws = store.run.schedule.read_text().splitlines()[1:]
    assert any(len(set(json.loads(row))) < 6 for row in draws), "some client must be drawn more than once in a round"
    assert [r.to_record() for r in read_ledger(store.run.ledger)] == [
        r.to_record() for r in read_ledger(simulated.ledger)
    ]
    assert settle(store.path, second_opinion=False).kept


def test_without_noise_the_model_has_moved(tmp_path: Path) -> None:
    """The comparison above would hold for two models that nobody trained."""
    federation = Federation.make(tmp_path, SENSITIVITIES, noise=no_noise)
    federation.run(published())
    metrics = ServerStore(tmp_path / "server").run.read_metrics()
    assert metrics[-1]["loss"] < metrics[0]["loss"] - 0.05


def test_noise_of_the_aggregate_has_the_variance_of_the_contract(tmp_path: Path) -> None:
    """Over repeated rounds the aggregate's deviation from the noiseless one has Σ (m σ/√m)²/K² a coordinate.

    Rounds repeat the same model (learning rate next to 0), so the noiseless aggregate of round t is known. The test
    accepts the contract's variance and rejects 2/3 and 3/2 of it.
    """
    rules = published(rounds=4, per_round=6, learning_rate=1e-12)
    noisy = Federation.make(tmp_path / "noisy", SENSITIVITIES)
    plain = Federation.make(tmp_path / "plain", SENSITIVITIES, noise=no_noise)
    seen: dict[str, list[np.ndarray[Any, Any]]] = {"noisy": [], "plain": []}
    original = rounds.Rounds._update
    with pytest.MonkeyPatch.context() as patch:
        for name, federation in (("noisy", noisy), ("plain", plain)):

            def update(self: Any, *arguments: Any, name: str = name) -> Any:
                found = original(self, *arguments)
                seen[name].append(found.astype(np.float64))
                return found

            patch.setattr(rounds.Rounds, "_update", update)
            federation.run(rules)

    releases = read_ledger(tmp_path / "noisy" / "server" / "ledger.jsonl")
    ratios = []
    for index, (with_noise, without) in enumerate(zip(seen["noisy"], seen["plain"], strict=True)):
        of_round = [entry for entry in releases if entry.round == index]
        contract = sum((entry.multiplicity * entry.noise_std) ** 2 for entry in of_round) / rules.training.per_round**2
        ratios.append((with_noise - without) ** 2 / contract)
    squares = np.concatenate(ratios)
    # Σ of n squared standard normals: n ± a few √(2n).
    tolerance = 5 * np.sqrt(2 / squares.size)
    assert tolerance < 0.1
    assert abs(squares.mean() - 1) < tolerance
    assert abs(squares.mean() * 2 / 3 - 1) > tolerance
    assert abs(squares.mean() * 3 / 2 - 1) > tolerance


def test_noise_differs_between_clients_rounds_and_runs(tmp_path: Path) -> None:
    """Every release has noise of its own: no seed, no repetition."""
    rules = published(rounds=2, per_round=4)
    values = []
    for name in ("a", "b"):
        federation = Federation.make(tmp_path / name, SENSITIVITIES[:2])
        federation.run(rules)
        replies = sorted((tmp_path / name / "clients").glob("*/ledger/campaigns/*/replies/*.bin"))
        values += [path.read_bytes() for path in replies]
    assert len(values) >= 6
    assert len(set(values)) == len(values)
