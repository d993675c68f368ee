"""How often a client lets itself be asked for its limits, and what becomes of offers that are taken back."""

from __future__ import annotations

from pathlib import Path

import pytest

from jsam.campaign.client.client_ledger import OFFERS_JUDGED, ClientLedger
from jsam.campaign.client.policy import Policy
from jsam.campaign.refusal import Reason, Refused
from jsam.campaign.statement import Total
from jsam.campaign.terms import Terms
from tests.campaign.books import MODEL, ask, contents, noisy, refused
from tests.campaign.offers import forged, offer
from tests.campaign.test_announcement import published


def test_limits_cannot_be_found_by_halving(tmp_path: Path) -> None:
    """After two offers nothing is judged any more, not even what the policy allows."""
    ledger = ClientLedger(tmp_path, Policy(max_epsilon=1.0))
    for epsilon in (4.0, 2.0):
        assert refused(lambda: ledger.accept(offer(epsilon=epsilon))) is Reason.DECLINED  # noqa: B023
    before = contents(tmp_path)
    for epsilon in (1.5, 0.9):
        assert refused(lambda: ledger.accept(offer(epsilon=epsilon))) is Reason.TOO_MANY_OFFERS  # noqa: B023
    assert contents(tmp_path) == before
    assert ledger.statement() == ()
    ledger.accept(offer(epsilon=0.9, campaign="autumn"))
    assert OFFERS_JUDGED == 2


def test_new_campaigns_do_not_give_looks_without_end(tmp_path: Path) -> None:
    """What was heard of before is heard of again; more campaigns are not, whether or not those came to anything."""
    ledger = ClientLedger(tmp_path, Policy(max_campaigns=2))
    for name in ("spring", "summer", "spring"):
        ledger.hear(published(campaign=name))
    before = contents(tmp_path)
    assert refused(lambda: ledger.hear(published(campaign="autumn"))) is Reason.TOO_MANY_CAMPAIGNS
    assert contents(tmp_path) == before
    ClientLedger(tmp_path, Policy(max_campaigns=3)).hear(published(campaign="autumn"))
    assert refused(lambda: ledger.hear(published(campaign="winter"))) is Reason.TOO_MANY_CAMPAIGNS


def test_a_third_offer_leaves_the_accepted_one_in_place(tmp_path: Path) -> None:
    ledger = ClientLedger(tmp_path)
    for epsilon in (1.5, 1.4):
        ledger.accept(offer(epsilon=epsilon))
    assert refused(lambda: ledger.accept(offer(epsilon=1.3))) is Reason.TOO_MANY_OFFERS
    assert ledger.terms("spring") == offer(epsilon=1.4)
    ledger.accept(offer(epsilon=1.5))  # a server that starts again begins with the first plan
    assert ledger.terms("spring") == offer(epsilon=1.5)


def test_the_same_offer_again_counts_once_and_gets_the_same_answer(tmp_path: Path) -> None:
    """A reply may be lost. And a no stays one, or asking again would tell when a limit changed."""
    strict = ClientLedger(tmp_path, Policy(max_epsilon=1.0))
    first = [_said(strict, offer()) for _ in range(5)]
    assert first == ["declined: against the client's policy: epsilon-too-large"] * 5
    assert _said(ClientLedger(tmp_path), offer()) == first[0]
    assert refused(lambda: strict.accept(offer(epsilon=1.4))) is Reason.DECLINED
    assert refused(lambda: strict.accept(offer(epsilon=1.3))) is Reason.TOO_MANY_OFFERS


def test_offers_that_do_not_hold_are_not_counted(tmp_path: Path) -> None:
    """They never reach the policy: that they fail follows from what the server knows."""
    ledger = ClientLedger(tmp_path)
    for share in (0.5, 0.6, 0.7):
        weak = forged(offer(), noise_std=offer().noise_std * share)
        assert refused(lambda: ledger.accept(weak)) is Reason.INVALID_TERMS  # noqa: B023
    ledger.accept(offer())


def test_an_offer_is_counted_before_it_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = ClientLedger(tmp_path)

    def die(self: Policy, *_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Policy, "judge", die)
        for epsilon in (1.5, 1.4):
            with pytest.raises(KeyboardInterrupt):
                ledger.accept(offer(epsilon=epsilon))
    assert refused(lambda: ledger.accept(offer(epsilon=1.3))) is Reason.TOO_MANY_OFFERS
    ledger.accept(offer(epsilon=1.4))


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": {}}', '{"a": {"refused": "nonsense", "text": ""}}'])
def test_a_damaged_list_of_offers_accepts_nothing(tmp_path: Path, text: str) -> None:
    ledger = ClientLedger(tmp_path)
    ledger.accept(offer())
    (path,) = tmp_path.rglob("offers.json")
    path.write_text(text)
    assert refused(lambda: ledger.accept(offer(epsilon=1.4))) is Reason.LEDGER_FAILED


def test_an_accepted_offer_that_is_withdrawn_holds_nothing_and_the_statement_says_so(tmp_path: Path) -> None:
    """The yes was lost on its way: the server counts the client as silent and tells it so."""
    ledger = ClientLedger(tmp_path)
    ledger.hear(published())
    ledger.accept(offer(), published=True)
    assert ledger.committed() == Total.of_terms(offer())
    for _ in range(2):  # the message may come twice
        ledger.close("spring")
    (entry,) = ledger.statement()
    assert (entry.closed, entry.withdrawn, entry.epsilon_spent, entry.delta_spent, entry.payment) == (
        True, True, 0.0, 0.0, 0.0,
    )  # fmt: skip
    assert ledger.committed() == Total()
    assert refused(lambda: ledger.answer(ask(offer(), 0), noisy, model=MODEL)) is Reason.CAMPAIGN_CLOSED


def test_nothing_is_due_for_withdrawn_terms_without_draws(tmp_path: Path) -> None:
    ledger, terms = ClientLedger(tmp_path), offer(participations=0)
    ledger.accept(terms)
    assert ledger.statement()[0].payment == terms.payment  # never drawn: paid in full
    ledger.close("spring")
    assert ledger.statement()[0].payment == 0


def test_a_campaign_closed_after_a_release_was_not_withdrawn(tmp_path: Path) -> None:
    ledger = ClientLedger(tmp_path)
    ledger.accept(offer())
    ledger.answer(ask(offer(), 0), noisy, model=MODEL)
    ledger.close("spring")
    (entry,) = ledger.statement()
    assert entry.closed
    assert not entry.withdrawn
    assert entry.payment == offer().payment_for(1) > 0.8 / 5


def test_an_offer_that_comes_after_its_withdrawal_does_not_bind(tmp_path: Path) -> None:
    ledger = ClientLedger(tmp_path)
    ledger.hear(published())
    ledger.close("spring")
    assert refused(lambda: ledger.accept(offer(), published=True)) is Reason.CAMPAIGN_CLOSED
    assert ledger.committed() == Total()
    assert refused(lambda: ledger.close("never heard of")) is Reason.UNKNOWN_CAMPAIGN


def _said(ledger: ClientLedger, terms: Terms) -> str:
    with pytest.raises(Refused) as caught:
        ledger.accept(terms)
    return str(caught.value)
