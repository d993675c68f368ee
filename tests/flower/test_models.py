"""Models of one's own on Flower: by name, from what is installed on each machine, never from what a server sends."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from tests.conftest import require

if not TYPE_CHECKING:
    require("flwr", extra="flower")

from jsam.campaign.server.server_store import ServerStore
from jsam.campaign.server.storage import NobodyLeftError
from jsam.errors import InputError
from jsam.training.federated import server_model
from jsam.training.models import build_model, check_model
from tests.flower.loopback import Federation, no_noise, published

CODE = """\
from torch import nn

def small():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

def mixing():
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10))

def nothing():
    return 7
"""
OFFERED = {"ward": "small", "seven": "nothing", "mixing": "mixing"}


def _install(folder: Path, name: str, offers: dict[str, str]) -> None:
    """What pip would leave behind."""
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"{model} = {value}" for model, value in offers.items()]
    (about / "entry_points.txt").write_text("[jsam.models]\n" + "\n".join(lines) + "\n")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "site"
    _install(folder, "hospitals", {name: f"ward_models:{value}" for name, value in OFFERED.items()})
    (folder / "ward_models.py").write_text(CODE)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "ward_models", raising=False)
    return folder


def test_a_campaign_trains_a_model_that_a_package_offers(installed: Path, tmp_path: Path) -> None:
    federation = Federation.make(tmp_path / "f", [0.2, 0.4], noise=no_noise)
    federation.run(published(model="ward"))
    stored = torch.load(tmp_path / "f" / "server" / "model.pt", weights_only=True)
    assert [tuple(value.shape) for value in stored.values()] == [(10, 64), (10,)]
    metrics = ServerStore(tmp_path / "f" / "server").run.read_metrics()
    assert metrics[-1]["loss"] < metrics[0]["loss"]


def test_the_same_name_and_seed_give_the_same_weights(installed: Path) -> None:
    torch.manual_seed(1)
    first = build_model("ward", 3).state_dict()
    again, other = build_model("ward", 3).state_dict(), build_model("ward", 4).state_dict()
    for name, value in first.items():
        np.testing.assert_array_equal(value, again[name])
        assert not torch.equal(value, other[name])


def test_a_server_without_the_model_asks_nobody(tmp_path: Path) -> None:
    federation = Federation.make(tmp_path, [0.2, 0.4])
    with pytest.raises(InputError, match=r"model 'ward' is not installed here; jsam has mnist"):
        federation.run(published(model="ward"))
    assert federation.grid.log == []


def test_a_client_without_the_model_reports_and_spends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    federation = Federation.make(tmp_path, [0.2, 0.4])
    monkeypatch.setattr(server_model, "check_model", lambda name: None)
    with pytest.raises(NobodyLeftError, match="no client reported"):
        federation.run(published(model="ward"))
    assert "unreadable-rules: the published rules cannot be read here: model" in caplog.text
    assert federation.ledger(0).campaigns() == ()


@pytest.mark.parametrize("model", ["mnist", "mixing"])
def test_a_model_that_cannot_be_trained_on_the_own_records_is_declined_before_anything_is_spent(
    model: str, installed: Path, tmp_path: Path
) -> None:
    """MNIST's model does not take digits of 8 × 8, and batch normalisation leaves no gradient of one record."""
    federation = Federation.make(tmp_path / "f", [0.2, 0.4])
    with pytest.raises(NobodyLeftError, match="cannot be trained on this client's kind of records"):
        federation.run(published(model=model), dataset="")
    assert federation.ledger(0).statement() == ()


def test_labels_beyond_the_model_show_in_the_clients_own_log_and_nowhere_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The campaign goes on: a client that refuses or fails would tell the server of single records."""
    federation = Federation.make(tmp_path, [0.2, 0.4])
    data = federation.files[0].parent / "data.npz"
    with np.load(data) as stored:
        inputs, targets = stored["inputs"], stored["targets"].copy()
    targets[:3] = 42
    np.savez(data, inputs=inputs, targets=targets)
    federation.run(published())
    assert f"3 of {len(targets)} records have labels that model digits has no class for" in caplog.text
    assert federation.statement(0).releases > 0


def test_a_name_cannot_reach_anything_but_what_is_offered(installed: Path) -> None:
    """Neither a module that is there, nor an entry point of another group."""
    for name in ("ward_models:small", "os:abort", "flower-superlink", ""):
        with pytest.raises(InputError, match="is not installed here"):
            check_model(name)


def test_odd_offers_are_refused_in_one_line(installed: Path) -> None:
    with pytest.raises(InputError, match=r"ward_models:nothing returns int; it must be an nn\.Module"):
        build_model("seven", 0)
    _install(installed, "rivals", {"ward": "rival:small"})
    with pytest.raises(InputError, match="offered by several packages: rival:small, ward_models:small"):
        check_model("ward")
