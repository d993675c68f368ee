"""A campaign needs no Flower and no torch: another transport and another kind of model carry it to its end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from jsam.campaign.campaign_rules import CampaignRules
from jsam.campaign.messages import Kind
from jsam.campaign.server.server_campaign import run_campaign
from jsam.campaign.server.server_options import ServerOptions
from jsam.campaign.server.server_store import ServerStore
from jsam.runs.settlement import settle
from tests.campaign.loopback import MODEL, linear_clients


def _rules() -> CampaignRules:
    settings = {"loss_weight": 50.0, "max_epsilon": 10.0, "rounds": 12, "per_round": 6, "learning_rate": 0.1}
    return CampaignRules.from_dict({"campaign": "by hand", "model": MODEL, "delta": 1e-4, "clip_norm": 4.0, **settings})


def test_a_whole_campaign_goes_from_hand_to_hand(tmp_path: Path) -> None:
    """From the first question to books that agree on both sides, and a model that has learned something."""
    transport, model = linear_clients(tmp_path / "clients", [0.2, 0.4, 0.6])
    options = ServerOptions(clients=3, store=str(tmp_path / "server"))
    store = ServerStore(options.store)
    books = run_campaign(transport, store, _rules(), options, model)
    assert books["kept"]
    for entry, client in zip(books["clients"], transport.clients.values(), strict=True):
        (own,) = client.load().books().statement()
        assert own.epsilon_spent == entry["epsilon_spent"] <= own.epsilon_bought
        assert own.participations == own.participations_bought == entry["answered"]
        assert own.payment == entry["payment"] == own.payment_agreed
    metrics = store.read_metrics()
    assert metrics[-1]["loss"] < 0.5 * metrics[0]["loss"]
    assert settle(store.path, second_opinion=False).kept
    assert set(transport.kinds()) == {Kind.ELICIT, Kind.OFFER, Kind.ROUND}


def test_the_same_store_again_asks_nobody_anything(tmp_path: Path) -> None:
    transport, model = linear_clients(tmp_path / "clients", [0.2, 0.4])
    options = ServerOptions(clients=2, store=str(tmp_path / "server"))
    store = ServerStore(options.store)
    books = run_campaign(transport, store, _rules(), options, model)
    transport.asked.clear()
    assert run_campaign(transport, store, _rules(), options, model) == books
    assert set(transport.kinds()) <= {Kind.HELLO}


def test_neither_side_loads_torch_or_flower() -> None:
    modules = "client.answering", "server.server_campaign", "server.server_store"
    imports = "; ".join(f"import jsam.campaign.{module}" for module in modules)
    code = f"import sys; {imports}; found = {{'torch', 'flwr'}} & set(sys.modules); assert not found, found"
    subprocess.run([sys.executable, "-c", code], check=True)
