"""What a client sees whose yes was lost, and a campaign with a budget, whose η(N) every client computes itself."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import require

if not TYPE_CHECKING:
    require("flwr", extra="flower")

from flwr.app import Message

from jsam.campaign.campaign_rules import CampaignRules
from jsam.campaign.server.storage import NobodyLeftError
from jsam.campaign.statement import Total
from jsam.mechanism.contract import Contract
from tests.flower.loopback import Federation, published


def test_a_client_whose_yes_was_lost_is_told_and_holds_nothing(tmp_path: Path) -> None:
    """It accepted, the server heard nothing: the others go on without it, and its books say that it was withdrawn."""
    federation = Federation.make(tmp_path, [0.2, 0.4, 0.6])
    mute = list(federation.grid.nodes)[1]

    def fault(message: Message) -> str | None:
        offered = message.metadata.message_type == "query.offer"
        return "reply lost" if offered and message.metadata.dst_node_id == mute else None

    federation.grid.fault = fault
    books = federation.run(published())
    assert books["left"] == [{"id": "client-1", "declined": "silent"}]
    own = federation.statement(1)
    assert own.epsilon_bought > 0
    assert (own.closed, own.withdrawn, own.participations, own.payment) == (True, True, 0, 0.0)
    assert federation.ledger(1).committed() == Total()
    assert not federation.statement(0).closed


def test_an_offer_that_arrives_after_its_withdrawal_is_refused(tmp_path: Path) -> None:
    """The offer itself was held up: the client knows the rules and has no terms when it is told that it is over."""
    federation = Federation.make(tmp_path, [0.2, 0.4])
    late = list(federation.grid.nodes)[1]
    federation.grid.fault = lambda m: (
        "lost" if m.metadata.dst_node_id == late and m.metadata.message_type == "query.offer" else None
    )
    federation.run(published())
    federation.grid.fault = lambda m: None
    held_up = next(
        m for m in federation.grid.log if m.metadata.dst_node_id == late and m.metadata.message_type == "query.offer"
    )
    (message_id,) = federation.grid.push_messages([held_up])
    (reply,) = federation.grid.pull_messages([message_id])
    assert reply.content.config_records["answer"]["refused"] == "campaign-closed"
    assert federation.ledger(1).statement() == ()


@pytest.fixture
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.usefixtures("_own_cache")
def test_under_a_budget_every_client_agrees_with_the_servers_loss_weight(tmp_path: Path) -> None:
    federation = Federation.make(tmp_path, [0.2, 0.4, 0.6])
    books = federation.run(published(budget=3.0, loss_weight=None))
    assert [entry["declined"] for entry in books["clients"]] == [None] * 3


@pytest.mark.usefixtures("_own_cache")
def test_a_server_that_fits_the_loss_weight_to_the_reports_finds_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless a client's policy says that it takes η on trust."""

    def fitted(
        self: CampaignRules, names: Sequence[str], sensitivities: Sequence[float], samples: Sequence[int] | None = None
    ) -> Contract:
        constant = dataclasses.replace(self.rules, budget=None, loss_weight=40.0)
        plan = constant.contract(constant.market(sensitivities, names))
        return dataclasses.replace(plan, budget=self.rules.budget)

    monkeypatch.setattr(CampaignRules, "contract", fitted)
    federation = Federation.make(tmp_path / "a", [0.2, 0.4])
    with pytest.raises(NobodyLeftError, match="does not hold: loss weight"):
        federation.run(published(budget=3.0, loss_weight=None))
    trusting = Federation.make(tmp_path / "b", [0.2, 0.4], policies={1: "check_loss_weight = false"})
    trusting.run(published(budget=3.0, loss_weight=None))
    agreement = json.loads((tmp_path / "b" / "server" / "agreement.json").read_text())
    assert set(agreement["terms"]) == {"client-1"}
