"""Asking again: after failures with growing patience, at another node at once, else from time to time."""

from __future__ import annotations

from typing import Any

import pytest

from jsam.campaign.messages import Kind, Question, Reply
from jsam.campaign.refusal import Reason
from jsam.campaign.server.asking import Asking


class Post:
    """A transport whose clock and replies are set by hand."""

    def __init__(self) -> None:
        self.time, self.sent, self.replies, self.closed = 0.0, 0, [], False

    replies: list[Reply]

    def now(self) -> float:
        return self.time

    def send(self, node: int, question: Question, *, seconds: float) -> str | None:
        self.sent += 1
        return None if self.closed else f"message {self.sent}"

    def collect(self, message_ids: Any) -> list[Reply]:
        arrived = [reply for reply in self.replies if reply.message_id in message_ids]
        self.replies = []
        return arrived


@pytest.fixture
def post() -> Post:
    return Post()


@pytest.fixture
def asking(post: Post) -> Asking[str]:
    transport: Any = post
    return Asking(transport, ["anna"], repeat=60.0)


def answer(message: int, **words: Any) -> Reply:
    return Reply(message_id=f"message {message}", values=words)


def error(message: int) -> Reply:
    return Reply(message_id=f"message {message}", error="error 1")


def ask(asking: Asking[str], node: int = 7) -> None:
    asking.ask("anna", node, Question(kind=Kind.HELLO), deadline=1000.0)


def test_a_silent_node_is_asked_again_from_time_to_time(post: Post, asking: Asking[str]) -> None:
    assert asking.due("anna", 7)
    ask(asking)
    post.time = 59.9
    assert not asking.due("anna", 7)
    assert asking.due("anna", 8)  # it has come back as another node
    post.time = 60.0
    assert asking.due("anna", 7)


def test_after_failures_patience_grows(post: Post, asking: Asking[str]) -> None:
    for times, wait in enumerate([1.0, 2.0, 5.0, 10.0, 30.0, 30.0], start=1):
        ask(asking)
        post.replies = [error(times) if times % 2 else answer(times, refused=Reason.BUSY.value)]
        assert list(asking.answers()) == []
        post.time += wait - 0.1
        assert not asking.due("anna", 7)
        post.time += 0.1
        assert asking.due("anna", 7)
    assert asking.open["anna"].times == 6


def test_a_message_that_is_not_taken_is_a_failure(post: Post, asking: Asking[str]) -> None:
    post.closed = True
    ask(asking)
    assert not asking.due("anna", 7)
    post.time = 1.0
    assert asking.due("anna", 7)


def test_the_first_answer_counts_and_a_refusal_is_one(post: Post, asking: Asking[str]) -> None:
    ask(asking)
    ask(asking)
    post.replies = [answer(2, refused="policy"), answer(1, value=3)]
    found = list(asking.answers())
    assert [(who, reply.values["refused"]) for who, reply in found] == [("anna", "policy")]
    assert not asking.open
