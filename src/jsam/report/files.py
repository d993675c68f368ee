"""Files that are whole or not there: a reader never meets half a result."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from jsam.errors import InputError


def check_target(path: str | Path) -> None:
    """Refuse a path that could never be written, before anything long is computed for it."""
    path = Path(path)
    if path.is_dir():
        raise InputError(f"cannot write {str(path)!r}: it is a folder; a file name is needed")
    nearest = next(place for place in (path.absolute(), *path.absolute().parents) if place.exists())
    if nearest != path.absolute() and not nearest.is_dir():
        raise InputError(f"cannot write {str(path)!r}: {str(nearest)!r} is not a folder")
    if not os.access(nearest, os.W_OK):
        raise InputError(f"cannot write {str(path)!r}: no permission to write {str(nearest)!r}")


def write_atomically(path: str | Path, content: bytes) -> None:
    """Write a file beside its place and then move it there. Folders on the way are made."""
    try:
        target = Path(path).resolve()
        if target.exists() and not target.is_file():
            # A pipe or /dev/stdout: it cannot be replaced, only written to.
            target.write_bytes(content)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        _replace(target, content)
    except OSError as error:
        raise InputError(f"cannot write {str(path)!r}: {error.strerror or error}") from error


def _replace(target: Path, content: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(name, target.stat().st_mode if target.exists() else 0o666 & ~_umask())
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _umask() -> int:
    # There is no way to look at it without setting it.
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
