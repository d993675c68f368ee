"""Results at places that the user named: checked beforehand, and written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jsam.errors import InputError
from jsam.files import write_part


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


def same_file(path: str | Path, other: str | Path) -> bool:
    """Whether writing one file would replace the other; `-` is standard input. Devices and pipes are never replaced."""
    try:
        first = os.fstat(0) if str(path) == "-" else os.stat(path)
        return stat.S_ISREG(first.st_mode) and os.path.samestat(first, os.stat(other))
    except (OSError, ValueError):  # one of them is not there yet
        return str(path) != "-" and Path(path).resolve() == Path(other).resolve()


def write_result(path: str | Path, content: bytes) -> None:
    """Write a file beside its place and then move it there. Folders on the way are made."""
    with writing({path: content}):
        pass


@contextlib.contextmanager
def writing(files: Mapping[Any, bytes]) -> Iterator[None]:
    """Write files beside their places, and move them all there once the body is through; if it fails, none.

    They get the rights of any new file, or keep those that they had.
    """
    parts: list[tuple[Path, Path]] = []
    made: list[Path] = []
    path: str | Path = ""
    try:
        for path, content in files.items():
            if not _is_device(path):
                target = Path(path).resolve()
                target.parent.mkdir(parents=True, exist_ok=True)
                parts.append((target, write_part(target, content)))
                parts[-1][1].chmod(target.stat().st_mode if target.exists() else 0o666 & ~_umask())
        yield
        for path, content in files.items():
            if _is_device(path):
                Path(path).write_bytes(content)
        for path, part in parts:
            new = not path.exists()
            os.replace(part, path)
            made += [path] * new
    except BaseException as error:
        for leftover in (*made, *(part for _, part in parts)):
            leftover.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise InputError(f"cannot write {str(path)!r}: {error.strerror or error}") from error
        raise


def _is_device(path: str | Path) -> bool:
    """A pipe or /dev/stdout: it cannot be replaced, only written to."""
    return Path(path).exists() and not Path(path).is_file()


def _umask() -> int:
    # There is no way to look at it without setting it.
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
