"""A round is bound to the model that it was first asked for with."""

from __future__ import annotations

from pathlib import Path

import pytest

from jsam.campaign.client.client_ledger import ClientLedger
from jsam.campaign.refusal import Reason
from jsam.errors import InputError
from jsam.privacy import Release
from tests.campaign.books import MODEL, OTHER_MODEL, ask, contents, folder_of, noisy, refused
from tests.campaign.offers import offer


@pytest.fixture
def ledger(tmp_path: Path) -> ClientLedger:
    ledger = ClientLedger(tmp_path)
    ledger.accept(offer())
    return ledger


def test_an_answered_round_is_refused_for_another_model_and_repeated_for_its_own(ledger: ClientLedger) -> None:
    reply = ledger.answer(ask(offer(), 0), noisy, model=MODEL)
    before = contents(folder_of(ledger))
    assert refused(lambda: ledger.answer(ask(offer(), 0), noisy, model=OTHER_MODEL)) is Reason.OTHER_MODEL
    assert contents(folder_of(ledger)) == before
    assert ledger.answer(ask(offer(), 0), noisy, model=MODEL) == reply
    ledger.answer(ask(offer(), 1), noisy, model=OTHER_MODEL)  # the next round has the next model


def test_a_round_that_died_before_its_reply_is_never_computed_for_another_model(ledger: ClientLedger) -> None:
    def die(release: Release) -> bytes:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ledger.answer(ask(offer(), 0), die, model=MODEL)

    def compute(release: Release) -> bytes:
        pytest.fail("another model was shown to the records")

    assert refused(lambda: ledger.answer(ask(offer(), 0), compute, model=OTHER_MODEL)) is Reason.OTHER_MODEL
    ledger.answer(ask(offer(), 0), noisy, model=MODEL)


def test_the_model_is_recorded_in_one_step_with_the_release(
    ledger: ClientLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No kill can come between the two: here the process dies before either is in its own file."""

    def die(path: Path, data: bytes) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("jsam.campaign.client.client_journal.write_atomically", die)
        with pytest.raises(KeyboardInterrupt):
            ledger.answer(ask(offer(), 0), noisy, model=MODEL)
    assert list(folder_of(ledger).rglob("0.model")) == []
    assert ledger.statement()[0].releases == 1
    assert refused(lambda: ledger.answer(ask(offer(), 0), noisy, model=OTHER_MODEL)) is Reason.OTHER_MODEL
    ledger.answer(ask(offer(), 0), noisy, model=MODEL)


def test_a_request_that_is_refused_binds_nothing(ledger: ClientLedger) -> None:
    ledger.answer(ask(offer(), 0, 3), noisy, model=MODEL)
    assert refused(lambda: ledger.answer(ask(offer(), 1, 3), noisy, model=MODEL)) is Reason.TOO_MANY_DRAWS
    ledger.answer(ask(offer(), 1, 2), noisy, model=OTHER_MODEL)


def test_a_recorded_round_whose_model_is_gone_is_not_answered(ledger: ClientLedger) -> None:
    ledger.answer(ask(offer(), 0), noisy, model=MODEL)
    (path,) = folder_of(ledger).rglob("0.model")
    path.unlink()
    assert refused(lambda: ledger.answer(ask(offer(), 0), noisy, model=MODEL)) is Reason.LEDGER_FAILED


@pytest.mark.parametrize("model", ["", "a", "A" * 64, "a" * 65])
def test_a_digest_that_is_none_is_a_mistake_of_the_caller(ledger: ClientLedger, model: str) -> None:
    with pytest.raises(InputError, match="model is"):
        ledger.answer(ask(offer(), 0), noisy, model=model)
