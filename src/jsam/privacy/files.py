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


def sync_folder(folder: Path) -> None:
    """Make a new name in `folder` survive a power cut, on systems where a folder can be flushed."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
