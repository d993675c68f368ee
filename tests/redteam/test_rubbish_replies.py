"""One client's rubbish costs that client's slot and nothing else: the campaign of the others goes on to its end."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.conftest import require

if not TYPE_CHECKING:
    require("flwr", extra="flower")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message
from flwr.clientapp import ClientApp

from jsam.campaign.checked import is_name
from jsam.campaign.client.client_files import write_client
from jsam.campaign.server.answers import Flaw, UnusableError, check_release
from jsam.campaign.server.rounds import CampaignStoppedError
from jsam.campaign.server.server_store import ServerStore
from jsam.campaign.terms import Terms
from jsam.errors import InputError
from jsam.mechanism.contract_files import load_contract
from jsam.privacy import Adjacency, Release
from jsam.runs.run_folder import write_json
from tests.flower.loopback import Federation, LoopbackGrid, published
from tests.redteam.evil import Made, evil_client

EVIL = 2**63 + 10**6  # after the honest nodes


def _saved(array: np.ndarray[Any, Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def _federation(folder: Path, *apps: ClientApp) -> Federation:
    """Three honest clients, and nodes from `EVIL` on."""
    federation = Federation.make(folder, [0.1, 0.3, 0.5])
    federation.grid.nodes.update({EVIL + k: (app, {}) for k, app in enumerate(apps)})
    return federation


def _run(federation: Federation, **changes: Any) -> dict[str, Any]:
    """A campaign of one round that everybody online is expected to take part in."""
    return federation.run(published(**{"rounds": 1, **changes}), clients=len(federation.grid.nodes))


def _ids(entries: list[dict[str, Any]]) -> list[str]:
    return [entry["id"] for entry in entries]


HONEST = ["client-0", "client-1", "client-2"]


def _raw(data: bytes, dtype: str = "float32", stype: str = "numpy.ndarray") -> Made:
    return lambda parameters: ArrayRecord({"gradient": Array(dtype, tuple(parameters.shape), stype, data)})


def _claiming(count: int) -> Made:
    """A header that says `count`, and sixteen bytes of numbers."""
    return _raw(_saved(np.zeros(4, dtype=np.float32)).replace(b"(4,), }", b"(%d,), }" % count))


def _of_size(shape: tuple[int, ...]) -> Made:
    def made(parameters: np.ndarray[Any, Any]) -> ArrayRecord:
        data = _saved(parameters).replace(f"({len(parameters)},)".encode(), str(shape).encode())
        return ArrayRecord({"gradient": Array("float32", tuple(parameters.shape), "numpy.ndarray", data)})

    return made


def _of_array(change: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]) -> Made:
    return lambda parameters: ArrayRecord({"gradient": Array(change(parameters))})


RELEASES: dict[str, tuple[Made, Flaw]] = {
    "no bytes": (_raw(b""), Flaw.WRONG_FORM),
    "a zip file": (_raw(b"PK\x03\x04" + b"0" * 50), Flaw.WRONG_FORM),
    "2^45 floats claimed": (_claiming(2**45), Flaw.WRONG_FORM),
    "a pickle": (_raw(b"\x80\x02N."), Flaw.WRONG_FORM),
    "a negative size": (_claiming(-1), Flaw.WRONG_FORM),
    "another shape in the bytes": (_of_size((1, 2)), Flaw.WRONG_FORM),
    "torch's form": (_raw(b"x", stype="torch.tensor"), Flaw.WRONG_FORM),
    "one number less": (_of_array(lambda p: p[:-1]), Flaw.WRONG_FORM),
    "float64": (_of_array(lambda p: p.astype(np.float64)), Flaw.WRONG_FORM),
    "a matrix": (_of_array(lambda p: p[None]), Flaw.WRONG_FORM),
    "bytes after the numbers": (lambda p: _raw(_saved(p) + b"!" * 2000)(p), Flaw.WRONG_FORM),
    "not a number": (_of_array(lambda p: p * np.float32(np.nan)), Flaw.NOT_FINITE),
    "infinite": (_of_array(lambda p: np.full_like(p, np.inf)), Flaw.NOT_FINITE),
    "3e38 everywhere": (_of_array(lambda p: np.full_like(p, 3e38)), Flaw.TOO_LARGE),
    "no array": (lambda _: ArrayRecord(), Flaw.NO_RELEASE),
    "another array": (lambda p: ArrayRecord({"other": Array(p)}), Flaw.NO_RELEASE),
}


def test_releases_that_are_none_leave_their_slots_empty_and_the_books_say_why(tmp_path: Path) -> None:
    """All of them in one campaign, with most of its draws and the usual min-share; the honest three are untouched."""
    evil = [evil_client(name=f"evil, {case}", release=made) for case, (made, _) in RELEASES.items()]
    federation = _federation(tmp_path, *evil)
    books = _run(federation, mechanism="usbm", rounds=2, per_round=60)
    entries = {entry["id"]: entry for entry in books["clients"]}
    for case, (_, flaw) in RELEASES.items():
        entry = entries[f"evil, {case}"]
        assert entry["participations"] > 0
        assert set(entry["rounds_missed"]) == {str(flaw)}
        assert entry["answered"] == entry["payment"] == 0
    for k in range(3):
        own = federation.statement(k)
        assert own.participations == own.participations_bought == entries[f"client-{k}"]["answered"]
        assert entries[f"client-{k}"]["rounds_missed"] == {}
    assert np.isfinite(_parameters(federation)).all()


def test_a_client_with_nearly_all_draws_cannot_stop_the_campaign_by_rubbish(tmp_path: Path) -> None:
    """`min-share` is about those who may still answer: to wait for this one would be to wait for good."""
    federation = _federation(tmp_path, evil_client(report={"sensitivity": 1e-4}, release=_raw(b"")))
    books = _run(federation, rounds=4, loss_weight=0.5)
    evil = next(entry for entry in books["clients"] if entry["id"] == "evil")
    assert evil["participations"] > 8
    assert json.loads((tmp_path / "server" / "outcome.json").read_text())["status"] == "complete"


def test_where_everybody_sends_rubbish_the_run_stops(tmp_path: Path) -> None:
    """That is no single client's doing: a wrong setting, say."""
    federation = _federation(tmp_path, evil_client(release=_raw(b"")))
    federation.grid.nodes = {EVIL: federation.grid.nodes[EVIL]}
    with pytest.raises(CampaignStoppedError, match="release-malformed"):
        _run(federation)


def _parameters(federation: Federation) -> np.ndarray[Any, Any]:
    state = ServerStore(federation.folder / "server").state()
    assert state is not None
    return state.parameters


NAMES: dict[str, Any] = {
    "300 characters": "x" * 300,
    "a newline": "a\nb",
    "a control character": "a\x07b",
    "a folder": "../../etc/passwd",
    "a backslash": "a\\b",
    "here": ".",
    "above": "..",
    "empty": "",
    "a right-to-left mark": "a\u202eb",
    "too many bytes": "\U00010400" * 60,
    "a number": 7,
    "a list": ["a", "b"],
    "bytes": b"evil",
}


def test_clients_whose_names_cannot_be_used_are_not_in_the_market(tmp_path: Path) -> None:
    federation = _federation(tmp_path, *(evil_client(name=name) for name in NAMES.values()))
    books = _run(federation)
    assert _ids(books["clients"]) == HONEST
    assert {entry["id"] for entry in books["left"]} == {f"node {EVIL + k}" for k in range(len(NAMES))}
    assert {entry["declined"] for entry in books["left"]} == {str(Flaw.NO_NAME)}


def test_a_client_learns_from_its_own_file_that_its_name_cannot_be_used(tmp_path: Path) -> None:
    """The same rule on both sides, so that nobody finds out in the middle of a campaign."""
    inputs, targets = np.zeros((1, 1, 8, 8), dtype=np.float32), np.zeros(1, dtype=np.int64)
    federation = Federation.make(tmp_path, [0.2])
    federation.files[0].write_text(federation.files[0].read_text().replace('"client-0"', '"a/b"'))
    with pytest.raises(InputError, match="printable characters without /"):
        federation.ledger(0)
    file = write_client(tmp_path / "quoted", name='a"b', sensitivity=0.2, inputs=inputs, targets=targets)
    assert 'name = "a\\"b"' in file.read_text()
    assert is_name('a"b')


REPORTS: dict[str, dict[str, Any]] = {
    "not a number": {"sensitivity": math.nan},
    "infinite": {"sensitivity": math.inf},
    "negative": {"sensitivity": -0.2},
    "zero": {"sensitivity": 0.0},
    "a text": {"sensitivity": "0.2"},
    "a whole number": {"sensitivity": 1},
    "true": {"sensitivity": True},
    "a list": {"sensitivity": [0.1, 0.2]},
    "outside the support": {"sensitivity": 1.5},
    "too small to compute with": {"sensitivity": 5e-324},
    "too small for a plan without a cap": {"sensitivity": 1e-310},
    "none": {"sensitivity": None},
    "no records": {"samples": 0},
    "fewer than none": {"samples": -5},
    "too many": {"samples": 2**62},
    "half a record": {"samples": 1.5},
    "records as true": {"samples": True},
    "records as a text": {"samples": "100"},
    "samples missing": {"samples": None},
}


def test_reports_that_cannot_be_used_are_not_in_the_market(tmp_path: Path) -> None:
    federation = _federation(tmp_path, *(evil_client(name=case, report=report) for case, report in REPORTS.items()))
    books = _run(federation, max_epsilon=None, loss_weight=5.0)
    assert _ids(books["clients"]) == HONEST
    assert {entry["id"]: entry["declined"] for entry in books["left"]} == dict.fromkeys(REPORTS, str(Flaw.BAD_REPORT))


def test_a_report_that_the_mechanism_cannot_price_leaves_the_others_their_plan(tmp_path: Path) -> None:
    """Under beta:2,5 a report of 1 costs infinitely much; usbm draws everybody and can plan for no such market."""
    federation = _federation(tmp_path, evil_client(report={"sensitivity": 1.0}))
    books = _run(federation, prior="beta:2,5", mechanism="usbm")
    assert _ids(books["clients"]) == HONEST
    assert _ids(books["left"]) == ["evil"]
    assert books["left"][0]["declined"].startswith(Flaw.BAD_REPORT)
    alone = published(prior="beta:2,5", mechanism="usbm").contract([f"client-{k}" for k in range(3)], [0.1, 0.3, 0.5])
    np.testing.assert_array_equal(load_contract(tmp_path / "server" / "contract.json").epsilons, alone.epsilons)


OFFERS: list[dict[str, Any]] = [
    {"accepted": "0" * 64},
    {"accepted": [1, 2]},
    {"accepted": True},
    {},
    {"refused": "x" * 100_000, "text": "y"},
    {"refused": [1.5], "text": 3},
    {"refused": "declined", "text": "a\nb\x07" * 100_000},
]


def test_answers_to_an_offer_that_are_none_are_declines_in_a_few_words(tmp_path: Path) -> None:
    federation = _federation(tmp_path, *(evil_client(name=f"evil-{k}", offer=offer) for k, offer in enumerate(OFFERS)))
    books = _run(federation, mechanism="usbm")
    assert _ids(books["clients"]) == HONEST
    assert sorted(_ids(books["left"])) == [f"evil-{k}" for k in range(len(OFFERS))]
    for entry in books["left"]:
        assert len(entry["declined"]) < 300
        assert entry["declined"].isprintable()


TRAINED: list[dict[str, Any]] = [
    {}, {"ask_id": "another"}, {"ask_id": 7}, {"refused": ["busy"]}, {"refused": "x" * 10**6, "text": "\n" * 10**6}
]  # fmt: skip


def test_answers_to_another_question_and_made_up_refusals_are_no_releases(tmp_path: Path) -> None:
    """Nobody waits for them either."""
    federation = _federation(tmp_path, *(evil_client(name=f"evil-{k}", train=train) for k, train in enumerate(TRAINED)))
    books = _run(federation, mechanism="usbm", per_round=60)
    missed = {entry["id"]: entry["rounds_missed"] for entry in books["clients"]}
    other, refused = {str(Flaw.OTHER_REQUEST): 1}, {"failed": 1}
    assert [missed[f"evil-{k}"] for k in range(5)] == [other, other, other, refused, refused]
    assert federation.grid.clock < 15


def test_the_same_name_twice_is_one_client(tmp_path: Path) -> None:
    """Without keys the first node to report keeps the name; the other is not in the market."""
    federation = _federation(tmp_path, evil_client(name="client-1", report={"sensitivity": 0.9}))
    books = _run(federation)
    assert _ids(books["clients"]) == HONEST
    reports = json.loads((tmp_path / "server" / "reports.json").read_text())
    assert reports["client-1"]["sensitivity"] == 0.3
    assert books["left"] == [{"id": f"node {EVIL}", "declined": str(Flaw.NAME_TAKEN)}]


class _MadeUp(LoopbackGrid):
    """As Flower's grid: a message that cannot be put together raises, whatever else was asked for with it."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        wanted = list(message_ids)
        if any(self._asked(key) and key in self._waiting for key in wanted):
            raise IndexError("list index out of range")
        return super().pull_messages(wanted)

    def _asked(self, key: str) -> bool:
        return any(m.metadata.message_id == key and m.metadata.dst_node_id == EVIL for m in self.log)


def test_a_message_that_flower_cannot_put_together_takes_no_other_with_it(tmp_path: Path) -> None:
    """Neither at the first word nor in training, and nobody waits for it."""
    federation = _federation(tmp_path, evil_client())
    federation.grid = _MadeUp(federation.grid.nodes)
    books = _run(federation)
    assert _ids(books["clients"]) == HONEST
    assert all(entry["answered"] == entry["participations"] for entry in books["clients"])
    assert federation.grid.clock < 30


def test_an_answer_that_is_no_set_of_records_is_unreadable(tmp_path: Path) -> None:
    """Flower puts whatever object of its own a client sends in the content's place."""
    federation = _federation(tmp_path, evil_client())
    answer = federation.grid._answer

    def swapped(message: Message) -> Message | None:
        reply = answer(message)
        if reply is not None and message.metadata.dst_node_id == EVIL and message.metadata.message_type == "train":
            reply.__dict__["_content"] = ConfigRecord({"ask_id": "x"})
        return reply

    federation.grid._answer = swapped  # type: ignore[method-assign]
    books = _run(federation)
    assert {entry["id"]: entry["rounds_missed"] for entry in books["clients"]}["evil"] in (
        {},
        {str(Flaw.UNREADABLE): 1},
    )


def test_a_campaign_with_rubbish_ends_at_the_first_run_and_books_say_so_after_the_second(tmp_path: Path) -> None:
    """Once more with the same store: nothing is asked again and nothing fails."""
    federation = _federation(tmp_path, evil_client(release=_raw(b"")))
    books = federation.run(published(), clients=4)
    assert json.loads((tmp_path / "server" / "outcome.json").read_text())["status"] == "complete"
    sent = len(federation.grid.log)
    assert federation.run(published(), clients=4) == books
    assert [m.metadata.message_type for m in federation.grid.log[sent:] if "hello" not in m.metadata.message_type] == []


def test_a_store_with_a_report_that_stopped_it_goes_on_without_that_client(tmp_path: Path) -> None:
    """A name of 300 characters, as an earlier version stored it before it failed."""
    federation = Federation.make(tmp_path, [0.1, 0.3, 0.5])
    store, rules = ServerStore(tmp_path / "server"), published(rounds=1)
    store.begin(rules)
    stored = {"x" * 300: {"sensitivity": 0.05, "samples": 100}, "b": {"sensitivity": 0.1, "samples": 0}}
    for k, value in enumerate((0.1, 0.3, 0.5)):
        federation.ledger(k).hear(rules.to_json())
        size = len(federation.spec.split(federation.dataset).indices[k])
        stored[f"client-{k}"] = {"sensitivity": value, "samples": size}
    write_json(store.path / "reports.json", stored)
    write_json(store.path / "nodes.json", {})
    books = federation.run(rules, rebind=True)
    assert _ids(books["clients"]) == HONEST


RUBBISH = {
    "nothing": b"",
    "cut": b"PK\x03\x04" + b"\0" * 40,
    "no zip": b"\x93NUMPY\x01\x00",
}


def test_rubbish_among_the_stored_replies_is_asked_for_again_when_the_server_is_back(tmp_path: Path) -> None:
    """In a round that was cut off: what is stored for each of five clients is spoilt in another way."""
    federation = Federation.make(tmp_path, [0.1, 0.2, 0.3, 0.4, 0.5])
    rules = published(rounds=1, mechanism="usbm", per_round=30)
    federation.grid.fault = lambda m: "lost" if m.metadata.message_type == "train" else None
    with pytest.raises(CampaignStoppedError):
        federation.run(rules)
    federation.grid.fault = lambda m: None
    store, size = ServerStore(tmp_path / "server"), len(_parameters(federation))
    folder = store.path / "replies" / "0"
    for k, rubbish in enumerate(RUBBISH.values()):
        store.keep_reply(0, f"client-{k}", np.zeros(3, dtype=np.float32))
        next(path for path in folder.iterdir() if path.read_bytes() not in RUBBISH.values()).write_bytes(rubbish)
    store.keep_reply(0, "client-3", np.zeros(size - 1, dtype=np.float32))
    store.keep_reply(0, "client-4", np.full(size, 3e38, dtype=np.float32))
    store.keep_reply(0, "nobody", np.zeros(size, dtype=np.float32))
    books = federation.run(rules)
    assert all(entry["answered"] == entry["participations"] > 0 for entry in books["clients"])


def test_what_an_honest_client_can_send_is_taken() -> None:
    """The largest length is one that noise exceeds in one of 10²¹ cases: ten times σ does not pass."""
    size, rng = 1000, np.random.default_rng(0)
    release = Release(
        round=0, client="a", multiplicity=1, samples=10, clip_norm=1.0, sensitivity=0.1, noise_std=0.5,
        adjacency=Adjacency.ADD_REMOVE, delta=1e-5,
    )  # fmt: skip
    mean = np.zeros(size, dtype=np.float32)
    mean[0] = 1.0
    for _ in range(1000):
        check_release((mean + rng.normal(0, 0.5, size)).astype(np.float32), size, release)
    with pytest.raises(UnusableError, match="release-too-large"):
        check_release(rng.normal(0, 5.0, size).astype(np.float32), size, release)


def test_terms_hold_every_name_that_is_allowed() -> None:
    """What passes at the first word does not fail later, when the offer is written."""
    rules = published()
    for name in ("x" * 100, "a b", "<script>", "Krankenhaus-Süd", "-", ".hidden"):
        assert is_name(name)
        contract = rules.contract([name, "b"], [0.1, 0.2])
        terms = Terms.of_contract(
            campaign="c", client=name, epsilon=1.0, delta=1e-5, participations=2, clip_norm=1.0, samples=10,
            adjacency="add-remove", payment=1.0, public=rules.inputs(2, contract.loss_weight),
        )  # fmt: skip
        assert terms.client == name
