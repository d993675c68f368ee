"""The privacy ledger: an append-only file of releases, each written down before the update it belongs to is applied.

Lines of JSON, the first naming the format. A kill can tear only the last line, which is then no whole JSON object:
opening the ledger drops that tail and never a whole record. Its release was not applied: `append` had not returned.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType

from jsam.errors import InputError, JsamError
from jsam.files import PRIVATE_FILE, sync_folder
from jsam.privacy.releases import FIELD_NAMES, Key, Release

try:
    import fcntl
except ImportError:  # a system without POSIX locks: a second writer is then not noticed
    fcntl = None  # type: ignore[assignment]

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_HEADER = b'{"jsam_ledger":1}\n'


class Ledger:
    """The one writer of a ledger file; also an iterable of all releases in it.

    A run that is resumed repeats releases. A repeated release is recorded once, if it is identical; one that differs is
    refused. In a simulated run the noise is the same too, since it follows from the run's secret key and the round.
    """

    def __init__(self, path: Path | str, *, fsync: bool = True) -> None:
        """Open or create; without `fsync` records survive a kill of the process but perhaps not a power cut."""
        self.path = Path(path)
        self.fsync = fsync
        self._releases: dict[Key, Release] = {}
        self._size = 0
        self._damaged = False
        try:
            self._handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, PRIVATE_FILE)
        except OSError as error:
            raise JsamError(f"ledger {self.path} cannot be opened: {error.strerror}") from error
        try:
            self._lock()
            self._recover()
        except BaseException:
            os.close(self._handle)
            raise

    def _lock(self) -> None:
        if fcntl is None:
            return
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise JsamError(f"ledger {self.path} is being written by another process; let it end first") from None
        except OSError:
            pass  # a file system without locks

    def _recover(self) -> None:
        with open(self._handle, "rb", closefd=False) as file:
            data = file.read()
        releases, whole, unended = _parse(data, self.path)
        self._releases = releases
        self._size = whole
        try:
            if whole < len(data):
                os.ftruncate(self._handle, whole)
            if unended:
                self._write(b"\n")
            if whole == 0:
                self._write(_HEADER)
                self._flush_name()
        except OSError as error:
            raise JsamError(f"ledger {self.path} cannot be written: {error.strerror}") from error

    def _flush_name(self) -> None:
        try:
            sync_folder(self.path.parent)
        except OSError:
            # An empty ledger is begun, and its name flushed, by whoever opens it next.
            os.ftruncate(self._handle, 0)
            raise

    def append(self, releases: Iterable[Release]) -> int:
        """Record the releases of one round, or of rounds that follow at once; how many of them were new.

        They are on disk when this returns. On failure none of them is recorded and no round of theirs must be applied.
        """
        batch: dict[Key, Release] = {}
        for release in releases:
            key = release.key
            if key in batch:
                raise InputError(
                    f"client {release.client} appears twice in {release.place}; a client drawn several times "
                    f"releases once, with its multiplicity"
                )
            batch[key] = release
        new = {key: release for key, release in batch.items() if self._is_new(key, release)}
        if new:
            self._commit(b"".join(_line(release) for release in new.values()), next(iter(new.values())).place)
            self._releases.update(new)
        return len(new)

    def _is_new(self, key: Key, release: Release) -> bool:
        recorded = self._releases.get(key)
        if recorded is None:
            return True
        for name in FIELD_NAMES:
            before, now = getattr(recorded, name), getattr(release, name)
            if before != now:
                raise InputError(
                    f"{release.place}, client {release.client} is in ledger {self.path} with {name} {before}, "
                    f"and now {now}; a repeated release must be identical (is this another run's folder?)"
                )
        return False

    def _commit(self, data: bytes, place: str) -> None:
        if self._handle < 0:
            raise JsamError(f"ledger {self.path} is closed; {place} is not recorded")
        if self._damaged:
            raise JsamError(f"ledger {self.path} could not be restored after a failed write; open it anew")
        try:
            self._write(data)
        except BaseException as error:
            try:
                os.ftruncate(self._handle, self._size)
            except OSError:
                self._damaged = True
            if not isinstance(error, OSError):
                raise
            raise JsamError(
                f"ledger {self.path} could not be written ({error.strerror}); {place} is not recorded and must "
                f"not be applied, all {len(self._releases)} earlier releases are kept"
            ) from error

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._handle, rest) :]
        if self.fsync:
            os.fsync(self._handle)
        self._size += len(data)

    def __iter__(self) -> Iterator[Release]:
        return iter(tuple(self._releases.values()))

    def __len__(self) -> int:
        return len(self._releases)

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_ledger(path: Path | str) -> tuple[Release, ...]:
    """All whole records of a ledger, which may be one that is being written; the file is not touched."""
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"ledger {path} cannot be read: {error.strerror}") from error
    releases, whole, _ = _parse(data, path)
    if whole == 0:
        raise InputError(f"ledger {path} is empty; it must be one that jsam wrote")
    return tuple(releases.values())


def _line(release: Release) -> bytes:
    return _encode(release.to_record()).encode() + b"\n"


def _parse(data: bytes, path: Path) -> tuple[dict[Key, Release], int, bool]:
    """The releases, the length up to which the file is whole, and whether its last whole record lacks only its end."""
    if not data.startswith(_HEADER):
        # Only the start of our own first line may be taken for torn: anything else is somebody's file.
        if _HEADER.startswith(data.rstrip(b"\0")):
            return {}, 0, False
        raise InputError(f"{path} is not a ledger of this version; its first line must be {_HEADER.decode().strip()}")
    lines = data[len(_HEADER) :].split(b"\n")
    tail = lines.pop()
    releases: dict[Key, Release] = {}
    for number, line in enumerate(lines, start=2):
        _add(releases, line, f"{path}, line {number}")
    unended = False
    with contextlib.suppress(_TornError):
        _add(releases, tail, f"{path}, line {len(lines) + 2}")
        unended = True
    return releases, len(data) - (0 if unended else len(tail)), unended


class _TornError(InputError):
    """Bytes that are no JSON object: at the end of the file a torn write, elsewhere damage."""


def _add(releases: dict[Key, Release], line: bytes, where: str) -> None:
    try:
        record = json.loads(line)
    except ValueError:
        record = None
    if not isinstance(record, dict):
        raise _TornError(f"{where} is damaged: it must be one whole JSON record; restore the file from a copy")
    try:
        release = Release.from_record(record)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    if release.key in releases:
        raise InputError(f"{where} repeats {release.place}, client {release.client}; each must appear once")
    releases[release.key] = release
