"""The stored runs of the paper's experiments: a file an experiment, found by key, merged in any order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from jsam.errors import InputError
from jsam.sweeps import result_store
from jsam.sweeps.device_time import FILE, merge_sweeps
from jsam.sweeps.result_store import append
from reproduction.config import RunConfig
from reproduction.paths import PLANS, Places
from reproduction.planning import merge_plans

Record = result_store.Record[RunConfig]
__all__ = ["Record", "append", "merge", "read_folder", "read_places", "read_records", "write_sorted"]


def read_records(path: Path) -> Iterator[Record]:
    """The records of a file; a last line cut short by a kill is left out."""
    return result_store.read_records(path, RunConfig.from_dict)


def read_folder(folder: Path) -> dict[str, Record]:
    """All runs of all files, by key."""
    return result_store.read_folder(folder, RunConfig.from_dict)


def read_places(places: Places) -> dict[str, Record]:
    """All that is stored, also what is not merged yet; where both have a run, that of the results counts."""
    return {**read_folder(places.output), **read_folder(places.results)}


def write_sorted(path: Path, records: Iterable[Record]) -> None:
    """The file in its settled form: one line a run, by configuration."""
    result_store.write_sorted(path, records, _order)


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
