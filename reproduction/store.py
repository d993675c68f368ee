"""Results as lines of JSON, a file an experiment; found by key wherever they stand, merged in any order."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsam.errors import InputError
from jsam.report.output_files import write_result
from reproduction.config import RunConfig
from reproduction.paths import PLANS, Places
from reproduction.planning import merge_plans
from reproduction.sweeps import FILE, merge_sweeps


@dataclass(frozen=True, kw_only=True)
class Record:
    """A run's configuration and what came of it; `result` holds plain numbers only."""

    config: RunConfig
    result: Mapping[str, Any]

    @property
    def key(self) -> str:
        return self.config.key

    def line(self) -> str:
        stored = {"key": self.key, "config": self.config.as_dict(), "result": dict(self.result)}
        return json.dumps(stored, separators=(",", ":"), allow_nan=False) + "\n"


def read_records(path: Path) -> Iterator[Record]:
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
            record = Record(config=RunConfig.from_dict(stored["config"]), result=stored["result"])
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines) and not line.endswith("\n"):
                return
            raise InputError(f"results {path}, line {number}: not a stored run ({error})") from error
        if record.key != stored.get("key"):
            raise InputError(f"results {path}, line {number}: key {stored.get('key')} is not that of its configuration")
        yield record


def read_folder(folder: Path) -> dict[str, Record]:
    """All runs of all files, by key."""
    records: dict[str, Record] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for record in read_records(path):
            records.setdefault(record.key, record)
    return records


def read_places(places: Places) -> dict[str, Record]:
    """All that is stored, also what is not merged yet; where both have a run, that of the results counts."""
    return {**read_folder(places.output), **read_folder(places.results)}


def append(path: Path, record: Record) -> None:
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


def write_sorted(path: Path, records: Iterable[Record]) -> None:
    """The file in its settled form: one line a run, by configuration, so that equal results are equal files."""
    unique = {record.key: record for record in records}
    ordered = sorted(unique.values(), key=_order)
    write_result(path, "".join(record.line() for record in ordered).encode())


def _order(record: Record) -> tuple[Any, ...]:
    c = record.config
    return (c.dataset, c.seed, -c.similarity, c.cost, c.mechanism, record.key)


def merge(source: Path, target: Path) -> tuple[int, int]:
    """Bring the runs of one folder into another, with their plans: (new, known already). What is there stays."""
    if not source.is_dir():
        raise InputError(f"{source} is not a folder with results")
    if not any(source.glob("*.jsonl")) and not any((source / name).exists() for name in (FILE, PLANS)):
        raise InputError(f"{source} has no results, NAME.jsonl")
    known = read_folder(target)
    new = same = 0
    for path in sorted(source.glob("*.jsonl")):
        place = target / path.name
        records = list(read_records(place)) if place.exists() else []
        for record in read_records(path):
            if record.key in known:
                same += 1
                continue
            known[record.key] = record
            records.append(record)
            new += 1
        if records:
            write_sorted(place, records)
    merge_sweeps(source, target)
    merge_plans(source / PLANS, target / PLANS)
    return new, same
