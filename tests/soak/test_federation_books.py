"""What the federation's soak counts it does count: books that were tampered with give the number they should."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.conftest import require

if not TYPE_CHECKING:
    require("flwr", extra="flower")

from jsam.campaign.campaign_rules import CampaignRules
from jsam.campaign.client.client_journal import Journal
from jsam.campaign.client.client_store import CampaignStore
from jsam.campaign.server.rounds import CampaignStoppedError
from jsam.campaign.server.server_store import ServerStore
from jsam.flower.launch.federation import LocalFederation
from jsam.privacy import Ledger
from jsam.runs.run_folder import write_json
from tests.campaign.books import folder_of
from tests.flower.loopback import Federation, published
from tests.soak.federation_books import VIOLATIONS, Books

NONE = dict.fromkeys(VIOLATIONS, 0)


@pytest.fixture
def campaign(tmp_path: Path) -> tuple[Books, ServerStore, CampaignRules, CampaignStore]:
    """Stopped in its second round, when client 1 did not answer: the replies of the others still lie on the server."""
    clients = Federation.make(tmp_path, [0.2, 0.4, 0.6])
    mute = list(clients.grid.nodes)[1]
    clients.grid.fault = lambda m: "lost" if (m.metadata.dst_node_id, m.metadata.group_id) == (mute, "1") else None
    rules = published(per_round=12)
    with pytest.raises(CampaignStoppedError):
        clients.run(rules, min_share=1.0)
    federation = LocalFederation(tmp_path / "processes")
    federation.client_files = {f"client-{k}": file for k, file in enumerate(clients.files)}
    books = Books(federation)
    federation.stop()
    own = CampaignStore.of(Journal(folder_of(clients.ledger(0))), rules.campaign)
    return books, ServerStore(tmp_path / "server"), rules, own


def _counted(books: Books, store: ServerStore, rules: CampaignRules) -> dict[str, int]:
    for _ in range(2):  # the same case seen twice is one case
        books.look(store, rules)
        books.settle(store, rules)
    found = books.as_dict()
    return {name: found[name] for name in VIOLATIONS if found[name]}


def test_honest_books_have_nothing_to_count(
    campaign: tuple[Books, ServerStore, CampaignRules, CampaignStore],
) -> None:
    books, store, rules, _ = campaign
    books.look(store, rules)
    books.settle(store, rules)
    found = books.as_dict()
    assert {name: found[name] for name in VIOLATIONS} == NONE
    assert found["replies_compared"] == 2
    assert found["replies_that_may_have_left"] == found["releases"] == 5
    assert found["accounts_settled"] == 3


def test_a_reply_that_becomes_another_one_is_counted(
    campaign: tuple[Books, ServerStore, CampaignRules, CampaignStore],
) -> None:
    books, store, rules, own = campaign
    books.look(store, rules)
    (own.folder / "replies" / "0.sha256").write_text("0" * 64)
    assert _counted(books, store, rules) == {"replies_that_became_other_ones": 1}


def test_a_reply_at_the_server_that_the_client_did_not_record_is_counted(
    campaign: tuple[Books, ServerStore, CampaignRules, CampaignStore],
) -> None:
    books, store, rules, _ = campaign
    store.keep_reply(1, "client-2", np.zeros(3, dtype=np.float32))
    assert _counted(books, store, rules) == {"replies_unlike_what_the_client_recorded": 1}


def test_a_client_that_overspends_by_its_own_ledger_is_counted(
    campaign: tuple[Books, ServerStore, CampaignRules, CampaignStore],
) -> None:
    books, store, rules, own = campaign
    own.record(own.terms.release(2, 100), "a" * 64)
    assert _counted(books, store, rules) == {
        "overspent_by_the_clients_ledgers": 1,
        "clients_with_more_draws_than_the_server_asked_for": 1,
    }


def test_a_server_that_asks_for_too_much_is_counted(
    campaign: tuple[Books, ServerStore, CampaignRules, CampaignStore],
) -> None:
    books, store, rules, own = campaign
    with Ledger(store.run.ledger) as ledger:
        ledger.append([own.terms.release(2, 100)])
    assert _counted(books, store, rules) == {"overspent_by_the_servers_ledger": 1}
    write_json(store.path / "books.json", {**store.books(), "kept": False})
    assert _counted(books, store, rules) == {"overspent_by_the_servers_ledger": 2}
