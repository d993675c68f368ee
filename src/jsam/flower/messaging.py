"""Messages to nodes and their replies, matched by message id, with a deadline on everything.

`Grid.send_and_receive` sleeps three seconds between looks and, without a timeout, waits for ever; this asks more often
and always ends. An error reply may name another node than the one that failed, so only the message id counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import UnexpectedObjectContentError
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from jsam.campaign.identity import public_key_text

_PAUSE = 0.25
# What Flower raises when it cannot put together a message that a client made up. Any other error comes from the
# connection to the SuperLink.
_MADE_UP = (
    ArithmeticError, AssertionError, AttributeError, DecodeError, LookupError, MemoryError, RecursionError, TypeError,
    UnexpectedObjectContentError, ValueError,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What came back for one message; `content` is None where Flower reports an error instead.

    It is also None, with `readable` false, where a client sent something that cannot be read as an answer.
    """

    message_id: str
    content: RecordDict | None
    error: str | None = None
    readable: bool = True

    @property
    def config(self) -> ConfigRecord:
        """The answer's settings; empty where there are none."""
        if self.content is None or "answer" not in self.content.config_records:
            return ConfigRecord()
        return self.content.config_records["answer"]


class Exchange:
    """A thin layer over Flower's grid."""

    def __init__(
        self, grid: Grid, *, now: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._grid, self.now, self._sleep = grid, now, sleep

    def nodes(self) -> set[int]:
        """Who is online."""
        return {int(node) for node in self._grid.get_node_ids()}

    def public_keys(self) -> dict[int, str]:
        """The key that each node proved to hold; empty where nodes are not asked for one."""
        return {int(node.node_id): public_key_text(node.public_key) for node in self._grid.get_nodes()}

    def pause(self) -> None:
        self._sleep(_PAUSE)

    def wait_for_nodes(self, count: int, timeout: float) -> set[int]:
        """Until `count` nodes are online or the time is over; whoever is online then."""
        deadline = self.now() + timeout
        while len(nodes := self.nodes()) < count and self.now() < deadline:
            self.pause()
        return nodes

    def send(self, node: int, kind: str, content: RecordDict, *, ttl: float, group: str = "") -> str | None:
        """Hand a message to the SuperLink; its id, or None if the SuperLink would not have it."""
        message = Message(content, dst_node_id=node, message_type=kind, ttl=ttl, group_id=group)
        ids = list(self._grid.push_messages([message]))
        return ids[0] if ids and ids[0] else None

    def collect(self, message_ids: Iterable[str]) -> list[Reply]:
        """Whatever has arrived for these messages."""
        wanted = list(dict.fromkeys(message_ids))  # in their order: of two answers that are there the earlier counts
        if not wanted:
            return []
        try:
            messages = list(self._grid.pull_messages(wanted))
        except _MADE_UP:
            return self._one_by_one(wanted)
        return [_reply(message) for message in messages if message.metadata.reply_to_message_id in wanted]

    def _one_by_one(self, wanted: Iterable[str]) -> list[Reply]:
        """As `collect`, so that a message which cannot be put together takes no other with it."""
        replies = []
        for message_id in wanted:
            try:
                messages = list(self._grid.pull_messages([message_id]))
            except _MADE_UP:
                replies.append(Reply(message_id=message_id, content=None, readable=False))
                continue
            replies += [_reply(message) for message in messages if message.metadata.reply_to_message_id == message_id]
        return replies

    def ask(self, contents: Mapping[int, RecordDict], kind: str, timeout: float, group: str = "") -> dict[int, Reply]:
        """One message to each node; replies by node. Whoever stays silent is not in the result."""
        sent = {self.send(node, kind, content, ttl=timeout, group=group): node for node, content in contents.items()}
        waiting = {message_id: node for message_id, node in sent.items() if message_id is not None}
        replies: dict[int, Reply] = {}
        deadline = self.now() + timeout
        while waiting:
            for reply in self.collect(waiting):
                replies[waiting.pop(reply.message_id)] = reply
            if self.now() >= deadline:
                break
            if waiting:
                self.pause()
        return replies


def _reply(message: Message) -> Reply:
    asked = message.metadata.reply_to_message_id
    if message.has_error():
        return Reply(message_id=asked, content=None, error=f"error {message.error.code}")
    # Flower's own reader takes any object of its own for the content.
    content: object = message.content if message.has_content() else None
    if not isinstance(content, RecordDict):
        return Reply(message_id=asked, content=None, readable=False)
    return Reply(message_id=asked, content=content)
