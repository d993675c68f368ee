"""A client's books in the hands of one process at a time, checked before they are used."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from jsam.campaign.client.client_journal import CAMPAIGNS, Journal
from jsam.campaign.refusal import Reason, Refused
from jsam.errors import JsamError
from jsam.files import PRIVATE_FILE, make_folder

try:
    import fcntl
except ImportError:  # a system without POSIX locks: two calls at once are then not kept apart
    fcntl = None  # type: ignore[assignment]

_POLL = 0.02


@contextlib.contextmanager
def opened_books(folder: Path, wait: float) -> Iterator[Journal]:
    """The books, checked and brought up to their last entry, while no other process has them.

    `wait`: for how many seconds to queue behind another process.
    """
    with translated():
        # Not for other users of the machine: the books tell what this client sells its privacy for.
        make_folder(folder)
        if folder.stat().st_mode & 0o077:
            folder.chmod(0o700)
        make_folder(folder / CAMPAIGNS)
    with turn(folder, wait, "lock"):
        with translated():
            journal = Journal.checked(folder)
            journal.finish()
        yield journal


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Errors of the books name files; what leaves must not."""
    try:
        yield
    except Refused:
        raise
    except (JsamError, OSError) as error:
        raise Refused(
            Reason.LEDGER_FAILED, "the client's books cannot be read or written; nothing is released"
        ) from error


@contextlib.contextmanager
def turn(folder: Path, wait: float, name: str = "turn") -> Iterator[None]:
    """While one message is answered, and its reply waits for the moment at which it may leave, the next one queues."""
    with translated():
        make_folder(folder)
        handle = os.open(folder / name, os.O_RDWR | os.O_CREAT, PRIVATE_FILE)
    try:
        with translated():
            _lock(handle, wait)
        yield
    finally:
        os.close(handle)


def _lock(handle: int, wait: float) -> None:
    deadline = time.monotonic() + wait
    while fcntl is not None:
        try:
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise Refused(Reason.BUSY, "another process of this client is still answering") from None
            time.sleep(_POLL)
    return None
