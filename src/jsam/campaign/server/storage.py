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
from jsam.campaign.terms import Terms
from jsam.errors import JsamError
from jsam.mechanism.contract import Contract
from jsam.privacy import Ledger, Schedule
from jsam.runs.noise_plan import NoisePlan


class NobodyLeftError(JsamError):
    """No client answered, or none accepted; there is nothing to train."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What one client said of itself."""

    sensitivity: float
    samples: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Agreement:
    """A contract, the schedule drawn from it, the terms by client, and the reasons of those who are not in them.

    As it is offered, `terms` has every offer; once it is agreed on, those that were accepted. Whoever declined the
    second offer is in contract and schedule but not in `terms`: its slots stay empty.
    """

    noise_plan: NoisePlan
    terms: Mapping[str, Terms]
    declined: Mapping[str, str]

    @property
    def contract(self) -> Contract:
        return self.noise_plan.contract

    @property
    def schedule(self) -> Schedule:
        return self.noise_plan.schedule

    def after(self, said_no: Mapping[str, str]) -> Agreement:
        """What is agreed on once these clients have declined, with their reasons."""
        declined = {**self.declined, **said_no}
        accepted = {name: offer for name, offer in self.terms.items() if name not in said_no}
        if not accepted:
            raise NobodyLeftError(f"nobody accepted: {reasons(declined)}")
        return Agreement(noise_plan=self.noise_plan, terms=accepted, declined=declined)


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


class ServerStorage(Protocol):
    """One campaign's records on the server. Whoever is in `writing` is their only writer."""

    def begin(self, rules: CampaignRules) -> None:
        """A new campaign, or the one that is here already, which must have the same rules."""

    def writing(self) -> AbstractContextManager[Ledger]:
        """The server's ledger, locked against other servers."""

    def telling_the_end(self) -> AbstractContextManager[None]:
        """Leave word of how the run within ended."""

    def nodes(self) -> dict[str, int]: ...
    def save_nodes(self, nodes: Mapping[str, int]) -> None: ...

    def reports(self, rules: CampaignRules) -> dict[str, Report] | None: ...
    def rejected(self) -> dict[str, str]: ...
    def save_reports(self, reports: Mapping[str, Report], rejected: Mapping[str, str] | None = None) -> None: ...

    def draft(self, rules: CampaignRules, attempt: int) -> Agreement | None: ...
    def save_draft(self, attempt: int, draft: Agreement) -> None: ...

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


def reasons(declined: Mapping[str, str]) -> str:
    """Who is not in it, and why, in one line."""
    return "; ".join(f"{name} ({why})" for name, why in declined.items())
