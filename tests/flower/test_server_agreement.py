"""Reports, offers, declines and the one re-plan, with real apps and a grid without a network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.conftest import require

if not TYPE_CHECKING:
    require("flwr", extra="flower")

from flwr.app import Message

from jsam.campaign.campaign_rules import CampaignRules
from jsam.campaign.identity import Certificates
from jsam.campaign.server.elicitation import MOST_QUESTIONS
from jsam.campaign.server.rounds import CampaignStoppedError
from jsam.campaign.server.server_store import ServerStore
from jsam.campaign.server.storage import NobodyLeftError
from jsam.errors import MissingDataError
from jsam.mechanism.contract_files import load_contract
from tests.flower.loopback import Federation, no_noise, published


def _books(folder: Path) -> dict[str, Any]:
    stored: dict[str, Any] = json.loads((folder / "server" / "books.json").read_text())
    return stored


def _node(federation: Federation, k: int) -> int:
    return list(federation.grid.nodes)[k]


def test_everybody_accepts_and_the_books_of_both_sides_agree(tmp_path: Path) -> None:
    federation = Federation.make(tmp_path, [0.2, 0.4, 0.6])
    books = federation.run(published())
    assert books["kept"]
    for k, entry in enumerate(books["clients"]):
        own = federation.statement(k)
        assert own.epsilon_bought == entry["epsilon_bought"] > 0
        assert own.epsilon_spent == entry["epsilon_spent"] <= own.epsilon_bought
        assert own.participations == entry["participations"] == entry["participations_bought"]
        assert own.payment == entry["payment"] == entry["payment_at_most"] == own.payment_agreed


def test_a_client_whose_virtual_cost_is_infinite_is_dropped_and_stored(tmp_path: Path) -> None:
    """At the top of this prior the density vanishes. JSON has no infinity; the campaign and its files go on."""
    federation = Federation.make(tmp_path, [0.2, 0.4, 1.0])
    books = federation.run(published(prior="beta:2,5"))
    contract = load_contract(tmp_path / "server" / "contract.json")
    assert np.isinf(contract.virtual_costs).tolist() == [False, False, True]
    assert books["kept"]
    assert books["clients"][2]["epsilon_bought"] == books["clients"][2]["payment"] == 0


def test_after_a_decline_all_others_get_the_plan_for_the_smaller_market(tmp_path: Path) -> None:
    """The same function at the new N: the contract is the one that the two alone would have got."""
    federation = Federation.make(tmp_path / "a", [0.2, 0.4, 0.6], policies={1: "max_epsilon = 0.01"})
    books = federation.run(published())
    contract = load_contract(tmp_path / "a" / "server" / "contract.json")
    assert contract.ids == ("client-0", "client-2")
    alone = published().contract(["client-0", "client-2"], [0.2, 0.6])
    np.testing.assert_array_equal(contract.epsilons, alone.epsilons)
    assert books["left"] == [{"id": "client-1", "declined": "declined: against the client's policy: epsilon-too-large"}]
    assert federation.ledger(1).statement() == ()
    offers = [m for m in federation.grid.log if m.metadata.message_type == "query.offer"]
    assert len(offers) == 3 + 2


def test_the_reason_of_a_decline_does_not_give_the_policy_away(tmp_path: Path) -> None:
    federation = Federation.make(tmp_path, [0.2, 0.4], policies={1: "max_epsilon = 0.0123"})
    federation.run(published())
    assert "0.0123" not in (tmp_path / "server" / "agreement.json").read_text()


def test_a_second_decline_leaves_that_clients_slots_empty(tmp_path: Path) -> None:
    """Client 1 accepts in the market of three and declines in that of two, where it would have to sell more."""
    probe = Federation.make(tmp_path / "probe", [0.2, 0.4, 0.6])
    probe.run(published())
    three = probe.statement(2).epsilon_bought
    two = published().contract(["client-1", "client-2"], [0.4, 0.6]).epsilons[1]
    assert two > three
    limits = {0: "max_epsilon = 0.01", 2: f"max_epsilon = {float(two + three) / 2!r}"}
    federation = Federation.make(tmp_path / "b", [0.2, 0.4, 0.6], policies=limits, noise=no_noise)
    books = federation.run(published(rounds=4))
    assert [entry["id"] for entry in books["clients"]] == ["client-1", "client-2"]
    assert "epsilon-too-large" in books["clients"][1]["declined"]
    assert books["clients"][1]["participations"] == 0
    asked = {m.metadata.dst_node_id for m in federation.grid.log if m.metadata.message_type == "train"}
    assert asked == {_node(federation, 1)}
    records = ServerStore(tmp_path / "b" / "server").run.read_metrics()[1:]
    assert any(record["answered"] < record["slots"] for record in records)


def test_silent_clients_are_not_in_the_market(tmp_path: Path) -> None:
    federation = Federation.make(tmp_path, [0.2, 0.4, 0.6])
    silent = _node(federation, 1)
    federation.grid.fault = lambda m: "lost" if m.metadata.dst_node_id == silent else None
    federation.run(published())
    assert load_contract(tmp_path / "server" / "contract.json").ids == ("client-0", "client-2")


def _questions(federation: Federation, node: int) -> list[Message]:
    kind = "query.elicit"
    return [m for m in federation.grid.log if m.metadata.dst_node_id == node and m.metadata.message_type == kind]


@pytest.mark.parametrize("fate", ["lost", "reply lost", "error"])
def test_a_question_without_an_answer_is_asked_again_in_the_same_words(fate: str, tmp_path: Path) -> None:
    """The first question to client 1 comes to nothing; it is in the market all the same, once."""
    federation = Federation.make(tmp_path, [0.2, 0.4, 0.6])
    hit = _node(federation, 1)
    federation.grid.fault = lambda m: fate if m in _questions(federation, hit)[:1] else None
    federation.run(published())
    assert load_contract(tmp_path / "server" / "contract.json").ids == ("client-0", "client-1", "client-2")
    asked = [message.content.config_records["published"] for message in _questions(federation, hit)]
    assert len(asked) == 2
    assert asked[0] == asked[1]
    assert len(_questions(federation, _node(federation, 0))) == 1


def test_a_client_that_cannot_report_yet_is_asked_again(tmp_path: Path) -> None:
    """Its data are not there at first: that is its own trouble, and it may pass."""
    federation = Federation.make(tmp_path, [0.2, 0.4])
    data = federation.files[1].with_name("data.npz")
    data.rename(data.with_name("away"))

    def fault(message: Message) -> str | None:
        if len(_questions(federation, _node(federation, 1))) == 2 and not data.exists():
            data.with_name("away").rename(data)
        return None

    federation.grid.fault = fault
    federation.run(published())
    assert load_contract(tmp_path / "server" / "contract.json").ids == ("client-0", "client-1")


@pytest.mark.parametrize("fate", ["lost", "error"])
def test_a_node_that_always_fails_is_asked_a_bounded_number_of_times_and_then_silent(fate: str, tmp_path: Path) -> None:
    federation = Federation.make(tmp_path, [0.2, 0.4])
    failing = _node(federation, 1)
    federation.grid.fault = lambda m: fate if m.metadata.dst_node_id == failing else None
    federation.run(published(), elicit_seconds=300.0)
    assert len(_questions(federation, failing)) == MOST_QUESTIONS
    assert load_contract(tmp_path / "server" / "contract.json").ids == ("client-0",)
    # One that said five times that it fails is waited for no longer; a message without a word may still be answered.
    assert (federation.grid.clock < 150) == (fate == "error")


def test_a_client_that_refuses_to_report_is_not_pressed(tmp_path: Path) -> None:
    """Other rules under the same name: it says no once, and is not in the market."""
    federation = Federation.make(tmp_path, [0.2, 0.4])
    federation.ledger(1).hear(published(loss_weight=70.0).to_json())
    federation.run(published())
    assert len(_questions(federation, _node(federation, 1))) == 1
    assert load_contract(tmp_path / "server" / "contract.json").ids == ("client-0",)


def test_silence_on_an_offer_is_a_decline(tmp_path: Path) -> None:
    federation = Federation.make(tmp_path, [0.2, 0.4, 0.6])
    silent = _node(federation, 1)

    def fault(message: Message) -> str | None:
        mute = message.metadata.dst_node_id == silent and message.metadata.message_type == "query.offer"
        return "lost" if mute else None

    federation.grid.fault = fault
    books = federation.run(published())
    assert books["left"] == [{"id": "client-1", "declined": "silent"}]


def test_a_report_that_the_prior_does_not_know_is_left_out(tmp_path: Path) -> None:
    federation = Federation.make(tmp_path, [0.2, 1.7, 0.6])
    federation.run(published())
    assert load_contract(tmp_path / "server" / "contract.json").ids == ("client-0", "client-2")


def test_nobody_left_is_said_in_one_line(tmp_path: Path) -> None:
    federation = Federation.make(tmp_path, [0.2], policies={0: "max_epsilon = 0.001"})
    with pytest.raises(NobodyLeftError, match="client-0"):
        federation.run(published())
    outcome = json.loads((tmp_path / "server" / "outcome.json").read_text())
    assert outcome["status"] == "stopped"


def test_after_a_kill_nobody_reports_twice(tmp_path: Path) -> None:
    """Reports are stored before they are used: a server that restarts cannot shop for better ones."""
    federation = Federation.make(tmp_path, [0.2, 0.4])
    federation.grid.fault = lambda m: "lost" if m.metadata.message_type == "query.offer" else None
    with pytest.raises(NobodyLeftError):
        federation.run(published())
    federation.grid.fault = lambda m: None
    federation.run(published())
    asked = [m for m in federation.grid.log if m.metadata.message_type == "query.elicit"]
    assert len(asked) == 2


def test_what_was_published_cannot_change_in_a_store(tmp_path: Path) -> None:
    federation = Federation.make(tmp_path, [0.2, 0.4])
    federation.run(published())
    with pytest.raises(Exception, match="cannot change"):
        federation.run(published(loss_weight=70.0))


def test_a_second_node_cannot_take_a_name(tmp_path: Path) -> None:
    """With keys a name stays with its node; without (`rebind`) the latest node bears it."""
    federation = Federation.make(tmp_path, [0.2, 0.4])
    federation.grid.nodes[7] = federation.grid.nodes[_node(federation, 0)]
    federation.run(published(), clients=3)
    trained = {m.metadata.dst_node_id for m in federation.grid.log if m.metadata.message_type == "train"}
    assert len(trained) == 2


def test_with_keys_a_node_must_have_proved_the_key_of_its_name(tmp_path: Path) -> None:
    """Client 1 has a key of its own and calls itself client 0: it is nobody, and client 0 is not disturbed."""
    federation = Federation.make(tmp_path, [0.2, 0.4])
    first, second = federation.grid.nodes
    made = Certificates.make(tmp_path / "keys", ["client-0", "client-1"])
    proved = {first: made.public_key("client-0"), second: made.public_key("client-1")}
    federation.grid.keys = {node: path.read_bytes() for node, path in proved.items()}
    keys = made.folder
    books = federation.run(published(campaign="honest"), keys=str(keys), store=str(tmp_path / "honest"))
    assert len(books["clients"]) == 2
    federation.grid.nodes = {second: federation.grid.nodes[first], first: federation.grid.nodes[first]}
    books = federation.run(published(campaign="liar"), keys=str(keys), store=str(tmp_path / "liar"))
    assert [entry["id"] for entry in books["clients"]] == ["client-0"]
    asked = {m.metadata.dst_node_id for m in federation.grid.log if m.metadata.message_type == "train"}
    assert json.loads((tmp_path / "liar" / "nodes.json").read_text()) == {"client-0": first}
    assert asked == {first, second}


def test_a_name_stays_with_its_node_when_the_server_restarts(tmp_path: Path) -> None:
    federation = Federation.make(tmp_path, [0.2, 0.4])
    federation.grid.fault = lambda m: "lost" if m.metadata.group_id == "1" else None
    with pytest.raises(CampaignStoppedError):
        federation.run(published())
    federation.grid.fault = lambda m: None
    impostor = {5: federation.grid.nodes[_node(federation, 0)]}
    federation.grid.nodes = {**impostor, **federation.grid.nodes}
    federation.run(published())
    assert 5 not in {m.metadata.dst_node_id for m in federation.grid.log if m.metadata.message_type == "train"}


class _KilledError(Exception):
    """Stands for a kill: nothing of the server runs after it."""


def _killed_at(federation: Federation, kind: str, nodes: set[int]) -> None:
    """The server dies as it sends such a message to one of these nodes, once."""

    def fault(message: Message) -> str | None:
        if message.metadata.message_type == kind and message.metadata.dst_node_id in nodes:
            federation.grid.fault = lambda m: None
            raise _KilledError
        return None

    federation.grid.fault = fault


def test_a_server_killed_between_its_offers_and_the_agreement_says_the_same_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Client 0 declines the first offer and client 1 the second. To begin anew would mean a third plan, without both,
    which clients 2 and 3 would refuse as one too many."""
    everybody = ["client-0", "client-1", "client-2", "client-3"]
    four = published().contract(everybody, [0.2, 0.3, 0.4, 0.6]).epsilons[1]
    three = published().contract(everybody[1:], [0.3, 0.4, 0.6]).epsilons[0]
    assert three > four
    limits = {0: "max_epsilon = 0.01", 1: f"max_epsilon = {float(three + four) / 2!r}"}
    federation = Federation.make(tmp_path, [0.2, 0.3, 0.4, 0.6], policies=limits)
    _killed_at(federation, "query.close", {_node(federation, 0), _node(federation, 1)})
    with pytest.raises(_KilledError):
        federation.run(published())
    assert not (tmp_path / "server" / "agreement.json").exists()
    monkeypatch.delattr(CampaignRules, "contract")  # a plan is made once
    books = federation.run(published())
    assert {entry["id"]: entry["declined"] is None for entry in books["clients"]} == {
        "client-1": False,
        "client-2": True,
        "client-3": True,
    }
    assert [entry["id"] for entry in books["left"]] == ["client-0"]
    assert books["kept"]


@pytest.mark.parametrize("hit", range(3))
def test_a_server_killed_in_the_middle_of_an_offer_offers_the_same_to_all(hit: int, tmp_path: Path) -> None:
    federation = Federation.make(tmp_path, [0.2, 0.4, 0.6])
    _killed_at(federation, "query.offer", {_node(federation, hit)})
    with pytest.raises(_KilledError):
        federation.run(published())
    books = federation.run(published())
    assert [entry["declined"] for entry in books["clients"]] == [None] * 3
    offers = [m for m in federation.grid.log if m.metadata.message_type == "query.offer"]
    said: dict[int, set[str]] = {}
    for message in offers:
        said.setdefault(message.metadata.dst_node_id, set()).add(str(message.content.config_records["offer"]["terms"]))
    assert {len(words) for words in said.values()} == {1}


def test_without_its_own_test_data_the_server_asks_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JSAM_DATA_DIR", str(tmp_path / "nothing"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    federation = Federation.make(tmp_path, [0.2, 0.4])
    with pytest.raises(MissingDataError, match="jsam data fetch mnist"):
        federation.run(published(), dataset="mnist")
    assert federation.grid.log == []
    assert "jsam data fetch mnist" in (tmp_path / "server" / "outcome.json").read_text()
