"""A lock on a client's folder: its books are in the hands of one process at a time."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from jsam.campaign.client.client_storage import translated
from jsam.campaign.refusal import Reason, Refused
from jsam.files import PRIVATE_FILE, make_folder

try:
    import fcntl
except ImportError:  # a system without POSIX locks: two calls at once are then not kept apart
    fcntl = None  # type: ignore[assignment]

_POLL = 0.02


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
