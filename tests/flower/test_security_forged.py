"""A server that cheats: whatever it sends, the client's app refuses with a named reason and its books do not change."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.conftest import require

if not TYPE_CHECKING:
    require("flwr", extra="flower")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

from jsam.campaign.round_request import RoundRequest
from jsam.campaign.server.rounds import Ask, CampaignStoppedError
from jsam.campaign.server.server_store import ServerStore
from jsam.campaign.terms import Terms
from tests.flower.loopback import Federation, published

RULES = published(rounds=4, per_round=3)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    """Two clients that accepted their terms and answered rounds 0 and 1 of 4; the server stands before round 2."""
    made = Federation.make(tmp_path_factory.mktemp("prepared"), [0.2, 0.4])
    made.grid.fault = lambda message: "lost" if message.metadata.group_id == "2" else None
    with pytest.raises(CampaignStoppedError):
        made.run(RULES)
    made.grid.fault = lambda message: None
    return made


@pytest.fixture
def federation(prepared: Federation, tmp_path: Path) -> Federation:
    """A copy for each test."""
    return prepared.copied(tmp_path / "copy")


def _terms(federation: Federation, name: str = "client-0") -> Terms:
    agreement = ServerStore(federation.folder / "server").agreement(RULES)
    assert agreement is not None
    return agreement.terms[name]


def _send(federation: Federation, kind: str, content: RecordDict) -> Message:
    """Straight to client 0's app."""
    node, (app, config) = next(iter(federation.grid.nodes.items()))
    message = Message(content, dst_node_id=node, message_type=kind)
    return app(message, Context(run_id=1, node_id=node, node_config=config, state=RecordDict(), run_config={}))


def _answer(reply: Message) -> dict[str, Any]:
    return dict(reply.content.config_records["answer"])


def _request(federation: Federation, **changes: Any) -> RecordDict:
    state = ServerStore(federation.folder / "server").state()
    assert state is not None
    terms = _terms(federation)
    honest = RoundRequest.of_terms(terms, round=2, multiplicity=1).as_dict()
    record = {**honest, "ask_id": "x", **changes}
    return RecordDict(
        {
            "request": ConfigRecord({name: value for name, value in record.items() if value is not None}),
            "model": ArrayRecord({"parameters": Array(state.parameters)}),
        }
    )


def _books(federation: Federation) -> dict[str, str]:
    """Every file of client 0's books, by digest."""
    root = federation.files[0].parent / "ledger"
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


FORGED: list[tuple[str, dict[str, Any], str]] = [
    ("another campaign", {"campaign": "other"}, "unknown-campaign"),
    ("a campaign that is a path", {"campaign": "../../clients/client-1"}, "unknown-campaign"),
    ("another contract", {"terms_hash": "0" * 64}, "other-contract"),
    ("less noise", {"noise_std": 1e-9}, "other-settings"),
    ("no noise", {"noise_std": 0.0}, "other-settings"),
    ("noise that is not a number", {"noise_std": float("nan")}, "other-settings"),
    ("another clipping norm", {"clip_norm": 100.0}, "other-settings"),
    ("more records than there are", {"samples": 10**6}, "other-settings"),
    ("another delta", {"delta": 0.5}, "other-settings"),
    ("another adjacency", {"adjacency": "replace"}, "other-settings"),
    ("a round beyond the campaign", {"round": 4}, "round-out-of-range"),
    ("a round before the first", {"round": -1}, "malformed"),
    ("more draws than a round has", {"multiplicity": 1000}, "too-many-draws"),
    ("no draw at all", {"multiplicity": 0}, "malformed"),
    ("a field too many", {"noise_seed": 1}, "malformed"),
    ("a field too few", {"noise_std": None}, "malformed"),
    ("a text for a number", {"round": "2"}, "malformed"),
    ("a truth for a number", {"multiplicity": True}, "malformed"),
]


@pytest.mark.parametrize(("changes", "reason"), [case[1:] for case in FORGED], ids=[case[0] for case in FORGED])
def test_forged_requests_are_refused_by_name_and_change_nothing(
    changes: dict[str, Any], reason: str, federation: Federation
) -> None:
    before = _books(federation)
    reply = _send(federation, "train", _request(federation, **changes))
    assert _answer(reply)["refused"] == reason
    assert not reply.content.array_records
    assert _books(federation) == before


def test_the_honest_request_beside_them_is_answered(federation: Federation) -> None:
    """Otherwise all of the above would prove nothing."""
    assert _terms(federation).participations > federation.statement(0).participations
    reply = _send(federation, "train", _request(federation))
    assert "refused" not in _answer(reply)
    assert reply.content.array_records["release"]["gradient"].numpy().dtype == np.float32


def test_more_draws_than_were_sold_are_refused(federation: Federation) -> None:
    """Round 2 with all that is left, and then one draw more."""
    own = federation.statement(0)
    left = own.participations_bought - own.participations
    assert 0 < left <= RULES.training.per_round
    assert "refused" not in _answer(_send(federation, "train", _request(federation, multiplicity=left)))
    before = _books(federation)
    assert _answer(_send(federation, "train", _request(federation, round=3)))["refused"] == "too-many-draws"
    assert _books(federation) == before


def test_an_answered_round_is_not_answered_with_other_draws(federation: Federation) -> None:
    record = dict(_round_asked(federation).content.config_records["request"])
    other = int(str(record["multiplicity"])) % RULES.training.per_round + 1
    before = _books(federation)
    reply = _send(federation, "train", _request(federation, round=record["round"], multiplicity=other))
    assert _answer(reply)["refused"] == "repeat-differs"
    assert _books(federation) == before


def _round_asked(federation: Federation) -> Message:
    """A message of an earlier round that client 0 answered, as it was sent."""
    node = next(iter(federation.grid.nodes))
    sent = [m for m in federation.grid.log if m.metadata.message_type == "train" and m.metadata.dst_node_id == node]
    return sent[0]


def test_a_replayed_request_gets_the_stored_reply_byte_for_byte(federation: Federation) -> None:
    asked, before = _round_asked(federation), _books(federation)
    replies = [_send(federation, "train", asked.content) for _ in range(3)]
    values = {reply.content.array_records["release"]["gradient"].numpy().tobytes() for reply in replies}
    assert len(values) == 1
    assert _books(federation) == before


def test_an_answered_round_is_not_answered_again_for_another_model(federation: Federation) -> None:
    """Asking once more with other parameters brings nothing, not even what was said before."""
    asked, before = _round_asked(federation), _books(federation)
    other = RecordDict({"request": asked.content.config_records["request"], "model": _other_model(federation)})
    reply = _send(federation, "train", other)
    assert _answer(reply)["refused"] == "other-model"
    assert not reply.content.array_records
    assert _books(federation) == before


def _other_model(federation: Federation) -> ArrayRecord:
    state = ServerStore(federation.folder / "server").state()
    assert state is not None
    return ArrayRecord({"parameters": Array(state.parameters + np.float32(1))})


def test_a_skipped_round_cannot_be_asked_for_later(federation: Federation) -> None:
    """Reordered: round 3 first, then round 2."""
    _send(federation, "train", _request(federation, round=3))
    before = _books(federation)
    assert _answer(_send(federation, "train", _request(federation)))["refused"] in ("out-of-order", "too-many-draws")
    assert _books(federation) == before


@pytest.mark.parametrize(
    "model",
    [
        ArrayRecord({"parameters": Array(np.zeros(3, dtype=np.float32))}),
        ArrayRecord({"parameters": Array(np.zeros(3, dtype=np.float64))}),
        ArrayRecord({"weights": Array(np.zeros(3, dtype=np.float32))}),
    ],
)
def test_a_model_that_does_not_fit_releases_nothing(model: ArrayRecord, federation: Federation) -> None:
    """Nor is the round bound to it: the right model may still follow."""
    content, before = _request(federation), _books(federation)
    content["model"] = model
    reply = _send(federation, "train", content)
    assert _answer(reply)["refused"] == "malformed"
    assert not reply.content.array_records
    assert _books(federation) == before
    assert "refused" not in _answer(_send(federation, "train", _request(federation)))


def _offer(federation: Federation, change: Callable[[dict[str, Any]], None], *, rehash: bool = True) -> Message:
    stored = _terms(federation).as_dict()
    change(stored)
    if rehash:
        stored["hash"] = "unset"
        stored["hash"] = Terms.from_dict(stored).digest
    content = RecordDict({"offer": ConfigRecord({"terms": json.dumps(stored)})})
    return _send(federation, "query.offer", content)


OFFERS: list[tuple[str, Callable[[dict[str, Any]], None], bool]] = [
    ("less noise", lambda terms: terms.update(noise_std=terms["noise_std"] / 2), True),
    ("less noise, consistently", lambda t: t.update({k: t[k] / 2 for k in ("noise_std", "noise_multiplier")}), True),
    ("more draws", lambda terms: terms.update(participations=terms["participations"] + 1), True),
    ("a hash that does not fit", lambda terms: terms.update(epsilon=terms["epsilon"] * 2), False),
    ("no payment", lambda terms: terms.update(payment=0.0), True),
    ("another client's offer", lambda terms: terms.update(client="client-1"), True),
    ("another campaign, never published", lambda terms: terms.update(campaign="new"), True),
    ("another prior than published", lambda terms: terms["public"].update(prior="uniform:0,2"), True),
]


@pytest.mark.parametrize(("change", "rehash"), [case[1:] for case in OFFERS], ids=[case[0] for case in OFFERS])
def test_forged_offers_are_declined_and_change_nothing(
    change: Callable[[dict[str, Any]], None], rehash: bool, federation: Federation
) -> None:
    before = _books(federation)
    answer = _answer(_offer(federation, change, rehash=rehash))
    assert "accepted" not in answer
    assert answer["refused"]
    assert _books(federation) == before


@pytest.mark.parametrize("text", ["", "{", "[]", '{"jsam_terms": 1}', "[" * 100_000, '{"jsam_terms": 1, "hash": NaN}'])
def test_offers_that_are_no_terms_are_declined(text: str, federation: Federation) -> None:
    before = _books(federation)
    content = RecordDict({"offer": ConfigRecord({"terms": text})})
    assert _answer(_send(federation, "query.offer", content))["refused"] == "malformed"
    assert _books(federation) == before


@pytest.mark.parametrize("kind", ["train", "query.offer", "query.elicit", "query.close"])
def test_empty_messages_are_refused(kind: str, federation: Federation) -> None:
    before = _books(federation)
    assert _answer(_send(federation, kind, RecordDict()))["refused"] in ("malformed", "unknown-campaign")
    assert _books(federation) == before


def test_replies_about_trouble_carry_no_paths_no_data_and_no_exception(federation: Federation) -> None:
    """Flower itself would send the text of an exception, which names the file."""
    (federation.files[0].parent / "data.npz").unlink()
    for kind, content in (("train", _request(federation)), ("query.elicit", RecordDict())):
        text = json.dumps(_answer(_send(federation, kind, content)))
        assert str(federation.folder) not in text
        assert "data.npz" not in text
        assert "Error" not in text
    assert _answer(_send(federation, "train", _request(federation)))["refused"] == "failed"


def test_nothing_in_a_runs_configuration_reaches_the_client(federation: Federation) -> None:
    """Paths and noise are the client's own; a run's configuration comes from the server."""
    node, (app, config) = next(iter(federation.grid.nodes.items()))
    hostile: dict[str, Any] = {"client-file": "/etc/passwd", "noise": 0, "ledger": "/dev/null", "noise-std": 0.0}
    message = Message(_request(federation), dst_node_id=node, message_type="train")
    context = Context(run_id=1, node_id=node, node_config=config, state=RecordDict(), run_config=hostile)
    reply = app(message, context)
    assert "refused" not in _answer(reply)
    assert federation.statement(0).epsilon_spent > 0


def test_ask_ids_differ_whenever_anything_that_matters_differs(federation: Federation) -> None:
    terms = _terms(federation)
    ids = {
        Ask.of(offer, round=round, multiplicity=draws, model_digest=model).ask_id
        for offer in (terms, _terms(federation, "client-1"))
        for round in (0, 1)
        for draws in (1, 2)
        for model in ("a", "b")
    }
    assert len(ids) == 16
