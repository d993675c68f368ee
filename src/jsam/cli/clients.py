"""CLIENTS.csv: the reports as a spreadsheet saves them, with errors that name the file, the line and the client."""

from __future__ import annotations

import csv
import difflib
import io
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from jsam.errors import InputError, NotSupportedError, ReportError
from jsam.mechanism.halves import HALVES, learned_priors
from jsam.mechanism.lots import priors_by_lots
from jsam.mechanism.market import Market
from jsam.mechanism.priors import Prior, parse_prior

REQUIRED = ("id", "sensitivity")
OPTIONAL = ("samples", "loss", "prior", "selection_prob")
_SHOWN = 8
PRIOR_EXAMPLES = "uniform:0,1  beta:2,5  lognorm:s=0.5,scale=0.3  empirical:PAST.csv"


@dataclass(frozen=True, kw_only=True)
class ClientTable:
    """The rows of the file, not yet looked at beyond their ids."""

    source: str
    columns: dict[str, list[str]]
    lines: list[int]
    unused: tuple[str, ...] = ()

    @property
    def ids(self) -> list[str]:
        return self.columns["id"]

    def __len__(self) -> int:
        return len(self.lines)

    def at(self, client: int) -> str:
        """Where a client stands, for messages."""
        return f"{self.source} line {self.lines[client]}"

    @property
    def note(self) -> str:
        """What was in the file and is not used, in one line; nothing if all is."""
        if not self.unused:
            return ""
        shown = ", ".join(map(repr, self.unused[:_SHOWN])) + (", …" if len(self.unused) > _SHOWN else "")
        which = "column" if len(self.unused) == 1 else "columns"
        return f"{self.source}: {which} {shown} not used; known are {', '.join((*REQUIRED, *OPTIONAL))}"

    @contextmanager
    def locating_errors(self) -> Iterator[None]:
        """Say in which line stands a client that the planner refuses."""
        try:
            yield
        except ReportError as error:
            raise InputError(f"{self.at(error.client)}: {error}") from error

    def numbers(self, column: str, allowed: str, good: Callable[[float], bool]) -> list[float] | None:
        """A column of finite numbers that are all `good`; None if the file does not have it."""
        cells = self.columns.get(column)
        if cells is None:
            return None
        values = []
        for client, cell in enumerate(cells):
            try:
                # Python reads 1_000 as a number; no spreadsheet writes it.
                value = float(cell) if "_" not in cell else math.nan
            except ValueError:
                value = math.nan
            if not (math.isfinite(value) and good(value)):
                who = f"{self.at(client)}: client {self.ids[client]!r}"
                state = f"has {column} {cell!r}" if cell else f"has no {column}"
                raise InputError(f"{who} {state}; {allowed} is needed")
            values.append(value)
        return values

    def market(self, prior: str | None, *, lot: int | None = None, seed: int = 0) -> Market:
        """The market of these clients, the prior from the command line where a client has none of its own.

        With a `lot` priors are those of the price of so many records. The prior `halves` is learned from the reports,
        for each of two halves that `seed` draws from those of the other.
        """
        sensitivities = self.numbers("sensitivity", "a positive, finite number", lambda x: x > 0)
        losses = self.numbers("loss", "a finite number", lambda x: True)
        samples = self.numbers("samples", "a whole number of 1 or more", lambda x: x >= 1 and x == int(x))
        if lot is not None and samples is None:
            raise InputError(f"{self.source} has no column 'samples', by which --lot counts data")
        lots = np.ones(len(self)) if lot is None else np.array(samples) / lot
        priors: Prior | Sequence[Prior]
        if prior == HALVES:
            if self.num_own_priors:
                raise InputError(f"{self.source} has a column 'prior', and --prior {HALVES} learns everybody's")
            priors = learned_priors(np.array(sensitivities) / lots, self.ids, seed)
        else:
            priors = self._priors(prior)
        if lot is not None:
            priors = priors_by_lots(priors, [int(x) for x in samples or ()], lot)
        with self.locating_errors():
            try:
                return Market(
                    sensitivities=np.array(sensitivities),
                    prior=priors,
                    ids=self.ids,
                    samples=None if samples is None else [int(x) for x in samples],
                    losses=None if losses is None else np.array(losses),
                )
            except NotSupportedError as error:
                raise InputError(f"{self.source}: {error}") from error

    def _priors(self, shared: str | None) -> Prior | list[Prior]:
        own = self.columns.get("prior", [])
        if shared is None and not (own and all(own)):
            client = own.index("") if any(own) else None
            whose = "" if client is None else f" for client {self.ids[client]!r} ({self.at(client)})"
            raise InputError(
                f"no prior{whose}: give --prior, what is known about sensitivities before anybody reports, such as"
                f" {PRIOR_EXAMPLES}"
            )
        parsed: dict[str, Prior] = {}
        if shared is not None:
            parsed[""] = parse_prior(shared)
        if not any(own):
            return parsed[""]
        for client, text in enumerate(own):
            if text not in parsed:
                try:
                    parsed[text] = parse_prior(text)
                except InputError as error:
                    raise InputError(f"{self.at(client)}: client {self.ids[client]!r}: {error}") from error
        return [parsed[text] for text in own]

    @property
    def num_own_priors(self) -> int:
        """How many clients have a prior of their own."""
        return sum(map(bool, self.columns.get("prior", [])))

    def selection_probs(self) -> list[float]:
        """The column that importance-compensated USBM selects by."""
        probs = self.numbers("selection_prob", "a number above 0 and up to 1", lambda x: 0 < x <= 1)
        if probs is None:
            raise InputError(f"{self.source} has no column 'selection_prob', which usbm-compensated selects by")
        total = math.fsum(probs)
        if abs(total - 1) > 1e-6:
            raise InputError(f"{self.source}: column 'selection_prob' sums to {total:.9g}; it must sum to 1")
        return [p / total for p in probs]


def read_clients(path: str) -> ClientTable:
    """The table in a file, or on standard input if the path is `-`."""
    source = "standard input" if path == "-" else path
    rows = _rows(source, _text(source, path))
    header = next(rows, None)
    if header is None:
        raise InputError(f"{source} is empty; a header line with id,sensitivity and one line a client are needed")
    names = [name.casefold() for name in header[1]]
    for name in REQUIRED:
        if name not in names:
            headings = ", ".join(repr(cell) for cell in header[1][:8])
            hint = (
                "; separate the columns with commas"
                if len(names) == 1 and (";" in headings or r"\t" in headings)
                else ""
            )
            raise InputError(f"{source} line {header[0]}: no column {name!r} among {headings[:200]}{hint}")
    known = [name for name in (*REQUIRED, *OPTIONAL) if name in names]
    for name in names:
        meant = difflib.get_close_matches(name, OPTIONAL, n=1, cutoff=0.8)
        if name not in known and meant and meant[0] not in known:
            raise InputError(f"{source} line {header[0]}: column {name!r} is not known; is it {meant[0]!r}?")
    for name in known:
        if names.count(name) > 1:
            raise InputError(f"{source} line {header[0]}: column {name!r} stands twice")
    table = _table(source, rows, len(names), {name: names.index(name) for name in known})
    if not len(table):
        raise InputError(f"{source} has a header but no clients; one line a client is needed")
    unused = (cell for cell, name in zip(header[1], names, strict=True) if name and name not in known)
    return replace(table, unused=tuple(unused))


def read_sizes(path: str) -> tuple[int, ...]:
    """The column `samples` of a CSV file with a line for each client, such as `jsam data partition` writes."""
    rows = _rows(path, _text(path, path, "samples"))
    header = next(rows, (1, []))
    names = [name.casefold() for name in header[1]]
    if "samples" not in names:
        raise InputError(
            f"{path} line {header[0]}: no column 'samples'; --sizes needs one, with a line for each client"
        )
    sizes = []
    for line, row in rows:
        cell = row[names.index("samples")] if len(row) == len(names) else ""
        if not cell.isdecimal() or int(cell) < 1:
            raise InputError(f"{path} line {line}: samples is {cell!r}; a whole number of 1 or more is needed")
        sizes.append(int(cell))
    if not sizes:
        raise InputError(f"{path} has a header but no clients; one line a client is needed")
    return tuple(sizes)


def _table(source: str, rows: Iterator[tuple[int, list[str]]], width: int, places: dict[str, int]) -> ClientTable:
    columns: dict[str, list[str]] = {name: [] for name in places}
    first_line: dict[str, int] = {}
    for line, row in rows:
        if len(row) != width:
            raise InputError(f"{source} line {line}: {len(row)} cells, but the header has {width}")
        name = row[places["id"]]
        if not name:
            raise InputError(f"{source} line {line}: the client has no id; every client needs one of its own")
        if name in first_line:
            raise InputError(
                f"{source} line {line}: id {name!r} stands already in line {first_line[name]}; every client needs an"
                " id of its own"
            )
        first_line[name] = line
        for column, place in places.items():
            columns[column].append(row[place])
    return ClientTable(source=source, columns=columns, lines=list(first_line.values()))


def _text(source: str, path: str, needed: str = "id,sensitivity") -> str:
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot read {source}: {reason}; a CSV file with {needed} is needed") from error
    if b"\0" not in data:
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError:
            pass
    raise InputError(f"{source} is not text in UTF-8; a CSV file with {needed} is needed")


def _rows(source: str, text: str) -> Iterator[tuple[int, list[str]]]:
    """Rows with something in them, each with the line it begins in."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    end = 0
    try:
        for row in reader:
            line, end = end + 1, reader.line_num
            cells = [cell.strip() for cell in row]
            if any(cells):
                yield line, cells
    except csv.Error as error:
        raise InputError(f"{source} line {end + 1}: not CSV ({error})") from error
