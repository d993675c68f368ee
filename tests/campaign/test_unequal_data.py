"""Campaigns whose plan counts how much data clients report: what is planned, what is promised, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jsam.campaign.announcement import Announcement
from jsam.campaign.campaign_rules import CampaignRules
from jsam.campaign.client.client_files import ClientFiles, write_client
from jsam.campaign.client.client_ledger import ClientLedger
from jsam.campaign.messages import Kind
from jsam.campaign.refusal import Reason
from jsam.campaign.sandboxed_check import check_loss_weight_apart
from jsam.campaign.server.server_campaign import run_campaign
from jsam.campaign.server.server_options import ServerOptions
from jsam.campaign.server.server_store import ServerStore
from jsam.campaign.server.storage import NobodyLeftError
from jsam.campaign.terms import Terms
from jsam.campaign.verification import Status, verify
from jsam.errors import InputError
from jsam.mechanism.contract_files import load_contract
from jsam.privacy import read_ledger
from jsam.runs.settlement import settle
from tests.campaign.books import refused
from tests.campaign.loopback import MODEL, HandToHand, linear_clients
from tests.campaign.offers import forged, offer, public_inputs

RECORDS, COSTS = (20, 160, 60), [0.2, 0.4, 0.6]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def rules(**changes: Any) -> CampaignRules:
    settings: dict[str, Any] = {
        "campaign": "by hand",
        "mechanism": "jsam-even",
        "loss_weight": 50.0,
        "max_epsilon": 10.0,
        "rounds": 12,
        "per_round": 6,
        "learning_rate": 0.1,
        "model": MODEL,
        "delta": 1e-4,
        "clip_norm": 4.0,
        "sizes": "reported",
    }
    return CampaignRules.from_dict({**settings, **changes})


def campaign(tmp_path: Path, of: CampaignRules, **options: Any) -> tuple[HandToHand, ServerStore]:
    transport, model = linear_clients(tmp_path / "clients", COSTS, records=RECORDS)
    given = ServerOptions(clients=3, store=str(tmp_path / "server"), **options)
    run_campaign(transport, ServerStore(given.store), of, given, model)
    return transport, ServerStore(given.store)


def offers(transport: HandToHand) -> dict[str, Terms]:
    """The last offer to each client."""
    asked = [question for _, question in transport.asked if question.kind is Kind.OFFER]
    terms = [Terms.from_json(str(question.values["terms"])) for question in asked]
    return {entry.client: entry for entry in terms}


def test_the_plan_the_terms_and_both_books_go_by_what_clients_hold(tmp_path: Path) -> None:
    transport, store = campaign(tmp_path, rules())
    contract = load_contract(store.run.contract)
    assert contract.data_shares == pytest.approx(np.array(RECORDS) / sum(RECORDS))
    kept = contract.selection_probs > 0
    assert contract.selection_probs[kept] == pytest.approx(np.array(RECORDS)[kept] / np.array(RECORDS)[kept].sum())
    for k, terms in enumerate(offers(transport).values()):
        assert terms.samples == RECORDS[k]
        assert terms.public.sizes == (20, 60, 160)
        assert terms.noise_std == pytest.approx(terms.noise_multiplier * 4.0 / RECORDS[k])
        assert all(check.status is not Status.VIOLATED for check in verify(terms, COSTS[k], RECORDS[k]))
        (own,) = transport.clients[k + 1].load().books().statement()
        assert own.samples == RECORDS[k]
        assert own.epsilon_spent <= own.epsilon_bought == contract.epsilons[k]
    assert {(entry.client, entry.samples) for entry in read_ledger(store.run.ledger)} <= {
        (f"client-{k}", size) for k, size in enumerate(RECORDS)
    }
    assert settle(store.path, second_opinion=False).kept


def test_where_the_rules_say_equal_nothing_is_counted_and_nothing_new_is_said(tmp_path: Path) -> None:
    transport, store = campaign(tmp_path, rules(sizes="equal"))
    assert load_contract(store.run.contract).data_shares is None
    assert all("sizes" not in terms.public.as_dict() for terms in offers(transport).values())
    published = json.loads((store.path / "published.json").read_text())
    assert "sizes" not in published, "campaigns of earlier versions keep their digest"


def test_a_budget_gives_one_loss_weight_whatever_the_order_of_sizes(tmp_path: Path) -> None:
    """Server and clients each compute it: the server from reports by name, a client from sizes in rising order."""
    transport, _ = campaign(tmp_path, rules(loss_weight=None, budget=3.0, max_epsilon=None))
    terms = offers(transport)["client-1"]
    found = check_loss_weight_apart(terms)
    assert found.status is Status.PASSED
    assert "3 clients of these sizes" in found.message
    public = dataclasses.replace(terms.public, sizes=(60, 60, 60))
    assert check_loss_weight_apart(forged(terms, public=public)).status is Status.VIOLATED


@pytest.mark.parametrize("records", [19, 21, 160])
def test_a_client_refuses_terms_about_another_number_of_records(tmp_path: Path, records: int) -> None:
    """Were M overstated in the terms, noise of C/M would be too small for the records that are there."""
    public = public_inputs(num_clients=3, sizes=[20, 60, 160])
    terms = offer(samples=records, public=public)
    books = ClientLedger(tmp_path / "books")
    assert refused(lambda: books.accept(terms, samples=20)) is Reason.INVALID_TERMS
    books.accept(offer(samples=20, public=public), samples=20)


def test_a_client_refuses_an_offer_by_sizes_that_were_not_published(tmp_path: Path) -> None:
    """And the other way round: after the reports the server may not choose whether sizes count."""
    settings = rules(campaign="spring", model="digits-mlp", learning_rate=0.1, loss_weight=5.0, max_epsilon=None)
    for said, sizes in (("reported", None), ("equal", [20, 60, 600])):
        text = dataclasses.replace(settings, sizes=said).to_json()
        public = public_inputs(num_clients=3, **({} if sizes is None else {"sizes": sizes}))
        assert "sizes" in Announcement.from_json(text).differences(offer(public=public))
    text = dataclasses.replace(settings, sizes="reported").to_json()
    public = public_inputs(num_clients=3, sizes=[20, 60, 600])
    assert "sizes" not in Announcement.from_json(text).differences(offer(public=public))


def test_the_own_size_must_be_among_those_that_the_plan_counts() -> None:
    terms = offer(samples=600, public=public_inputs(num_clients=3, sizes=[20, 60, 160]))
    assert [check.name for check in verify(terms) if check.status is Status.VIOLATED] == ["sizes"]


@pytest.mark.parametrize("sizes", [[60, 20, 160], [20, 60], [0, 20, 60], [20, 60, 1.5], "20", {"a": 1}])
def test_lists_of_sizes_that_are_none_are_refused(sizes: Any) -> None:
    with pytest.raises(InputError, match="sizes"):
        public_inputs(num_clients=3, sizes=sizes)


def test_terms_come_back_from_json_with_their_sizes() -> None:
    terms = offer(public=public_inputs(num_clients=3, sizes=[20, 60, 600]))
    assert Terms.from_json(terms.to_json()) == terms
    assert terms.hash != offer(public=public_inputs(num_clients=3, sizes=[20, 61, 600])).hash


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mechanism": "jsam"}, "jsam has no cap on ε for clients with different numbers"),
        ({"mechanism": "vcg", "max_epsilon": None}, "vcg treats all clients alike"),
        ({"loss_weight": None, "budget": 3.0, "budget_probability": 0.9}, "budget_probability is not there for sizes"),
        ({"sizes": "guessed"}, "sizes is 'guessed'; it must be one of: equal, reported"),
    ],
)
def test_rules_that_cannot_count_sizes_are_refused_before_anybody_is_asked(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        rules(**changes)


def test_an_operator_who_knows_the_sizes_takes_no_others(tmp_path: Path) -> None:
    """An overstated number of records is the one report that pays; only what is known elsewhere limits it."""
    known = tmp_path / "known.csv"
    known.write_text("id,samples\nclient-0,20\nclient-1,80\nclient-2,60\n")
    _, store = campaign(tmp_path, rules(), known_sizes=str(known))
    assert load_contract(store.run.contract).ids == ("client-0", "client-2")
    assert store.rejected() == {"client-1": "records-not-as-known"}
    nobody = tmp_path / "nobody.csv"
    nobody.write_text("id,samples\n")
    with pytest.raises(NobodyLeftError):
        campaign(tmp_path / "again", rules(), known_sizes=str(nobody))


@pytest.mark.parametrize("content", ["id,records\na,1\n", "id,samples\na,many\n", "id,samples\na\n"])
def test_a_file_of_known_sizes_that_is_none_is_one_line(tmp_path: Path, content: str) -> None:
    (tmp_path / "known.csv").write_text(content)
    options = ServerOptions(clients=1, store="-", known_sizes=str(tmp_path / "known.csv"))
    with pytest.raises(InputError, match="it must be a CSV file with the columns id and samples"):
        options.sizes_by_name()


def test_records_that_were_added_after_the_report_are_not_trained_on(tmp_path: Path) -> None:
    """A client whose file has grown since refuses: its terms are about the records that it had."""
    transport, _ = campaign(tmp_path, rules())
    files: ClientFiles = transport.clients[1].load()
    inputs, targets = files.records()
    grown = write_client(
        tmp_path / "grown",
        name="client-0",
        sensitivity=0.2,
        inputs=np.concatenate([inputs, inputs]),
        targets=np.concatenate([targets, targets]),
    )
    terms = offers(transport)["client-0"]
    own = len(ClientFiles.load(grown).records()[1])
    assert own == 2 * terms.samples
    books = ClientFiles.load(grown).books()
    assert refused(lambda: books.accept(terms, sensitivity=0.2, samples=own)) is Reason.INVALID_TERMS


def test_a_campaign_that_began_by_sizes_cannot_go_on_without_them(tmp_path: Path) -> None:
    store = ServerStore(tmp_path / "server")
    store.begin(rules())
    store.begin(rules())
    with pytest.raises(InputError, match="holds a campaign with sizes 'reported'"):
        store.begin(rules(sizes="equal"))
    with pytest.raises(InputError, match="holds a campaign with min_clients"):
        ServerStore(tmp_path / "server").begin(rules(min_clients=2))
