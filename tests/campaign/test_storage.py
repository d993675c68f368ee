"""What a storage must promise, asked of both that there are: folders, and tables that share no code with them.

`jsam.campaign` knows storages by protocols alone; here it runs on the second one from the first question to the books.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jsam.campaign.campaign_rules import CampaignRules
from jsam.campaign.client.answering import Client
from jsam.campaign.client.client_files import CLIENT_FILE, ClientFiles
from jsam.campaign.client.client_folder import ClientFolder
from jsam.campaign.client.client_ledger import ClientLedger
from jsam.campaign.client.client_storage import ClientStorage
from jsam.campaign.client.policy import Policy
from jsam.campaign.messages import Kind, Vector
from jsam.campaign.refusal import Reason
from jsam.campaign.server.server_campaign import run_campaign
from jsam.campaign.server.server_options import ServerOptions
from jsam.campaign.server.server_store import ServerStore
from jsam.campaign.server.storage import ModelState, Report, ServerStorage
from jsam.campaign.statement import Statement
from jsam.errors import InputError
from jsam.privacy import Release
from tests.campaign.books import MODEL, OTHER_MODEL, ask, noisy, refused
from tests.campaign.loopback import MODEL as LINE
from tests.campaign.loopback import HandToHand, Line, linear_clients
from tests.campaign.offers import offer
from tests.campaign.tables import ClientTables, ServerTables, TableFiles

OpenClient = Callable[[], ClientStorage]
OpenServer = Callable[[], ServerStorage]


@pytest.fixture(params=["folder", "tables"])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> OpenClient:
    """Opens a client's books, each time as another process would."""
    if request.param == "folder":
        return lambda: ClientFolder(tmp_path / "books")
    return lambda: ClientTables(tmp_path / "books.sqlite")


@pytest.fixture(params=["folder", "tables"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> OpenServer:
    """Opens a server's records, each time as another process would."""
    if request.param == "folder":
        return lambda: ServerStore(tmp_path / "server")
    return lambda: ServerTables(tmp_path / "server.sqlite")


def rules(**changes: Any) -> CampaignRules:
    settings = {"loss_weight": 50.0, "max_epsilon": 10.0, "rounds": 6, "per_round": 6, "learning_rate": 0.1}
    named = {"campaign": "by hand", "model": LINE, "delta": 1e-4, "clip_norm": 4.0}
    return CampaignRules.from_dict({**named, **settings, **changes})


def vector(*numbers: float) -> Vector:
    return np.array(numbers, dtype=np.float32)


@dataclass(frozen=True)
class Outcome:
    """All that a campaign leaves on both sides, as numbers and texts."""

    books: dict[str, Any]
    model: bytes
    metrics: list[dict[str, Any]]
    statements: list[tuple[Statement, ...]]


def on_folders(folder: Path) -> Outcome:
    transport, line = _clients(folder, ClientFiles)
    store = ServerStore(folder / "server")
    books = _run(transport, store, line)
    return Outcome(books, store.run.model.read_bytes(), store.read_metrics(), _statements(transport))


def _clients(folder: Path, kind: type[ClientFiles]) -> tuple[HandToHand, Line]:
    """Clients whose noise is known, so that two campaigns can be compared to the last bit."""
    transport, line = linear_clients(folder / "clients", [0.2, 0.4, 0.6])
    for node, made in transport.clients.items():
        file = made.load().data.parent / CLIENT_FILE
        transport.clients[node] = Client(
            load=lambda file=file: kind.load(file),  # type: ignore[misc]
            training=Line(),
            noise=lambda std, size: np.full(size, std / 10),
        )
    return transport, line


def _run(transport: HandToHand, store: ServerStorage, line: Line) -> dict[str, Any]:
    return run_campaign(transport, store, rules(), ServerOptions(clients=3, store="not used"), line)


def _statements(transport: HandToHand) -> list[tuple[Statement, ...]]:
    return [client.load().books().statement() for client in transport.clients.values()]


def test_a_campaign_is_the_same_to_the_last_bit_on_tables(tmp_path: Path) -> None:
    transport, line = _clients(tmp_path / "tables", TableFiles)
    store = ServerTables(tmp_path / "server.sqlite")
    books = _run(transport, store, line)
    assert books["kept"]
    outcome = Outcome(books, store.model, store.read_metrics(), _statements(transport))
    assert outcome == on_folders(tmp_path / "folders")
    assert all(statement.participations > 0 for (statement,) in outcome.statements)
    # Neither side had a folder, which something could have kept beside the protocol.
    assert sorted(path.name for path in (tmp_path / "tables").rglob("ledger")) == []
    assert not Path("not used").exists()


@dataclass
class DyingModel(Line):
    """Its server dies in the evaluation of one round: its replies and its model are stored, its record is not."""

    dies_at: int = 4
    evaluations: int = 0

    def evaluate(self, parameters: Vector) -> dict[str, Any]:
        self.evaluations += 1
        if self.evaluations == self.dies_at:
            raise KeyboardInterrupt
        return super().evaluate(parameters)


def test_a_server_on_tables_goes_on_after_it_died(tmp_path: Path) -> None:
    transport, line = _clients(tmp_path / "tables", TableFiles)
    path = tmp_path / "server.sqlite"
    with pytest.raises(KeyboardInterrupt):
        _run(transport, ServerTables(path), DyingModel(line.inputs, line.targets))
    transport.asked.clear()
    books = _run(transport, ServerTables(path), line)
    assert set(transport.kinds()) == {Kind.HELLO, Kind.ROUND}
    store = ServerTables(path)
    outcome = Outcome(books, store.model, store.read_metrics(), _statements(transport))
    assert outcome == on_folders(tmp_path / "folders")


def test_a_round_is_computed_once_and_repeated_by_every_later_process(client: OpenClient) -> None:
    ClientLedger(client()).accept(offer())
    reply = ClientLedger(client()).answer(ask(offer(), 0), noisy, model=MODEL)
    assert ClientLedger(client()).answer(ask(offer(), 0), noisy, model=MODEL) == reply
    assert ClientLedger(client()).answer(ask(offer(), 1), noisy, model=MODEL) != reply
    ClientLedger(client()).check()
    (entry,) = ClientLedger(client()).statement()
    assert (entry.releases, entry.participations, entry.payment) == (2, 2, offer().payment_for(2))
    assert refused(lambda: ClientLedger(client()).answer(ask(offer(), 0, 2), noisy, model=MODEL)) is (
        Reason.REPEAT_DIFFERS
    )


def test_a_release_is_recorded_and_bound_to_its_model_before_it_is_computed(client: OpenClient) -> None:
    ClientLedger(client()).accept(offer())

    def die(release: Release) -> bytes:
        (entry,) = ClientLedger(client()).statement()  # as another process sees it at this moment
        assert (entry.releases, entry.payment) == (1, 0.0)
        assert refused(lambda: ClientLedger(client(), wait=0.0).accept(offer())) is Reason.BUSY
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ClientLedger(client()).answer(ask(offer(), 0), die, model=MODEL)
    later = ClientLedger(client())
    assert refused(lambda: later.answer(ask(offer(), 0), noisy, model=OTHER_MODEL)) is Reason.OTHER_MODEL
    assert later.answer(ask(offer(), 0), noisy, model=MODEL)
    assert later.statement()[0].releases == 1


def test_offers_are_judged_twice_and_what_was_said_stays(client: OpenClient) -> None:
    """Also of a campaign of which nothing is known but offers that were declined; it has no name to show."""
    strict, offers = Policy(max_epsilon=0.1), [offer(payment=payment) for payment in (0.8, 0.9, 1.0)]
    reasons = [refused(lambda terms=terms: ClientLedger(client(), strict).accept(terms)) for terms in offers]  # type: ignore[misc]
    assert reasons == [Reason.DECLINED, Reason.DECLINED, Reason.TOO_MANY_OFFERS]
    generous = ClientLedger(client(), Policy(max_campaigns=1))
    assert refused(lambda: generous.accept(offers[0])) is Reason.DECLINED
    assert generous.campaigns() == ()
    assert refused(lambda: generous.hear(rules(campaign="another").to_json())) is Reason.TOO_MANY_CAMPAIGNS


def test_the_first_word_of_a_campaign_stands(client: OpenClient) -> None:
    ledger = ClientLedger(client())
    ledger.hear(rules().to_json())
    ClientLedger(client()).hear(rules().to_json())
    changed = rules(loss_weight=60.0).to_json()
    assert refused(lambda: ClientLedger(client()).hear(changed)) is Reason.RULES_CHANGED
    unwilling = Policy(max_delta=1e-6)
    other = rules(campaign="other").to_json()
    assert refused(lambda: ClientLedger(client(), unwilling).hear(other)) is Reason.RULES_UNACCEPTABLE
    assert refused(lambda: ClientLedger(client()).hear(other)) is Reason.RULES_UNACCEPTABLE
    assert sorted(ledger.campaigns()) == ["by hand", "other"]


def test_replies_that_were_dropped_are_never_given_again(client: OpenClient) -> None:
    ClientLedger(client()).accept(offer())
    ledger = ClientLedger(client(), Policy(max_stored_bytes=50))
    for round in range(3):
        ledger.answer(ask(offer(), round), lambda _: b"x" * 30, model=MODEL)
    assert refused(lambda: ledger.answer(ask(offer(), 0), noisy, model=MODEL)) is Reason.REPLY_LOST
    assert ledger.answer(ask(offer(), 2), noisy, model=MODEL) == b"x" * 30
    assert ledger.statement()[0].payment == offer().payment_for(3)
    full = ClientLedger(client(), Policy(max_stored_bytes=20))
    assert refused(lambda: full.answer(ask(offer(), 3), noisy, model=MODEL)) is Reason.NO_SPACE
    assert full.statement()[0].releases == 3


def test_a_campaign_that_is_closed_stays_closed_and_counts_what_it_spent(client: OpenClient) -> None:
    ClientLedger(client()).accept(offer())
    ClientLedger(client()).answer(ask(offer(), 0), noisy, model=MODEL)
    before = ClientLedger(client()).committed()
    ClientLedger(client()).close("spring")
    for round in (0, 1):
        request = ask(offer(), round)
        assert refused(lambda request=request: ClientLedger(client()).answer(request, noisy, model=MODEL)) is (  # type: ignore[misc]
            Reason.CAMPAIGN_CLOSED
        )
    ledger = ClientLedger(client())
    assert ledger.statement()[0].closed
    assert ledger.committed() == ledger.spent() != before


def test_campaigns_add_up(client: OpenClient) -> None:
    for name in ("spring", "autumn"):
        ClientLedger(client()).accept(offer(campaign=name))
        ClientLedger(client()).answer(ask(offer(campaign=name), 0), noisy, model=MODEL)
    assert sorted(entry.campaign for entry in ClientLedger(client()).statement()) == ["autumn", "spring"]
    strict = ClientLedger(client(), Policy(total_epsilon=2.0))
    assert refused(lambda: strict.accept(offer(campaign="winter"))) is Reason.DECLINED


def test_a_pause_holds_for_every_process_until_it_ends(client: OpenClient) -> None:
    assert not ClientLedger(client()).paused
    ClientLedger(client()).pause()
    ClientLedger(client()).pause()
    assert ClientLedger(client()).paused
    ClientLedger(client()).pause(False)
    assert not ClientLedger(client()).paused


def test_tables_that_cannot_be_read_release_nothing(tmp_path: Path) -> None:
    path = tmp_path / "books.sqlite"
    ClientLedger(ClientTables(path)).accept(offer())
    path.write_bytes(b"something else" * 100)
    ledger = ClientLedger(ClientTables(path))
    assert refused(lambda: ledger.answer(ask(offer(), 0), noisy, model=MODEL)) is Reason.LEDGER_FAILED
    assert refused(ledger.statement) is Reason.LEDGER_FAILED


def test_the_servers_ledger_has_each_release_once(server: OpenServer) -> None:
    first, second = offer().release(0, 1), offer().release(1, 2)
    server().begin(rules())
    with server().writing() as ledger:
        assert ledger.append([first]) == 1
        assert ledger.append([first, second]) == 1
    with server().writing() as ledger:
        with pytest.raises(InputError):
            ledger.append([dataclasses.replace(first, multiplicity=2)])
        with pytest.raises(InputError):
            ledger.append([offer().release(2, 1), dataclasses.replace(second, multiplicity=1)])
        assert tuple(ledger) == (first, second)


def test_what_a_server_saved_is_there_for_the_next(server: OpenServer) -> None:
    server().begin(rules())
    server().begin(rules())
    with pytest.raises(InputError):
        server().begin(rules(loss_weight=60.0))
    assert (server().reports(rules()), server().state(), server().agreement(rules())) == (None, None, None)
    assert (server().nodes(), server().rejected(), server().read_metrics()) == ({}, {}, [])
    reports, rejected = {"a": Report(sensitivity=0.1 + 0.2, samples=7)}, {"node 4": "name-taken"}
    server().save_nodes({"a": 2**63 - 1})
    server().save_reports(reports, rejected)
    assert (server().reports(rules()), server().rejected()) == (reports, rejected)
    assert server().nodes() == {"a": 2**63 - 1}


def test_a_model_is_stored_as_it_was_at_that_moment(server: OpenServer) -> None:
    server().begin(rules())
    state = ModelState(rounds_done=1, parameters=vector(0.1, 1e-30), velocity=None, answered={"a": 2})
    server().save_state(state)
    state.parameters[0], state.answered["a"], state.rounds_done = 9.0, 5, 2
    stored = server().state()
    assert stored is not None
    assert (stored.rounds_done, stored.velocity, stored.answered, stored.metrics_size) == (1, None, {"a": 2}, 0)
    assert stored.parameters.tobytes() == vector(0.1, 1e-30).tobytes()


def test_replies_are_kept_by_round_until_they_are_dropped(server: OpenServer) -> None:
    server().begin(rules())
    server().keep_reply(3, "a/../b", vector(1, 2))
    server().keep_reply(3, "c", vector(3, 4))
    replies = server().replies(3)
    assert {name: release.tolist() for name, release in replies.items()} == {"a/../b": [1, 2], "c": [3, 4]}
    assert server().replies(4) == {}
    server().drop_replies()
    assert server().replies(3) == {}


def test_records_of_rounds_are_cut_back_to_what_was_synced(server: OpenServer) -> None:
    server().begin(rules())
    with server().metrics(0) as metrics:
        metrics.add({"round": 0})
        size = metrics.sync()
        metrics.add({"round": 1})
    with server().metrics(size) as metrics:
        metrics.add({"round": 1, "loss": 0.5})
        metrics.sync()
    assert server().read_metrics() == [{"round": 0}, {"round": 1, "loss": 0.5}]
