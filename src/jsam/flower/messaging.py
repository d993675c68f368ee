"""A campaign's questions and answers as Flower's messages, and Flower's grid as a transport.

`Grid.send_and_receive` sleeps three seconds between looks and, without a timeout, waits for ever; the campaign looks
more often and always ends. An error reply may name another node than the one that failed, so only the message id
counts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import UnexpectedObjectContentError
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from jsam.campaign.identity import public_key_text
from jsam.campaign.messages import Answer, Encoded, Kind, Question, Reply

logger = logging.getLogger(__name__)
# Flower shows what is logged below its own name.
logging.getLogger("jsam").parent = logging.getLogger("flwr")

# The type of a question's message, and the record in which its values travel.
MESSAGES = {
    Kind.HELLO: ("query.hello", ""),
    Kind.ELICIT: ("query.elicit", "published"),
    Kind.OFFER: ("query.offer", "offer"),
    Kind.CLOSE: ("query.close", "close"),
    Kind.ROUND: ("train", "request"),
}
_PAUSE = 0.25
# What Flower raises when it cannot put together a message that a client made up. Any other error comes from the
# connection to the SuperLink.
_MADE_UP = (
    ArithmeticError, AssertionError, AttributeError, DecodeError, LookupError, MemoryError, RecursionError, TypeError,
    UnexpectedObjectContentError, ValueError,
)  # fmt: skip


class FlowerTransport:
    """Flower's grid as a `Transport`, where its methods are explained."""

    def __init__(
        self, grid: Grid, *, now: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._grid, self.now, self._sleep = grid, now, sleep

    def nodes(self) -> set[int]:
        return {int(node) for node in self._grid.get_node_ids()}

    def public_keys(self) -> dict[int, str]:
        return {int(node.node_id): public_key_text(node.public_key) for node in self._grid.get_nodes()}

    def pause(self) -> None:
        self._sleep(_PAUSE)

    def send(self, node: int, question: Question, *, seconds: float) -> str | None:
        kind, record = MESSAGES[question.kind]
        content = RecordDict()
        if record:
            content[record] = ConfigRecord(dict(question.values))
        if question.parameters is not None:
            content["model"] = ArrayRecord({"parameters": Array(question.parameters)})
        group = str(question.values.get("round", ""))
        message = Message(content, dst_node_id=node, message_type=kind, ttl=seconds, group_id=group)
        ids = list(self._grid.push_messages([message]))
        return ids[0] if ids and ids[0] else None

    def collect(self, message_ids: Iterable[str]) -> list[Reply]:
        wanted = list(dict.fromkeys(message_ids))  # in their order: of two answers that are there the earlier counts
        if not wanted:
            return []
        try:
            return self._pulled(wanted)
        except _MADE_UP:
            return [reply for message_id in wanted for reply in self._pulled_alone(message_id)]

    def _pulled(self, wanted: list[str]) -> list[Reply]:
        messages = list(self._grid.pull_messages(wanted))
        return [_reply(message) for message in messages if message.metadata.reply_to_message_id in wanted]

    def _pulled_alone(self, message_id: str) -> list[Reply]:
        """So that a message which cannot be put together takes no other with it."""
        try:
            return self._pulled([message_id])
        except _MADE_UP:
            return [Reply(message_id=message_id, readable=False)]


def question_in(message: Message, kind: Kind) -> Question:
    """What a server asks. Whatever cannot be read is left out: the client's answer then says what is missing."""
    record, parameters = None, None  # of what a server made up, anything may fail
    try:
        record = message.content.config_records.get(MESSAGES[kind][1])
        if kind is Kind.ROUND:
            parameters = message.content.array_records["model"]["parameters"].numpy()
    except Exception:  # Flower would send the text of the exception to the server
        logger.exception("a question of kind %s cannot be read", kind)
    return Question(kind=kind, values={} if record is None else dict(record), parameters=parameters)


def content_of(answer: Answer) -> RecordDict:
    """An answer as a message's content."""
    content = RecordDict({"answer": ConfigRecord(dict(answer.values))})
    if answer.release is not None:
        content["release"] = ArrayRecord({"gradient": Array(answer.release)})
    return content


def _reply(message: Message) -> Reply:
    asked = message.metadata.reply_to_message_id
    if message.has_error():
        return Reply(message_id=asked, error=f"error {message.error.code}")
    # Flower's own reader takes any object of its own for the content.
    content: object = message.content if message.has_content() else None
    if not isinstance(content, RecordDict):
        return Reply(message_id=asked, readable=False)
    values, arrays = content.config_records.get("answer"), content.array_records.get("release")
    array: object = None if arrays is None else arrays.get("gradient")
    release = None
    if isinstance(array, Array):
        release = Encoded(form=array.stype, dtype=array.dtype, shape=tuple(array.shape), data=array.data)
    return Reply(message_id=asked, values={} if values is None else dict(values), release=release)
