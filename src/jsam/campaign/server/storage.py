"""What a server must keep to go on after a kill at any moment, wherever it keeps it: a folder, or tables.

Whatever a method saves is stored for good when it returns. `ServerStore` does this with files in a folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from jsam.campaign.campaign_rules import CampaignRules
from jsam.campaign.messages import Vector
from jsam.campaign.server.agreement import Agreement, Drafts
from jsam.campaign.server.elicitation import Report
from jsam.privacy import Ledger


@dataclass(kw_only=True)
class ModelState:
    """`rounds_done` updates have been applied to `parameters`, of so many draws of each client (`answered`)."""

    rounds_done: int
    parameters: Vector
    velocity: Vector | None
    answered: dict[str, int] = field(default_factory=dict)
    metrics_size: int = 0


class RoundRecords(Protocol):
    """One record for each round that was applied."""

    def add(self, record: Mapping[str, Any]) -> None: ...

    def sync(self) -> int:
        """Store everything so far for good; how much that is, to cut back to when a killed server goes on."""
        ...


class ServerStorage(Drafts, Protocol):
    """One campaign's records on the server. Whoever is in `writing` is their only writer."""

    def begin(self, rules: CampaignRules) -> None:
        """A new campaign, or the one that is here already, which must have the same rules."""
        ...

    def writing(self) -> AbstractContextManager[Ledger]:
        """The server's ledger, locked against other servers."""
        ...

    def telling_the_end(self) -> AbstractContextManager[None]:
        """Leave word of how the run within ended."""
        ...

    def nodes(self) -> dict[str, int]: ...
    def save_nodes(self, nodes: Mapping[str, int]) -> None: ...

    def reports(self, rules: CampaignRules) -> dict[str, Report] | None: ...
    def rejected(self) -> dict[str, str]: ...
    def save_reports(self, reports: Mapping[str, Report], rejected: Mapping[str, str] | None = None) -> None: ...

    def agreement(self, rules: CampaignRules) -> Agreement | None: ...
    def save_agreement(self, rules: CampaignRules, agreement: Agreement, environment: Mapping[str, str]) -> None: ...

    def state(self) -> ModelState | None: ...
    def save_state(self, state: ModelState) -> None: ...

    def replies(self, round: int) -> dict[str, Vector]: ...
    def keep_reply(self, round: int, client: str, release: Vector) -> None: ...
    def drop_replies(self) -> None: ...

    def metrics(self, size: int) -> AbstractContextManager[RoundRecords]: ...
    def read_metrics(self) -> list[dict[str, Any]]: ...
    def finish(self, model: bytes, summary: Mapping[str, Any]) -> None: ...
    def save_books(self, books: Mapping[str, Any]) -> None: ...
