"""An append-only file whose lines are chained by hashes, and a head beside it that says where the file must end.

Each line holds a record and the hash of the line before it, so no line can be edited, moved, left out or brought in
from another chain without a break that is found when the file is read. The head holds the number of lines and the hash
of the last one, so lines at the end cannot be cut off either. What is left: chain and head set back together.

An append flushes the line first and then replaces the head. So a kill leaves one of three states: the line torn (it is
dropped, `append` had not returned), the line whole and the head one line behind (the line counts), or both done.
Anything else is no trace of a kill, and `ChainError` names the file. A line that was written is never forgotten.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jsam.errors import JsamError
from jsam.files import write_atomically

_HEADER = b'{"jsam_chain":1}'
_READS = 50


class ChainError(JsamError):
    """The chain is not as it was left."""


class Chain:
    """All records of a chain, in order; `append` is for whoever holds the lock that its owner keeps."""

    def __init__(self, path: Path, head: Path) -> None:
        """Read and check; nothing is written before the first `append`, so this may be done while another appends."""
        self.path, self.head = path, head
        self.records: list[dict[str, Any]] = []
        self._last = _hash(_HEADER)
        self._size = 0
        self._head_behind = False
        for _ in range(_READS):
            before, data, after = _read(head), _read(path), _read(head)
            # The two files are read one after the other: only what no append came between fits together.
            if before == after:
                break
        else:
            raise ChainError(f"{path} is being written too often to be read")
        self._load(data, after)

    @property
    def exists(self) -> bool:
        """Whether anything was ever appended or begun."""
        return self._size > 0

    @property
    def last_hash(self) -> str:
        """The hash of the last line, which stands for the whole chain."""
        return self._last

    def append(self, record: Mapping[str, Any]) -> None:
        """On disk when this returns. When it raises, the record may be in the chain or not: read the chain anew."""
        if not self.exists:
            write_atomically(self.path, _HEADER + b"\n")
            self._size = len(_HEADER) + 1
            self._head_behind = True
        if self._head_behind:
            self._write_head()
        line = json.dumps(
            {"previous": self._last, "record": record}, sort_keys=True, separators=(",", ":"), allow_nan=False
        ).encode()
        self._write_line(line + b"\n")
        self.records.append(dict(record))
        self._last = _hash(line)
        self._head_behind = True
        self._write_head()

    def _load(self, data: bytes | None, head: bytes | None) -> None:
        if data is None:
            if head is not None:
                raise ChainError(f"{self.path} is gone, though {self.head.name} is there")
            return
        lines = data.split(b"\n")
        tail = lines.pop()
        if not lines or lines[0] != _HEADER:
            raise ChainError(f"{self.path} is damaged: its first line must be {_HEADER.decode()}")
        self._size = len(data) - len(tail)
        hashes = [self._last]
        for number, line in enumerate(lines[1:], start=2):
            self.records.append(self._record(line, hashes[-1], number))
            hashes.append(_hash(line))
        self._last = hashes[-1]
        if head is None:
            if self.records:
                raise ChainError(f"{self.head} is gone, though {self.path.name} has records")
            self._head_behind = True
            return
        count, expected = self._parse_head(head)
        if count not in (len(self.records), len(self.records) - 1):
            raise ChainError(f"{self.path} has {len(self.records)} records; {self.head.name} counts {count}")
        if hashes[count] != expected:
            raise ChainError(f"{self.path} is not the chain that {self.head.name} is of")
        self._head_behind = count < len(self.records)

    def _record(self, line: bytes, previous: str, number: int) -> dict[str, Any]:
        try:
            stored = json.loads(line)
            record, before = stored["record"], stored["previous"]
        except (ValueError, KeyError, TypeError, RecursionError):
            record, before = None, None
        if not isinstance(record, dict):
            raise ChainError(f"{self.path}, line {number} is damaged: it must be one whole record of the chain")
        if before != previous:
            raise ChainError(f"{self.path}, line {number} does not follow the line before it")
        return record

    def _parse_head(self, head: bytes) -> tuple[int, str]:
        try:
            stored = json.loads(head)
            count, last = stored["count"], stored["hash"]
        except (ValueError, KeyError, TypeError, RecursionError):
            count, last = None, None
        if type(count) is not int or count < 0 or not isinstance(last, str):
            raise ChainError(f"{self.head} is damaged: it must hold the count and the hash of {self.path.name}")
        return count, last

    def _write_head(self) -> None:
        content = {"count": len(self.records), "hash": self._last}
        write_atomically(self.head, json.dumps(content).encode() + b"\n")
        self._head_behind = False

    def _write_line(self, line: bytes) -> None:
        try:
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        except OSError as error:
            raise JsamError(f"{self.path} cannot be opened: {error.strerror}") from error
        try:
            os.ftruncate(handle, self._size)  # what a kill left of a line that was never whole
            rest = memoryview(line)
            while rest:
                rest = rest[os.write(handle, rest) :]
            os.fsync(handle)
            self._size += len(line)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(handle, self._size)
            raise JsamError(f"{self.path} cannot be written: {error.strerror}") from error
        finally:
            os.close(handle)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ChainError(f"{path} cannot be read: {error.strerror}") from error


def _hash(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()
