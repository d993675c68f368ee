"""Files that are whole or not there: a reader never meets half a result."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

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


def check_folder(output: Path) -> None:
    """Refuse an output folder that cannot be made, and the folder that the user is in, before anything is computed."""
    if output == Path():  # what an empty name means too, as of a variable that is not set
        raise InputError("output is empty, or the folder you are in; name a new one")
    if output.exists() and not output.is_dir():
        raise InputError(f"output {str(output)!r} is a file; name a folder")
    check_target(output / "config.json")
    # Permissions are not all: only who has made a folder there knows that it can be made.
    made = [place for place in (output, *output.parents) if not place.exists()]
    try:
        output.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=output).close()
    except OSError as error:
        raise InputError(
            f"output {str(output)!r} cannot be used: {error.strerror or error}; name another folder"
        ) from error
    finally:
        for place in made:
            with contextlib.suppress(OSError):
                place.rmdir()


def same_file(one: str | Path, other: str | Path) -> bool:
    """Whether writing the one would replace the other; `-` is standard input. Devices and pipes are never replaced."""
    try:
        first = os.fstat(0) if str(one) == "-" else os.stat(one)
        return stat.S_ISREG(first.st_mode) and os.path.samestat(first, os.stat(other))
    except (OSError, ValueError):  # one of them is not there yet
        return str(one) != "-" and Path(one).resolve() == Path(other).resolve()


def write_atomically(path: str | Path, content: bytes, *, private: bool = False) -> None:
    """Write a file beside its place and then move it there. Folders on the way are made.

    A `private` file can be read by its owner alone; others get the rights of any new file, or keep those they had.
    """
    with writing({path: content}, private=private):
        pass


@contextlib.contextmanager
def writing(files: Mapping[Any, bytes], *, private: bool = False) -> Iterator[None]:
    """Write files beside their places, and move them all there once the body is through; if it fails, none."""
    parts: list[tuple[Path, str]] = []
    made: list[Path] = []
    path: str | Path = ""
    try:
        for path, content in files.items():
            if not _is_device(path):
                parts.append(_part(Path(path).resolve(), content, private))
        yield
        for path, content in files.items():
            if _is_device(path):
                Path(path).write_bytes(content)
        for path, name in parts:
            new = not path.exists()
            os.replace(name, path)
            made += [path] * new
    except BaseException as error:
        for leftover in (*made, *(Path(name) for _, name in parts)):
            leftover.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise InputError(f"cannot write {str(path)!r}: {error.strerror or error}") from error
        raise


def _is_device(path: str | Path) -> bool:
    """A pipe or /dev/stdout: it cannot be replaced, only written to."""
    return Path(path).exists() and not Path(path).is_file()


def _part(target: Path, content: bytes, private: bool) -> tuple[Path, str]:
    """The content in a file of its own beside the target, ready to be moved there."""
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        if not private:  # as it was made
            os.chmod(name, target.stat().st_mode if target.exists() else 0o666 & ~_umask())
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return target, name


def _umask() -> int:
    # There is no way to look at it without setting it.
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
