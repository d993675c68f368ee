"""How a server reaches its clients. Flower carries a campaign by one of these; tests carry one by hand."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from jsam.campaign.messages import Question, Reply


class Transport(Protocol):
    """Messages to nodes and what comes back. A node is a route by number; which client is behind it, its name says."""

    def nodes(self) -> set[int]:
        """Who is online."""

    def public_keys(self) -> dict[int, str]:
        """The key that each node proved to hold, in OpenSSH's form; empty where nodes are not asked for one."""

    def send(self, node: int, question: Question, *, seconds: float) -> str | None:
        """Hand over a question that is void after so many seconds; its message's id, or None if it was not taken."""

    def collect(self, message_ids: Iterable[str]) -> list[Reply]:
        """Whatever has arrived for these messages, in their order."""

    def now(self) -> float:
        """Seconds on a clock that never goes back."""

    def pause(self) -> None:
        """Wait a moment for messages to arrive."""
