"""The moment at which a training reply leaves must not be told by another way: its own date, or another message."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.conftest import require

if not TYPE_CHECKING:
    require("flwr", extra="flower")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from jsam.campaign.client import answering as module
from jsam.campaign.client.reply_times import ReplyTimes
from jsam.flower.client_app import client_app
from tests.flower.loopback import Federation, no_noise, published


class _Client:
    """A client whose replies wait; while one waits, `meanwhile` is called."""

    def __init__(self, folder: Path) -> None:
        self.time, self.ended = 1000.0, 0.0
        self.asked: list[str] = []
        self.answers: dict[str, str] = {}
        self.federation = Federation.make(folder, [0.2])
        times = ReplyTimes(now=lambda: self.time, sleep=self._sleep, measure=lambda work: 0.1)
        self.app = client_app(no_noise, times)
        grid = self.federation.grid
        grid.nodes = {node: (self.app, config) for node, (_, config) in grid.nodes.items()}
        self.replies: list[tuple[float, Message]] = []
        answer = grid._answer

        def watched(message: Message) -> Message | None:
            reply = answer(message)
            if message.metadata.message_type == "train" and reply is not None:
                self.replies.append((self.ended, reply))
            return reply

        grid._answer = watched  # type: ignore[method-assign]
        self.answer = answer

    def meanwhile(self) -> None:
        return

    def _sleep(self, seconds: float) -> None:
        self.meanwhile()
        self.time += seconds
        self.ended = time.time()


def test_a_reply_is_dated_when_it_leaves(tmp_path: Path) -> None:
    """Flower sends with each message when it was made, to the microsecond: that is after the wait, not before it."""
    client = _Client(tmp_path)
    client.federation.run(published(rounds=2))
    assert len(client.replies) == 2
    for ended, reply in client.replies:
        assert reply.metadata.created_at >= ended > 0


@pytest.mark.parametrize("kind", ["query.hello", "query.elicit", "query.close", "query.offer", "train"])
def test_nothing_is_answered_while_a_reply_waits(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a message that queues for the books says when the computation before it was over, and a training message
    that comes in the middle of it chooses the moments at which that is told."""
    client, found = _Client(tmp_path), list[Any]()

    def meanwhile() -> None:
        monkeypatch.setattr(module, "WAIT", 0.0, raising=False)
        values = {"text": "", "terms": "", "campaign": "none"}
        content = RecordDict({name: ConfigRecord(dict(values)) for name in ("published", "offer", "close", "request")})
        content["model"] = ArrayRecord({"parameters": Array(np.zeros(1, dtype=np.float32))})
        (node,) = client.federation.grid.nodes
        message = Message(content, dst_node_id=node, message_type=kind)
        message.metadata.__dict__["_message_id"] = "between"
        client.meanwhile = lambda: None  # type: ignore[method-assign]
        reply = client.answer(message)
        assert reply is not None
        found.append(reply.content.config_records["answer"].get("refused"))
        monkeypatch.setattr(module, "WAIT", 300.0, raising=False)

    client.meanwhile = meanwhile  # type: ignore[method-assign]
    client.federation.run(published(rounds=1))
    assert found == ["busy"]
