"""The client's books: one noisy value a round, never more than was sold, and a named reason for every no."""

from __future__ import annotations

import dataclasses
import math
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsam.campaign.client.client_journal import Journal
from jsam.campaign.client.client_ledger import ClientLedger
from jsam.campaign.client.client_store import CampaignStore
from jsam.campaign.client.policy import Policy
from jsam.campaign.refusal import Reason, Refused
from jsam.campaign.round_request import RoundRequest
from jsam.campaign.statement import Total
from jsam.campaign.terms import Terms
from jsam.privacy import Release, check_contract
from tests.campaign.books import MODEL, ask, contents, folder_of, noisy, refused
from tests.campaign.offers import forged, offer, public_inputs


@pytest.fixture
def ledger(tmp_path: Path) -> ClientLedger:
    ledger = ClientLedger(tmp_path / "books")
    ledger.accept(offer(), sensitivity=0.5, samples=600)
    return ledger


def test_the_computation_gets_the_noise_of_the_terms_for_its_multiplicity(ledger: ClientLedger) -> None:
    seen: list[Release] = []

    def compute(release: Release) -> bytes:
        seen.append(release)
        return b"reply"

    ledger.answer(ask(offer(), 0, 4), compute, model=MODEL)
    assert seen == [offer().release(0, 4)]
    assert seen[0].noise_std == offer().noise_std / 2


def test_a_round_asked_for_again_gets_the_stored_bytes_without_computing(ledger: ClientLedger) -> None:
    first = ledger.answer(ask(offer(), 0), noisy, model=MODEL)
    before = contents(folder_of(ledger))
    again = ClientLedger(folder_of(ledger))  # another process
    assert again.answer(ask(offer(), 0), lambda release: pytest.fail("computed twice"), model=MODEL) == first
    assert contents(folder_of(ledger)) == before


def test_the_release_is_on_disk_before_anything_is_computed(ledger: ClientLedger) -> None:
    def compute(release: Release) -> bytes:
        (entry,) = ClientLedger(folder_of(ledger)).statement()
        assert (entry.releases, entry.participations) == (1, 2)
        assert entry.payment == 0  # nothing was answered yet
        return b"reply"

    ledger.answer(ask(offer(), 0, 2), compute, model=MODEL)
    assert ledger.statement()[0].payment == offer().payment_for(2) > 0.8 * 2 / 5


def test_a_failed_computation_stays_spent_and_may_be_tried_again(ledger: ClientLedger) -> None:
    def fail(release: Release) -> bytes:
        raise MemoryError("too large")

    with pytest.raises(MemoryError):
        ledger.answer(ask(offer(), 0, 3), fail, model=MODEL)
    assert ledger.statement()[0].participations == 3
    assert refused(lambda: ledger.answer(ask(offer(), 0, 1), noisy, model=MODEL)) is Reason.REPEAT_DIFFERS
    assert ledger.answer(ask(offer(), 0, 3), lambda release: b"reply", model=MODEL) == b"reply"
    assert ledger.statement()[0].participations == 3


def test_all_draws_used_spend_what_was_bought_and_no_more(ledger: ClientLedger) -> None:
    for round, m in enumerate([1, 3, 1]):
        ledger.answer(ask(offer(), round, m), noisy, model=MODEL)
    (entry,) = ledger.statement()
    assert (entry.participations, entry.releases, entry.payment) == (5, 3, 0.8)
    assert 1.5 * (1 - 1e-5) < entry.epsilon_spent <= 1.5
    assert not entry.overspent
    before = contents(folder_of(ledger))
    assert refused(lambda: ledger.answer(ask(offer(), 3), noisy, model=MODEL)) is Reason.TOO_MANY_DRAWS
    assert contents(folder_of(ledger)) == before


def test_declining_a_second_offer_ends_the_campaign(tmp_path: Path) -> None:
    """The first offer is off the table then; its ε must not be held ready for ever."""
    ledger = ClientLedger(tmp_path / "books", Policy(max_epsilon=2 * offer().epsilon))
    ledger.accept(offer())
    with pytest.raises(Refused) as caught:
        ledger.accept(offer(epsilon=4 * offer().epsilon))
    assert caught.value.code is Reason.DECLINED
    assert ledger.committed() == Total()
    with pytest.raises(Refused):
        ledger.accept(offer())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"campaign": "autumn"}, Reason.UNKNOWN_CAMPAIGN),
        ({"campaign": "../spring"}, Reason.UNKNOWN_CAMPAIGN),
        ({"campaign": "\ud800\0"}, Reason.UNKNOWN_CAMPAIGN),
        ({"terms_hash": forged(offer(), participations=500).hash}, Reason.OTHER_CONTRACT),
        ({"terms_hash": ""}, Reason.OTHER_CONTRACT),
        ({"noise_std": offer().noise_std * 0.999999}, Reason.OTHER_SETTINGS),
        ({"noise_std": 0.0}, Reason.OTHER_SETTINGS),
        ({"noise_std": float("nan")}, Reason.OTHER_SETTINGS),
        ({"clip_norm": 2.1}, Reason.OTHER_SETTINGS),
        ({"samples": 599}, Reason.OTHER_SETTINGS),
        ({"delta": 1e-4}, Reason.OTHER_SETTINGS),
        ({"adjacency": "replace"}, Reason.OTHER_SETTINGS),
        ({"round": 6}, Reason.ROUND_OUT_OF_RANGE),
        ({"round": 1}, Reason.OUT_OF_ORDER),
        ({"round": 2, "multiplicity": 2}, Reason.REPEAT_DIFFERS),
        ({"multiplicity": 5}, Reason.TOO_MANY_DRAWS),
        ({"multiplicity": 4}, None),
    ],
)
def test_a_forged_or_reordered_request_is_refused_by_name_and_changes_nothing(
    ledger: ClientLedger, changes: dict[str, Any], reason: Reason | None
) -> None:
    ledger.answer(ask(offer(), 2), noisy, model=MODEL)
    before = contents(folder_of(ledger))
    request = dataclasses.replace(ask(offer(), 3), **changes)
    if reason is None:
        ledger.answer(request, noisy, model=MODEL)  # the honest neighbour of what is refused
        return
    assert refused(lambda: ledger.answer(request, noisy, model=MODEL)) is reason
    assert contents(folder_of(ledger)) == before


@pytest.mark.parametrize(
    "changes",
    [
        {"round": -1},
        {"round": 1.0},
        {"round": True},
        {"round": "1"},
        {"multiplicity": 0},
        {"multiplicity": -2},
        {"multiplicity": 1.5},
        {"samples": None},
        {"clip_norm": "2.0"},
        {"noise_std": None},
        {"campaign": 5},
        {"terms_hash": b""},
        {"extra": 1},
    ],
)
def test_a_malformed_request_is_refused_when_it_is_read(changes: dict[str, Any]) -> None:
    given = {**ask(offer(), 0).as_dict(), **changes}
    assert refused(lambda: RoundRequest.from_dict(given)) is Reason.MALFORMED


def test_a_request_travels_as_plain_values() -> None:
    request = ask(offer(), 3, 2)
    assert RoundRequest.from_dict(request.as_dict()) == request


def test_no_refusal_tells_paths_or_numbers(ledger: ClientLedger, tmp_path: Path) -> None:
    secret = "0.123456"
    strict = ClientLedger(folder_of(ledger), Policy(max_epsilon=float(secret)))
    damaged = ClientLedger(tmp_path / "damaged")
    damaged.accept(offer())
    damaged.answer(ask(offer(), 0), noisy, model=MODEL)
    (next((folder_of(damaged) / "campaigns").iterdir()) / "releases.jsonl").unlink()
    for action in (
        lambda: strict.accept(offer(campaign="autumn")),
        lambda: strict.accept(forged(offer(campaign="autumn"), noise_std=0.0)),
        lambda: damaged.accept(offer(campaign="autumn")),
        lambda: damaged.answer(ask(offer(), 0), noisy, model=MODEL),
        damaged.statement,
    ):
        with pytest.raises(Refused) as caught:
            action()
        assert str(tmp_path) not in str(caught.value)
        assert secret not in str(caught.value)


def test_accepting_the_same_terms_again_changes_nothing(ledger: ClientLedger) -> None:
    ledger.answer(ask(offer(), 0), noisy, model=MODEL)
    before = contents(folder_of(ledger))
    ledger.accept(offer())
    assert contents(folder_of(ledger)) == before
    assert ledger.terms("spring") == offer()


def test_a_new_offer_replaces_the_old_only_while_nothing_was_released(ledger: ClientLedger) -> None:
    second, third = offer(epsilon=1.4), offer(epsilon=1.3)
    ledger.accept(second)
    assert refused(lambda: ledger.answer(ask(offer(), 0), noisy, model=MODEL)) is Reason.OTHER_CONTRACT
    ledger.answer(ask(second, 0), noisy, model=MODEL)
    assert refused(lambda: ledger.accept(third)) is Reason.CONTRACT_IN_USE
    assert ledger.terms("spring") == second


@pytest.mark.parametrize(
    ("terms", "own"),
    [
        (forged(offer(campaign="b"), noise_std=0.001), {}),
        (dataclasses.replace(offer(campaign="b"), payment=5.0), {}),
        (offer(campaign="b"), {"sensitivity": 0.6}),
        (offer(campaign="b"), {"samples": 500}),
    ],
)
def test_terms_that_do_not_hold_are_never_accepted(ledger: ClientLedger, terms: Terms, own: dict[str, Any]) -> None:
    assert refused(lambda: ledger.accept(terms, **own)) is Reason.INVALID_TERMS
    assert refused(lambda: ledger.terms("b")) is Reason.UNKNOWN_CAMPAIGN


def test_the_policy_decides_on_acceptance(tmp_path: Path) -> None:
    ledger = ClientLedger(tmp_path, Policy(max_epsilon=1.0))
    with pytest.raises(Refused, match=r"declined: .*epsilon-too-large"):
        ledger.accept(offer())


def test_the_total_over_campaigns_counts_what_was_agreed_and_after_closing_what_was_spent(tmp_path: Path) -> None:
    """Two campaigns of ε = 1.5 come to 2.2 together, three to 2.8; where one spent a single draw it is less."""
    ledger = ClientLedger(tmp_path, Policy(total_epsilon=2.4))
    first, second, third = (offer(campaign=name) for name in "abc")
    ledger.accept(first)
    ledger.accept(second)
    ledger.accept(offer(campaign="never drawn", participations=0))
    assert refused(lambda: ledger.accept(third)) is Reason.DECLINED
    ledger.answer(ask(first, 0), noisy, model=MODEL)
    ledger.close("a")
    spent = ledger.spent()
    assert 0 < spent.sum_epsilon < 1.5
    assert ledger.committed().sum_epsilon == pytest.approx(spent.sum_epsilon + 1.5)
    assert ledger.committed().mu_add_remove == pytest.approx(math.hypot(first.mu / math.sqrt(5), second.mu))
    ledger.accept(offer(campaign="d", epsilon=1.0))
    assert refused(lambda: ledger.accept(offer(campaign="e", epsilon=1.3))) is Reason.DECLINED


def test_a_total_that_was_lowered_later_stops_the_releases_but_not_the_repeats(tmp_path: Path) -> None:
    ledger = ClientLedger(tmp_path)
    first, second = offer(campaign="a"), offer(campaign="b")
    for terms in (first, second):
        ledger.accept(terms)
        reply = ledger.answer(ask(terms, 0), noisy, model=MODEL)
    strict = ClientLedger(tmp_path, Policy(total_epsilon=Policy().epsilon_of(ledger.spent())))
    assert refused(lambda: strict.answer(ask(second, 1), noisy, model=MODEL)) is Reason.POLICY_TOTAL
    assert strict.answer(ask(second, 0), noisy, model=MODEL) == reply


def test_a_closed_campaign_answers_nothing_more_and_keeps_its_record(ledger: ClientLedger) -> None:
    ledger.answer(ask(offer(), 0), noisy, model=MODEL)
    (before,) = ledger.statement()
    ledger.close("spring")
    for action in (
        lambda: ledger.answer(ask(offer(), 0), noisy, model=MODEL),
        lambda: ledger.answer(ask(offer(), 1), noisy, model=MODEL),
        lambda: ledger.accept(offer()),
    ):
        assert refused(action) is Reason.CAMPAIGN_CLOSED
    (after,) = ledger.statement()
    assert after == dataclasses.replace(before, closed=True)
    assert refused(lambda: ledger.close("autumn")) is Reason.UNKNOWN_CAMPAIGN


@pytest.mark.parametrize("damage", ["lose", "change"])
def test_a_reply_that_was_given_and_lost_is_never_made_anew(ledger: ClientLedger, damage: str) -> None:
    """A second value with fresh noise would be a second release."""
    ledger.answer(ask(offer(), 0), noisy, model=MODEL)
    (reply,) = folder_of(ledger).rglob("0.bin")
    if damage == "lose":
        reply.unlink()
    else:
        reply.write_bytes(b"other")
    assert refused(lambda: ledger.answer(ask(offer(), 0), noisy, model=MODEL)) is Reason.REPLY_LOST


@pytest.mark.parametrize("damage", ["lose the ledger", "empty the ledger", "set the ledger back", "change the terms"])
def test_damaged_books_release_nothing(ledger: ClientLedger, damage: str) -> None:
    (releases,) = folder_of(ledger).rglob("releases.jsonl")
    (terms,) = folder_of(ledger).rglob("terms.json")
    earlier = releases.read_bytes()
    ledger.answer(ask(offer(), 0), noisy, model=MODEL)
    if damage == "lose the ledger":
        releases.unlink()
    elif damage == "empty the ledger":
        releases.write_bytes(b"")
    elif damage == "set the ledger back":
        releases.write_bytes(earlier)
    else:
        terms.write_text(terms.read_text().replace('"participations": 5', '"participations": 500'))
    request = ask(offer(), 1)
    assert refused(lambda: ledger.answer(request, noisy, model=MODEL)) is Reason.LEDGER_FAILED


def test_even_terms_that_should_never_have_been_accepted_cannot_be_overspent(tmp_path: Path) -> None:
    """The accountant has a say at each release: a mistake made on acceptance does not become a loss."""
    weak = forged(offer(), noise_std=offer().noise_std / 2)
    ledger = ClientLedger(tmp_path)
    CampaignStore.of(Journal(tmp_path), weak.campaign).accept(weak)
    ledger.answer(ask(weak, 0), noisy, model=MODEL)
    assert refused(lambda: ledger.answer(ask(weak, 1), noisy, model=MODEL)) is Reason.EPSILON_EXHAUSTED
    assert not ledger.statement()[0].overspent


def test_a_second_process_waits_for_the_first_and_gives_up_with_a_reason(ledger: ClientLedger) -> None:
    def compute(release: Release) -> bytes:
        impatient = ClientLedger(folder_of(ledger), wait=0.0)
        assert refused(lambda: impatient.answer(ask(offer(), 0), noisy, model=MODEL)) is Reason.BUSY
        return b"reply"

    ledger.answer(ask(offer(), 0), compute, model=MODEL)


def test_many_at_once_get_one_value(ledger: ClientLedger) -> None:
    replies: list[bytes] = []

    def one() -> None:
        replies.append(ClientLedger(folder_of(ledger)).answer(ask(offer(), 0), noisy, model=MODEL))

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(replies) == 8
    assert len(set(replies)) == 1
    assert ledger.statement()[0].releases == 1


def test_with_a_huge_epsilon_the_books_work_too(tmp_path: Path) -> None:
    terms = offer(epsilon=1e12)
    ledger = ClientLedger(tmp_path, Policy(max_epsilon=1e13, total_epsilon=1e13))
    ledger.accept(terms)
    ledger.answer(ask(terms, 0, 4), noisy, model=MODEL)
    ledger.answer(ask(terms, 1, 1), noisy, model=MODEL)
    assert not ledger.statement()[0].overspent


@settings(max_examples=30)
@given(
    requests=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), max_size=25),
    participations=st.integers(0, 8),
)
def test_whatever_is_asked_in_whatever_order_the_contract_is_kept(
    tmp_path_factory: pytest.TempPathFactory, requests: list[tuple[int, int]], participations: int
) -> None:
    """By an accountant of the library that knows nothing of the client's books; and one value a round."""
    terms = offer(participations=participations, public=public_inputs())
    ledger = ClientLedger(tmp_path_factory.mktemp("books"))
    ledger.accept(terms)
    given_out: dict[int, set[bytes]] = {}
    released: dict[int, Release] = {}

    def compute(release: Release) -> bytes:
        released[release.round] = release
        return noisy(release)

    for round, m in requests:
        try:
            reply = ledger.answer(ask(terms, round, m), compute, model=MODEL)
        except Refused:
            continue
        given_out.setdefault(round, set()).add(reply)
    assert all(len(values) == 1 for values in given_out.values())
    assert check_contract(released.values(), {terms.client: terms.epsilon}, terms.delta).kept
    (entry,) = ledger.statement()
    assert entry.participations == sum(release.multiplicity for release in released.values()) <= participations


def test_a_ledger_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "books").write_text("")
    assert refused(lambda: ClientLedger(tmp_path / "books").accept(offer())) is Reason.LEDGER_FAILED
