"""All campaigns of a client together, composed exactly, held against the policy on acceptance and at each release."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from jsam.campaign.client.client_ledger import ClientLedger
from jsam.campaign.client.policy import Policy
from jsam.campaign.refusal import Reason, Refused
from jsam.campaign.statement import Total
from jsam.privacy.gaussian import composed_epsilon
from tests.campaign.books import MODEL, ask, noisy, refused
from tests.campaign.offers import offer


def test_campaigns_compose_exactly_and_are_refused_past_the_total(tmp_path: Path) -> None:
    """Two of ε = 1.5 are 2.2 together. One that released nothing and is over gives its part back."""
    limit = composed_epsilon([offer().mu] * 2, 1e-5)
    ledger = ClientLedger(tmp_path, Policy(total_epsilon=limit))
    ledger.accept(offer(campaign="a"))
    ledger.accept(offer(campaign="b"))
    ledger.accept(offer(campaign="never drawn", participations=0))
    with pytest.raises(Refused, match=r"declined: .*total-epsilon-exceeded$"):
        ledger.accept(offer(campaign="c", epsilon=0.01))
    ledger.answer(ask(offer(campaign="a"), 0), noisy, model=MODEL)
    for name in "ab":
        ledger.close(name)
    assert ledger.committed() == ledger.spent()
    assert ledger.spent().mu_add_remove == pytest.approx(offer().mu / math.sqrt(5))
    ledger.accept(offer(campaign="d"))


def test_the_total_is_taken_at_the_delta_of_the_policy_whatever_those_of_the_campaigns_are(tmp_path: Path) -> None:
    """ε = 1.5 at δ = 1e-3 is 2.7 at 1e-7."""
    loose = offer(delta=1e-3)
    at = composed_epsilon([loose.mu], 1e-7)
    assert at > 2.7
    strict = ClientLedger(tmp_path / "a", Policy(total_epsilon=at * (1 - 1e-9), total_delta=1e-7))
    assert refused(lambda: strict.accept(loose)) is Reason.DECLINED
    ClientLedger(tmp_path / "b", Policy(total_epsilon=at, total_delta=1e-7)).accept(loose)


def test_a_total_at_a_delta_that_was_lowered_later_stops_the_releases_but_not_the_repeats(tmp_path: Path) -> None:
    ledger = ClientLedger(tmp_path)
    first, second = offer(campaign="a"), offer(campaign="b")
    for terms in (first, second):
        ledger.accept(terms)
        reply = ledger.answer(ask(terms, 0), noisy, model=MODEL)
    limit = ledger.spent().epsilon(1e-5)
    strict = ClientLedger(tmp_path, Policy(total_epsilon=limit, total_delta=1e-5))
    assert refused(lambda: strict.answer(ask(second, 1), noisy, model=MODEL)) is Reason.POLICY_TOTAL
    assert strict.answer(ask(second, 0), noisy, model=MODEL) == reply
    ClientLedger(tmp_path, Policy(total_epsilon=limit, total_delta=1e-3)).answer(ask(second, 1), noisy, model=MODEL)


def test_the_books_say_what_all_campaigns_spent_together(tmp_path: Path) -> None:
    ledger = ClientLedger(tmp_path)
    assert ledger.spent() == Total()
    for name, rounds in (("a", 1), ("b", 2), ("c", 0)):
        terms = offer(campaign=name)
        ledger.accept(terms)
        for round in range(rounds):
            ledger.answer(ask(terms, round), noisy, model=MODEL)
    entries = {entry.campaign: entry for entry in ledger.statement()}
    spent, committed = ledger.spent(), ledger.committed()
    assert spent.sum_epsilon == pytest.approx(entries["a"].epsilon_spent + entries["b"].epsilon_spent)
    assert spent.sum_delta == pytest.approx(2e-5)
    # Three draws of five: as if they were of one campaign.
    assert spent.epsilon(1e-5) == pytest.approx(composed_epsilon([offer().mu * math.sqrt(3 / 5)], 1e-5))
    assert committed.sum_epsilon == pytest.approx(4.5)
    assert committed.sum_delta == pytest.approx(3e-5)
    assert committed.epsilon(1e-5) == pytest.approx(composed_epsilon([offer().mu * math.sqrt(3)], 1e-5))
    assert (entries["a"].delta_spent, entries["c"].delta_spent) == (1e-5, 0.0)
