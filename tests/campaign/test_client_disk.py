"""A client's books on a disk that fills up or loses power."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

import pytest

from jsam.campaign.client.client_ledger import ClientLedger
from jsam.campaign.client.client_store import campaign_id
from jsam.campaign.refusal import Reason, Refused
from jsam.errors import JsamError
from jsam.files import write_atomically
from tests.campaign.books import MODEL, ask, noisy, refused
from tests.campaign.offers import offer


@pytest.fixture
def ledger(tmp_path: Path) -> ClientLedger:
    ledger = ClientLedger(tmp_path / "books")
    ledger.accept(offer())
    return ledger


def test_a_full_disk_releases_nothing(ledger: ClientLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        assert refused(lambda: ledger.answer(ask(offer(), 0), noisy, model=MODEL)) is Reason.LEDGER_FAILED
    assert ledger.statement()[0].participations == 0
    ledger.answer(ask(offer(), 0), noisy, model=MODEL)


@pytest.mark.parametrize(
    "module", ["jsam.privacy.chain", "jsam.campaign.client.client_journal", "jsam.campaign.client.client_store"]
)
def test_a_disk_that_fills_up_at_any_write_gives_out_one_value_at_most_and_counts_it(
    ledger: ClientLedger, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever file cannot be written: nothing leaves before it is recorded, and afterwards the books go on."""
    for failing in range(1, 6):
        count = 0

        def full(path: Path, data: bytes, *_: object, **__: object) -> None:
            nonlocal count
            count += 1
            if count == failing:  # noqa: B023
                raise JsamError(f"{path} could not be written (No space left on device)")
            write_atomically(path, data)

        request, left = ask(offer(), failing), []
        with monkeypatch.context() as patch:
            patch.setattr(f"{module}.write_atomically", full)
            with contextlib.suppress(Refused):
                left.append(ledger.answer(request, noisy, model=MODEL))
        assert ledger.statement()[0].participations >= len(left)
        left += [ledger.answer(request, noisy, model=MODEL) for _ in range(2)]
        assert len(set(left)) == 1
        assert ledger.statement()[0].participations == failing


def test_a_disk_that_fills_up_with_the_reply_leaves_the_round_spent(
    ledger: ClientLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> None:
        if path.suffix == ".bin":
            raise JsamError(f"{path} could not be written (No space left on device)")
        write_atomically(path, data)

    with monkeypatch.context() as patch:
        patch.setattr("jsam.campaign.client.client_store.write_atomically", full)
        assert refused(lambda: ledger.answer(ask(offer(), 0), noisy, model=MODEL)) is Reason.LEDGER_FAILED
    assert ledger.statement()[0].participations == 1
    ledger.answer(ask(offer(), 0), noisy, model=MODEL)


def test_the_whole_path_to_the_books_is_flushed_before_the_terms_are_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where an earlier process made the folders and died before it could flush them."""
    made = tmp_path / "books" / "campaigns" / campaign_id("spring")
    made.mkdir(parents=True)
    flushed: set[Path] = set()

    def write(path: Path, data: bytes) -> None:
        if path.name == "terms.json":
            assert flushed >= {made, made.parent, tmp_path / "books", tmp_path}
        write_atomically(path, data)

    monkeypatch.setattr("jsam.campaign.client.client_journal.sync_folder", flushed.add)
    monkeypatch.setattr("jsam.campaign.client.client_journal.write_atomically", write)
    ClientLedger(tmp_path / "books").accept(offer())
    assert flushed
