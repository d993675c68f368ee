"""All campaigns of a client together: (Σ ε, Σ δ), held against the policy on acceptance and at each release."""

from __future__ import annotations

from pathlib import Path

import pytest

from jsam.flower.client_ledger import ClientLedger
from jsam.flower.policy import Policy
from jsam.flower.refusal import Reason, Refused
from jsam.flower.statement import Total
from tests.flower.books import MODEL, ask, noisy, refused
from tests.flower.offers import offer


def test_delta_adds_up_over_campaigns_and_is_refused_past_the_total(tmp_path: Path) -> None:
    ledger = ClientLedger(tmp_path, Policy(total_delta=2.5e-5))
    ledger.accept(offer(campaign="a"))
    ledger.accept(offer(campaign="b"))
    ledger.accept(offer(campaign="never drawn", participations=0))
    with pytest.raises(Refused, match=r"declined: .*total-delta-exceeded$"):
        ledger.accept(offer(campaign="c"))
    ledger.answer(ask(offer(campaign="a"), 0), noisy, model=MODEL)
    for name in "ab":
        ledger.close(name)
    # One release takes all of a campaign's δ; the campaign that released nothing gives its own back.
    assert ledger.committed().delta == ledger.spent().delta == 1e-5
    ledger.accept(offer(campaign="d"))


def test_without_a_limit_the_deltas_together_stay_below_one_in_the_number_of_records(tmp_path: Path) -> None:
    """1/600 = 0.00167: each is below it, two are not."""
    ledger = ClientLedger(tmp_path)
    ledger.accept(offer(campaign="a", delta=1e-3))
    with pytest.raises(Refused, match="total-delta-exceeded"):
        ledger.accept(offer(campaign="b", delta=1e-3))
    ClientLedger(tmp_path, Policy(total_delta=2e-3)).accept(offer(campaign="c", delta=1e-3))


def test_a_total_of_delta_that_was_lowered_later_stops_the_releases_but_not_the_repeats(tmp_path: Path) -> None:
    ledger = ClientLedger(tmp_path)
    first, second = offer(campaign="a"), offer(campaign="b")
    for terms in (first, second):
        ledger.accept(terms)
        reply = ledger.answer(ask(terms, 0), noisy, model=MODEL)
    strict = ClientLedger(tmp_path, Policy(total_delta=1.5e-5))
    assert refused(lambda: strict.answer(ask(second, 1), noisy, model=MODEL)) is Reason.POLICY_TOTAL
    assert strict.answer(ask(second, 0), noisy, model=MODEL) == reply
    ClientLedger(tmp_path, Policy(total_delta=2e-5)).answer(ask(second, 1), noisy, model=MODEL)


def test_the_books_say_what_all_campaigns_spent_together(tmp_path: Path) -> None:
    ledger = ClientLedger(tmp_path)
    assert ledger.spent() == Total(epsilon=0.0, delta=0.0)
    for name, rounds in (("a", 1), ("b", 2), ("c", 0)):
        terms = offer(campaign=name)
        ledger.accept(terms)
        for round in range(rounds):
            ledger.answer(ask(terms, round), noisy, model=MODEL)
    entries = {entry.campaign: entry for entry in ledger.statement()}
    assert ledger.spent().epsilon == pytest.approx(entries["a"].epsilon_spent + entries["b"].epsilon_spent)
    assert ledger.spent().delta == pytest.approx(2e-5)
    assert ledger.committed().epsilon == pytest.approx(4.5)
    assert ledger.committed().delta == pytest.approx(3e-5)
    assert (entries["a"].delta_spent, entries["c"].delta_spent) == (1e-5, 0.0)
