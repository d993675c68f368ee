"""A client's books on a disk that fills up or loses power."""

from __future__ import annotations

from pathlib import Path

import pytest

from jsam.errors import JsamError
from jsam.flower.client_ledger import ClientLedger
from jsam.flower.client_store import CampaignStore
from jsam.flower.refusal import Reason
from jsam.flower.terms import Terms
from jsam.privacy.files import write_atomically
from tests.flower.books import MODEL, ask, noisy, refused
from tests.flower.offers import offer


@pytest.fixture
def ledger(tmp_path: Path) -> ClientLedger:
    ledger = ClientLedger(tmp_path / "books")
    ledger.accept(offer())
    return ledger


def test_a_full_disk_releases_nothing(ledger: ClientLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes) -> None:
        raise JsamError(f"{path} could not be written (No space left on device)")

    with monkeypatch.context() as patch:
        patch.setattr("jsam.flower.client_store.write_atomically", full)
        assert refused(lambda: ledger.answer(ask(offer(), 0), noisy, model=MODEL)) is Reason.LEDGER_FAILED
    assert ledger.statement()[0].participations == 0
    ledger.answer(ask(offer(), 0), noisy, model=MODEL)


def test_a_disk_that_fills_up_with_the_reply_leaves_the_round_spent(
    ledger: ClientLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> None:
        if path.suffix == ".bin":
            raise JsamError(f"{path} could not be written (No space left on device)")
        write_atomically(path, data)

    with monkeypatch.context() as patch:
        patch.setattr("jsam.flower.client_store.write_atomically", full)
        assert refused(lambda: ledger.answer(ask(offer(), 0), noisy, model=MODEL)) is Reason.LEDGER_FAILED
    assert ledger.statement()[0].participations == 1
    ledger.answer(ask(offer(), 0), noisy, model=MODEL)


def test_the_whole_path_to_the_books_is_flushed_before_the_terms_are_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where an earlier process made the folders and died before it could flush them."""
    made = CampaignStore.of(tmp_path / "books" / "campaigns", "spring").folder
    made.mkdir(parents=True)
    flushed: set[Path] = set()

    def save(self: Terms, path: Path) -> None:
        assert flushed >= {made, made.parent, tmp_path / "books", tmp_path}

    monkeypatch.setattr("jsam.flower.client_store.sync_folder", flushed.add)
    monkeypatch.setattr(Terms, "save", save)
    ClientLedger(tmp_path / "books").accept(offer())
    assert flushed
