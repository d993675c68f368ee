"""Files that are either there in full or not at all, and that nobody but their owner may read.

Books, reports, offers and keys tell what somebody's privacy costs. So whatever is written here has the mode 0600, and
a folder that is made here 0700, from the moment at which it appears and whatever the umask is.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

from jsam.errors import InputError, JsamError

logger = logging.getLogger("jsam")

PRIVATE_FILE, PRIVATE_FOLDER, PRIVATE_UMASK = 0o600, 0o700, 0o077
_OTHERS = 0o077
# Windows has neither these rights nor folders that can be flushed.
_POSIX = os.name == "posix"


def write_atomically(path: Path, data: bytes) -> None:
    """Write beside `path`, flush to disk, then rename: a kill or a full disk leaves what was there before.

    Where the folder cannot be flushed the write has failed: a new file is then removed again, and a file that took the
    place of another one is whole, but after a power cut the other one may be back.
    """
    beside, placed = path.with_name(f".{path.name}.{os.getpid()}.part"), False
    try:
        beside.unlink(missing_ok=True)  # left by a process of the same number that was killed
        with open(beside, "xb", opener=private) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        new = not path.exists()
        os.replace(beside, path)
        placed = True
        sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        if placed and new:
            # It may not survive a power cut, and its next reader would take it for safe.
            with contextlib.suppress(OSError):
                path.unlink()
        left = "it is whole, and may be lost in a power cut" if placed and not new else "what was there is unchanged"
        raise JsamError(f"{path} could not be written ({error.strerror}); {left}") from error


def private(path: str, flags: int) -> int:
    """An `opener` for `open`: a file that it creates is its owner's alone."""
    return os.open(path, flags, PRIVATE_FILE)


def make_folder(folder: Path, *, mode: int = PRIVATE_FOLDER) -> None:
    """Make `folder` and what is missing above it, each name flushed: a file survives a power cut if its path does.

    What is above it is made as the umask has it.
    """
    if folder.is_dir():
        return
    if folder.parent != folder:
        make_folder(folder.parent, mode=0o777)
    folder.mkdir(mode=mode, exist_ok=True)
    try:
        sync_folder(folder.parent)
    except OSError:
        # If it stayed, it would be taken for flushed the next time.
        with contextlib.suppress(OSError):
            folder.rmdir()
        raise


def sync_folder(folder: Path) -> None:
    """Make a new name in `folder` survive a power cut; where the system has no way to flush a folder, nothing."""
    if not _POSIX:
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def keep_private(path: Path, what: str) -> None:
    """Take away what other users may do with a file or folder of ours; refuse one that is somebody else's.

    What is not there passes. The parts of a folder are not looked at: nobody reaches them but through it.
    """
    if not _POSIX:
        return
    try:
        found = path.stat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(f"{what} {path} cannot be looked at: {error.strerror}") from error
    mode = found.st_mode & 0o777
    if not mode & _OTHERS:
        return
    if found.st_uid != os.geteuid():
        raise InputError(
            f"{what} {path} belongs to another user and is open to others (mode {mode:04o}); it must be yours, "
            f"and yours alone"
        )
    try:
        path.chmod(mode & ~_OTHERS)
    except OSError as error:
        raise InputError(
            f"{what} {path} is open to other users (mode {mode:04o}) and cannot be closed: {error.strerror}"
        ) from error
    logger.warning("%s %s was open to other users (mode %04o); it is %04o now", what, path, mode, mode & ~_OTHERS)
