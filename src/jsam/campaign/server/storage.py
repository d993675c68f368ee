"""What a server must keep to go on after a kill at any moment, wherever it keeps it: a folder, or tables.

Whatever a method saves is stored for good when it returns. `ServerStore` does this with files in a folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from jsam.campaign.campaign_rules import CampaignRules
from jsam.campaign.messages import Vector
from jsam.campaign.terms import Terms
from jsam.errors import JsamError
from jsam.mechanism.contract import Contract
from jsam.privacy import Release, Schedule
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

    def add(self, record: Mapping[str, Any]) -> None:
        """Take a record down; it may be lost until `sync`."""

    def sync(self) -> int:
        """Store everything so far for good; how much that is, to cut back to when a killed server goes on."""


class ReleaseLedger(Protocol):
    """Every release that was asked for. `jsam.privacy.Ledger` does this with a file."""

    def append(self, releases: Iterable[Release]) -> int:
        """Store releases for good; how many of them were new. On failure none is stored.

        A release of the same round and client is stored once if it is identical, and else refused by `InputError`.
        """

    def __iter__(self) -> Iterator[Release]:
        """All stored releases, in the order in which they were stored."""


class ServerStorage(Protocol):
    """One campaign's records on the server. Whoever is in `writing` is their only writer.

    What was not saved yet is None or empty where it is asked for.
    """

    def begin(self, rules: CampaignRules) -> None:
        """A new campaign, or the one that is here already, which must have the same rules."""

    def writing(self) -> AbstractContextManager[ReleaseLedger]:
        """The server's ledger, locked against other servers; a kill must free the lock."""

    def telling_the_end(self) -> AbstractContextManager[None]:
        """Leave word of how the run within ended."""

    def nodes(self) -> dict[str, int]:
        """Which node gave which name."""

    def save_nodes(self, nodes: Mapping[str, int]) -> None:
        """Store which node gave which name."""

    def reports(self, rules: CampaignRules) -> dict[str, Report] | None:
        """What clients reported, by name; nobody is asked again once there is something."""

    def rejected(self) -> dict[str, str]:
        """Why other answers could not be used, by name or node."""

    def save_reports(self, reports: Mapping[str, Report], rejected: Mapping[str, str] | None = None) -> None:
        """Store reports and rejections; whoever finds the reports must find both."""

    def draft(self, rules: CampaignRules, attempt: int) -> Agreement | None:
        """The plan as it was offered first (1) or after declines (2), to the last bit."""

    def save_draft(self, attempt: int, draft: Agreement) -> None:
        """Store a plan before it is offered."""

    def agreement(self, rules: CampaignRules) -> Agreement | None:
        """What was agreed on; nothing is offered again once there is something."""

    def save_agreement(self, rules: CampaignRules, agreement: Agreement, environment: Mapping[str, str]) -> None:
        """Store what was agreed on, and the versions of whatever the model's numbers depend on."""

    def state(self) -> ModelState | None:
        """The model after the last round that was applied, to the last bit."""

    def save_state(self, state: ModelState) -> None:
        """Store the model in place of the one before. The caller changes the state afterwards."""

    def replies(self, round: int) -> dict[str, Vector]:
        """The replies to this round that were kept, by client."""

    def keep_reply(self, round: int, client: str, release: Vector) -> None:
        """Store one reply before the next is waited for."""

    def drop_replies(self) -> None:
        """Forget the replies of all rounds, which are in the model now."""

    def metrics(self, size: int) -> AbstractContextManager[RoundRecords]:
        """The records of rounds, cut back to what `sync` called `size`."""

    def read_metrics(self) -> list[dict[str, Any]]:
        """The records of rounds, in their order."""

    def finish(self, model: bytes, summary: Mapping[str, Any]) -> None:
        """Store the trained model, and in a few numbers what it is worth."""

    def save_books(self, books: Mapping[str, Any]) -> None:
        """Store each client's account as the server sees it, in place of the accounts before."""


def reasons(declined: Mapping[str, str]) -> str:
    """Who is not in it, and why, in one line."""
    return "; ".join(f"{name} ({why})" for name, why in declined.items())
