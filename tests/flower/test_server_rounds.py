"""What the server does when messages, replies, clients or itself go missing: nothing is ever released twice."""

from __future__ import annotations

import html
import json
from collections import Counter
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.conftest import require

if not TYPE_CHECKING:
    require("flwr", extra="flower")

from flwr.app import Message

from jsam.campaign.server import server_store
from jsam.campaign.server.agreement import withdraw
from jsam.campaign.server.asking import Office
from jsam.campaign.server.roster import Roster
from jsam.campaign.server.rounds import CampaignStoppedError
from jsam.campaign.server.server_store import ServerStore
from jsam.cli import main
from jsam.errors import JsamError
from jsam.privacy import Ledger
from jsam.training.federated.parameters import flattened, initial_model
from tests.flower.loopback import Federation, no_noise, published

THREE = [0.2, 0.4, 0.6]


def _parameters(folder: Path) -> np.ndarray[Any, Any]:
    state = ServerStore(folder / "server").state()
    assert state is not None
    return state.parameters


def _asks(federation: Federation) -> list[Message]:
    return [message for message in federation.grid.log if message.metadata.message_type == "train"]


def _ask_ids(federation: Federation) -> dict[tuple[int, int], set[str]]:
    """The ids under which each node was asked for each round."""
    found: dict[tuple[int, int], set[str]] = {}
    for message in _asks(federation):
        request = message.content.config_records["request"]
        key = (message.metadata.dst_node_id, int(str(request["round"])))
        found.setdefault(key, set()).add(str(request["ask_id"]))
    return found


def _nothing_overspent(federation: Federation) -> None:
    for k in range(len(federation.files)):
        assert not federation.statement(k).overspent
    assert json.loads((federation.folder / "server" / "books.json").read_text())["kept"]


@pytest.mark.parametrize("fate", ["lost", "reply lost", "error"])
def test_a_lost_message_is_asked_for_again_under_the_same_id_and_released_once(fate: str, tmp_path: Path) -> None:
    federation = Federation.make(tmp_path, THREE)
    hit: Counter[tuple[int, str]] = Counter()

    def fault(message: Message) -> str | None:
        """Every first message to every node in every round."""
        key = (message.metadata.dst_node_id, message.metadata.group_id)
        hit[key] += 1
        return fate if message.metadata.message_type == "train" and hit[key] == 1 else None

    federation.grid.fault = fault
    federation.run(published())
    assert all(len(ids) == 1 for ids in _ask_ids(federation).values())
    assert len(_asks(federation)) == 2 * len(_ask_ids(federation))
    for k in range(3):
        own = federation.statement(k)
        assert own.participations == own.participations_bought
    _nothing_overspent(federation)


def test_the_order_of_replies_does_not_matter(tmp_path: Path) -> None:
    """Replies are matched by message id: reversed or not, the same model."""
    models = []
    for shuffle in (False, True):
        federation = Federation.make(tmp_path / str(shuffle), THREE, noise=no_noise)
        federation.grid.shuffle = shuffle
        federation.run(published())
        models.append(_parameters(tmp_path / str(shuffle)))
    np.testing.assert_array_equal(models[0], models[1])


def test_a_client_that_drops_out_counts_as_spent_contributes_nothing_and_is_paid_for_the_epsilon_spent(
    tmp_path: Path,
) -> None:
    federation = Federation.make(tmp_path, THREE, noise=no_noise)
    gone = list(federation.grid.nodes)[2]
    federation.grid.fault = lambda m: "lost" if m.metadata.dst_node_id == gone and m.metadata.group_id == "2" else None
    books = federation.run(published(rounds=3, per_round=6), min_share=0.3)
    entry, own = books["clients"][2], federation.statement(2)
    assert entry["participations"] == entry["participations_bought"]
    assert 0 < entry["answered"] < entry["participations"]
    assert own.participations == entry["answered"]
    share = own.epsilon_spent / own.epsilon_bought
    assert entry["answered"] / entry["participations_bought"] < share < 1
    assert own.payment == entry["payment"] == pytest.approx(own.payment_agreed * share, rel=1e-5)
    assert own.payment >= own.payment_agreed * share
    assert entry["payment_at_most"] == entry["payment_agreed"] == own.payment_agreed
    records = ServerStore(tmp_path / "server").run.read_metrics()
    assert records[3]["missing"] == {"client-2": "no reply in time"}
    _nothing_overspent(federation)


def test_empty_slots_contribute_zero(tmp_path: Path) -> None:
    """Each client's part is its own, divided by all K slots whoever else answers: two parts add up to the whole."""
    start = flattened(initial_model("digits", 0))
    moved = {}
    for name, silent in (("all", []), ("some", [2]), ("rest", [0, 1])):
        federation = Federation.make(tmp_path / name, THREE, noise=no_noise)
        lost = {list(federation.grid.nodes)[k] for k in silent}
        federation.grid.fault = partial(_lost_in_training, lost)
        federation.run(published(rounds=1, per_round=6, learning_rate=1.0), min_share=0.0)
        moved[name] = _parameters(tmp_path / name) - start
    assert np.abs(moved["rest"]).max() > 1e-3
    np.testing.assert_allclose(moved["all"], moved["some"] + moved["rest"], atol=1e-6)


def _lost_in_training(nodes: set[int], message: Message) -> str | None:
    return "lost" if message.metadata.dst_node_id in nodes and message.metadata.message_type == "train" else None


def test_too_few_slots_stop_the_run_cleanly_and_it_can_be_resumed(tmp_path: Path) -> None:
    federation = Federation.make(tmp_path, THREE)
    federation.grid.fault = lambda m: "lost" if m.metadata.group_id == "1" else None
    with pytest.raises(CampaignStoppedError, match="round 2 of 3: 0 of 4 slots answered, below min-share"):
        federation.run(published())
    assert json.loads((tmp_path / "server" / "outcome.json").read_text())["status"] == "stopped"
    federation.grid.fault = lambda m: None
    federation.run(published())
    assert json.loads((tmp_path / "server" / "outcome.json").read_text())["status"] == "complete"
    assert all(len(ids) == 1 for ids in _ask_ids(federation).values())
    _nothing_overspent(federation)


def test_a_node_that_comes_back_under_another_id_is_asked_the_same(tmp_path: Path) -> None:
    """Without keys a restarted SuperNode is a new node; its client's ledger is the old one."""
    federation = Federation.make(tmp_path, THREE)
    old = next(iter(federation.grid.nodes))

    def fault(message: Message) -> str | None:
        if message.metadata.dst_node_id == old and message.metadata.group_id == "0":
            federation.grid.nodes[99] = federation.grid.nodes[old]
            return "reply lost"
        return "lost" if message.metadata.dst_node_id == old and 99 in federation.grid.nodes else None

    federation.grid.fault = fault
    federation.run(published(), rebind=True)
    ids = _ask_ids(federation)
    assert ids[(old, 0)] == ids[(99, 0)]
    own = federation.statement(0)
    assert own.participations == own.participations_bought
    _nothing_overspent(federation)


class _KilledError(BaseException):
    """Ends the server at once, as a kill would: no handler of ours catches it."""


@pytest.mark.parametrize("step", range(1, 30, 2))
def test_a_server_killed_at_any_write_goes_on_where_it_was(
    step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before its n-th write to disk and started again: the model of an uninterrupted run, every ask id once."""
    federation = Federation.make(tmp_path / "killed", THREE, noise=no_noise)
    whole = Federation.make(tmp_path / "whole", THREE, noise=no_noise)
    writes = Counter[str]()

    def counted(original: Any) -> Any:
        def write(*arguments: Any, **named: Any) -> Any:
            writes["n"] += 1
            if writes["n"] == step:
                raise _KilledError
            return original(*arguments, **named)

        return write

    with monkeypatch.context() as patch:
        for name in ("write_json", "write_atomically"):
            patch.setattr(server_store, name, counted(getattr(server_store, name)))
        patch.setattr(ServerStore, "telling_the_end", _untold)
        patch.setattr(Ledger, "append", counted(Ledger.append))
        with pytest.raises(_KilledError):
            federation.run(published())
    federation.run(published())
    whole.run(published())
    np.testing.assert_array_equal(_parameters(tmp_path / "killed"), _parameters(tmp_path / "whole"))
    ledgers = [(tmp_path / name / "server" / "ledger.jsonl").read_bytes() for name in ("killed", "whole")]
    assert ledgers[0] == ledgers[1]
    assert all(len(ids) == 1 for ids in _ask_ids(federation).values())
    _nothing_overspent(federation)


def _untold(self: ServerStore) -> Any:
    return nullcontext()


def test_a_withdrawn_client_is_free_again(tmp_path: Path) -> None:
    federation = Federation.make(tmp_path, THREE)
    rules = published()
    federation.grid.fault = lambda m: "lost" if m.metadata.message_type == "train" else None
    with pytest.raises(CampaignStoppedError):
        federation.run(rules)
    assert federation.ledger(0).committed().sum_epsilon > 0
    transport = federation.grid.transport()
    roster = Roster(transport, rebind=False)
    for _ in range(3):
        roster.refresh()
    office = Office(transport=transport, roster=roster, rules=rules, options=federation.options())
    withdraw(office, ["client-0"])
    assert federation.statement(0).closed
    assert federation.ledger(0).committed().sum_epsilon == 0


def test_a_second_server_leaves_the_first_ones_store_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one server writes, another one on the same store fails and does not even say that a run has ended."""
    federation = Federation.make(tmp_path, THREE)
    federation.run(published())
    store = ServerStore(tmp_path / "server")
    before = store.outcome.read_bytes()
    writing = ServerStore.writing
    monkeypatch.setattr(ServerStore, "writing", lambda self: writing(self, wait=0.3))
    with store.writing(), pytest.raises(JsamError, match="another process"):
        federation.run(published())
    assert store.outcome.read_bytes() == before


@pytest.mark.parametrize("dataset", ["digits", ""])
def test_the_servers_store_is_a_run_that_can_be_reported(
    dataset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`jsam report` checks its ledger and writes its page, also where the server has no test data."""
    federation = Federation.make(tmp_path, THREE)
    federation.run(published(), dataset=dataset)
    assert main(["report", str(tmp_path / "server")]) == 0
    assert "no contract was overspent" in capsys.readouterr().out
    page = (tmp_path / "server" / "report.html").read_text()
    assert "each client's own records" in html.unescape(page)
    assert "client-2" in page
