"""Files that are either there in full or not at all, and that nobody but their owner may read.

Books, reports, offers and keys tell what somebody's privacy costs. So whatever is written here has the mode 0600, and
a folder that is made here 0700, from the moment at which it appears and whatever the umask is.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jsam.errors import InputError, JsamError

logger = logging.getLogger("jsam")

PRIVATE_FILE, PRIVATE_FOLDER, PRIVATE_UMASK = 0o600, 0o700, 0o077
_OTHERS = 0o077
# Windows has neither these rights nor folders that can be flushed.
_POSIX = os.name == "posix"


def write_atomically(path: Path, data: bytes | memoryview) -> None:
    """Write beside `path`, flush to disk, then rename: a kill or a full disk leaves what was there before.

    Where the folder cannot be flushed the write has failed: a new file is then removed again, and a file that took the
    place of another one is whole, but after a power cut the other one may be back.
    """
    part, placed, new = None, False, True
    try:
        new = not path.exists()
        part = write_part(path, data)
        os.replace(part, path)
        placed = True
        sync_folder(path.parent)
    except OSError as error:
        if placed and new:
            # It may not survive a power cut, and its next reader would take it for safe.
            with contextlib.suppress(OSError):
                path.unlink()
        left = "it is whole, and may be lost in a power cut" if placed and not new else "what was there is unchanged"
        raise JsamError(f"{path} could not be written ({error.strerror}); {left}") from error
    finally:
        if part is not None and not placed:
            with contextlib.suppress(OSError):
                part.unlink()


def write_part(path: Path, data: bytes | memoryview) -> Path:
    """Write a new file beside `path`, flushed to disk, that can take its place; return where it is.

    It is its owner's alone from the moment at which it appears: one that is closed later may have been opened before.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
    return Path(name)


def read_json(
    path: Path | str, what: str = "", *, error: type[JsamError] = InputError, advice: str = ""
) -> dict[str, Any]:
    """Return the object in a JSON file. Otherwise raise `error`, naming the file as `what`, with the advice."""
    return _read_table(path, what, "JSON", json.loads, error, advice)


def read_toml(path: Path | str, what: str = "") -> dict[str, Any]:
    """Return the table in a TOML file. If there is none, raise `InputError`, which names the file as `what`."""
    return _read_table(path, what, "TOML", tomllib.loads, InputError, "")


def _read_table(
    path: Path | str, what: str, kind: str, parse: Callable[[str], Any], error: type[JsamError], advice: str
) -> dict[str, Any]:
    name, end = f"{what} {path}".strip(), f"; {advice}" if advice else ""
    try:
        table = parse(Path(path).read_text(encoding="utf-8"))
    except OSError as trouble:
        raise error(f"{name} cannot be read: {trouble.strerror}{end}") from trouble
    except (ValueError, RecursionError) as trouble:  # not JSON, not TOML, or not even text
        raise error(f"{name} is not {kind}, or damaged: {trouble}{end}") from trouble
    if not isinstance(table, dict):
        raise error(f"{name} is damaged: it must hold one {kind} object{end}")
    return table


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The objects in a file that has one on each line; an empty list where there is no such file.

    A line that is not whole is left out: the last one may be torn while a run goes on.
    """
    objects = []
    if path.exists():
        with path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                with contextlib.suppress(ValueError):
                    objects.append(json.loads(line))
    return [content for content in objects if isinstance(content, dict)]


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
        state = path.stat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(f"{what} {path} cannot be looked at: {error.strerror}") from error
    mode = state.st_mode & 0o777
    if not mode & _OTHERS:
        return
    if state.st_uid != os.geteuid():
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
