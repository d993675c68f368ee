"""Which node speaks for which client. A node id is only a route; a client is its name, which its contract bears."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from jsam.campaign.messages import Kind, Question, Reply
from jsam.campaign.server.answers import UnusableError, name_in
from jsam.campaign.server.transport import Transport

logger = logging.getLogger("jsam.campaign")

_AGAIN = 30.0  # seconds before a node that gave no name is greeted again


class Roster:
    """Names that nodes gave.

    Where clients' public keys are known by name (`keys`), only the node that proved a client's key bears its name. With
    authentication alone a key keeps its node id, so a name stays with the node that first gave it. Without,
    a restarted node gets a new id, and its old one looks online for up to a minute after a kill: then (`rebind`) the
    latest node to give a name bears it. Whoever can reach the server could take a name that way.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        rebind: bool,
        keys: Mapping[str, str] | None = None,
        known: Mapping[str, int] | None = None,
        ttl: float = 60.0,
    ) -> None:
        """`known`: who bore which name before the server was restarted."""
        self._transport, self._rebind, self._keys, self._ttl = transport, rebind, keys, ttl
        self._nodes: dict[str, int] = dict(known or {})
        self._heard: set[int] = set()
        self._asked: dict[str, tuple[int, float]] = {}
        self._not_before: dict[int, float] = {}
        self.online: set[int] = set()

    def refresh(self) -> None:
        """Look who is online, greet strangers and hear those greeted before; waits for nobody."""
        self.online = self._transport.nodes()
        now = self._transport.now()
        self._asked = {key: (node, since) for key, (node, since) in self._asked.items() if now - since < self._ttl}
        for reply in self._transport.collect(self._asked):
            node, _ = self._asked.pop(reply.message_id)
            if self.hear(node, reply) is None:
                self._not_before[node] = now + _AGAIN
        greeted = {node for node, _ in self._asked.values()}
        greeted |= {node for node, moment in self._not_before.items() if now < moment}
        for node in self.online - self._heard - greeted:
            message_id = self._transport.send(node, Question(kind=Kind.HELLO), seconds=self._ttl)
            if message_id is not None:
                self._asked[message_id] = (node, now)

    def hear(self, node: int, reply: Reply) -> str | None:
        """Take down the name in a reply; the name, if this node may bear it."""
        try:
            name = name_in(reply)
        except UnusableError as error:
            logger.warning("a node gives no name that can be used (%s)", error)
            return None
        self._heard.add(node)
        key = "" if self._keys is None else self._transport.public_keys().get(node, "")
        if self._keys is not None and not (key and key == self._keys.get(name)):
            logger.warning("a node calls itself %r and has not proved that client's key; it is ignored", name)
            return None
        holder = self._nodes.get(name)
        if holder is not None and holder != node:
            if not self._rebind and self._keys is None:
                logger.warning("a second node calls itself %r; it is ignored", name)
                return None
            logger.info("%s is back as another node", name)
        self._nodes[name] = node
        return name

    @property
    def names(self) -> dict[str, int]:
        """Who bears which name."""
        return dict(self._nodes)

    def node_of(self, name: str) -> int | None:
        """The client's node if it is online."""
        node = self._nodes.get(name)
        return node if node in self.online else None
