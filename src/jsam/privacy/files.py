"""Files that are either there in full or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from jsam.errors import JsamError


def write_atomically(path: Path, data: bytes) -> None:
    """Write beside `path`, flush to disk, then rename: a kill or a full disk leaves what was there before."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(beside, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
        sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise JsamError(
            f"{path} could not be written ({error.strerror}); what was there before is unchanged"
        ) from error


def make_folder(folder: Path, *, mode: int = 0o777) -> None:
    """Make `folder` and what is missing above it, each name flushed: a file survives a power cut if its path does."""
    if folder.is_dir():
        return
    if folder.parent != folder:
        make_folder(folder.parent)
    folder.mkdir(mode=mode, exist_ok=True)
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make a new name in `folder` survive a power cut, on systems where a folder can be flushed."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
