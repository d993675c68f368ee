"""Results as lines of JSON, found by the key of their configuration, which a kill cannot take away."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from jsam.errors import InputError
from jsam.report.output_files import write_result


class Configuration(Protocol):
    """Everything that a result depends on."""

    @property
    def key(self) -> str:
        """A hash of the whole, the same on every machine."""
        ...

    def as_dict(self) -> dict[str, Any]:
        """All settings by name, as plain values."""
        ...


C = TypeVar("C", bound=Configuration)
ConfigOf = Callable[[Mapping[str, Any]], C]


@dataclass(frozen=True, kw_only=True)
class Record(Generic[C]):
    """A run's configuration and what came of it; `result` holds plain numbers only."""

    config: C
    result: Mapping[str, Any]

    @property
    def key(self) -> str:
        return self.config.key

    def line(self) -> str:
        stored = {"key": self.key, "config": self.config.as_dict(), "result": dict(self.result)}
        return json.dumps(stored, separators=(",", ":"), allow_nan=False) + "\n"


def read_records(path: Path, config_of: ConfigOf[C]) -> Iterator[Record[C]]:
    """The records of a file; a last line cut short by a kill is left out."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except OSError as error:
        raise InputError(f"results {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"results {path} cannot be read: not text in UTF-8") from error
    for number, line in enumerate(lines, start=1):
        try:
            stored = json.loads(line)
            record = Record(config=config_of(stored["config"]), result=stored["result"])
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines) and not line.endswith("\n"):
                return
            raise InputError(f"results {path}, line {number}: not a stored run ({error})") from error
        if record.key != stored.get("key"):
            raise InputError(f"results {path}, line {number}: key {stored.get('key')} is not that of its configuration")
        yield record


def read_folder(folder: Path, config_of: ConfigOf[C]) -> dict[str, Record[C]]:
    """All runs of all files, by key."""
    records: dict[str, Record[C]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for record in read_records(path, config_of):
            records.setdefault(record.key, record)
    return records


def append(path: Path, record: Record[Any]) -> None:
    """Add a line that a kill right after cannot take away."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab+") as file:
        if file.tell() and _last_byte(path) != b"\n":
            # The end of a line that a kill cut short would swallow this one.
            whole = path.read_bytes()
            file.truncate(whole.rfind(b"\n") + 1)
        file.write(record.line().encode())
        file.flush()
        os.fsync(file.fileno())


def _last_byte(path: Path) -> bytes:
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1)


def write_sorted(path: Path, records: Iterable[Record[C]], order: Callable[[Record[C]], Any]) -> None:
    """The file in its settled form: one line a run, in this order, so that equal results are equal files."""
    unique = {record.key: record for record in records}
    write_result(path, "".join(record.line() for record in sorted(unique.values(), key=order)).encode())
