"""A client's books in a folder of its own: `ClientStorage` by files.

lock                 held by the one process that is writing
paused               present while the owner wants no request answered
books.chain, …       the journal and the campaigns' files (jsam.campaign.client.client_journal)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from jsam.campaign.client.client_journal import CAMPAIGNS, Journal
from jsam.campaign.client.client_lock import turn
from jsam.campaign.client.client_store import JournalBooks
from jsam.files import make_folder, sync_folder, write_atomically


class ClientFolder:
    """The books of one client as files. Any number of processes may share the folder."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._paused = self.path / "paused"

    @contextlib.contextmanager
    def writing(self, wait: float) -> Iterator[JournalBooks]:
        """The books, checked and brought up to their last entry, while no other process has them."""
        # Not for other users of the machine: the books tell what this client sells its privacy for.
        make_folder(self.path)
        if self.path.stat().st_mode & 0o077:
            self.path.chmod(0o700)
        make_folder(self.path / CAMPAIGNS)
        with turn(self.path, wait, "lock"):
            journal = Journal.checked(self.path)
            journal.finish()
            yield JournalBooks(journal)

    def reading(self, *, thorough: bool = False) -> JournalBooks:
        """The books as they are; `thorough` compares the digests of all rounds, of which there is a file each."""
        return JournalBooks(Journal.checked(self.path, digests=thorough))

    @property
    def paused(self) -> bool:
        return self._paused.exists()

    def pause(self, on: bool) -> None:
        make_folder(self.path, mode=0o700)
        if on:
            write_atomically(self._paused, b"")
        else:
            self._paused.unlink(missing_ok=True)
            sync_folder(self.path)
