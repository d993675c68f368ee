"""Both sides' storage in SQLite: a second implementation, which shares no code with the folders.

Each method stores in one transaction, so what a method stored is there when it returns. The lock is a transaction
in a database beside it, which the system ends with its process.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import pickle
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsam.campaign.campaign_rules import CampaignRules
from jsam.campaign.client.client_files import ClientFiles
from jsam.campaign.client.client_storage import RULES, DamagedError
from jsam.campaign.messages import Vector
from jsam.campaign.refusal import Reason, Refused
from jsam.campaign.server.storage import Agreement, ModelState, Report
from jsam.campaign.terms import Terms
from jsam.errors import InputError, JsamError
from jsam.privacy import Release

_CLIENT = """
CREATE TABLE IF NOT EXISTS campaigns (name TEXT PRIMARY KEY, published TEXT, terms TEXT, closed INTEGER DEFAULT 0);
CREATE TABLE IF NOT EXISTS offers (name TEXT, mark TEXT, code TEXT, text TEXT, PRIMARY KEY (name, mark));
CREATE TABLE IF NOT EXISTS releases (
    id INTEGER PRIMARY KEY, name TEXT, round INTEGER, record TEXT, model TEXT, reply BLOB, digest TEXT,
    UNIQUE (name, round)
);
CREATE TABLE IF NOT EXISTS paused (since INTEGER PRIMARY KEY);
"""
_SERVER = """
CREATE TABLE IF NOT EXISTS saved (name TEXT PRIMARY KEY, value BLOB);
CREATE TABLE IF NOT EXISTS releases (id INTEGER PRIMARY KEY, record TEXT);
CREATE TABLE IF NOT EXISTS replies (round INTEGER, client TEXT, value BLOB, PRIMARY KEY (round, client));
CREATE TABLE IF NOT EXISTS metrics (id INTEGER PRIMARY KEY, record TEXT);
"""


_Step = tuple[str, Sequence[object]]


class _Tables:
    def __init__(self, path: Path, schema: str) -> None:
        self.path, self._schema = path, schema

    def run(self, statement: str, *values: object) -> list[Any]:
        """The rows that one statement gives."""
        return self.together((statement, values))

    def together(self, *steps: _Step) -> list[Any]:
        """All of these statements or none; the rows that the last of them gives."""
        rows: list[Any] = []
        try:
            with contextlib.closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
                connection.executescript(self._schema)
                connection.execute("BEGIN")
                for statement, values in steps:
                    rows = connection.execute(statement, values).fetchall()
                connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise JsamError(f"{self.path} cannot be used: {error}") from error
        return rows

    @contextlib.contextmanager
    def locked(self, wait: float) -> Iterator[None]:
        lock = self.path.with_suffix(".lock")
        with contextlib.closing(sqlite3.connect(lock, timeout=wait, isolation_level=None)) as connection:
            try:
                connection.execute("BEGIN EXCLUSIVE")
            except sqlite3.OperationalError as error:
                raise Refused(Reason.BUSY, "another process has the books") from error
            yield


class ClientTables:
    """`ClientStorage` in SQLite."""

    def __init__(self, path: Path) -> None:
        self._tables = _Tables(path, _CLIENT)

    @contextlib.contextmanager
    def writing(self, wait: float) -> Iterator[TableBooks]:
        with self._tables.locked(wait):
            yield self.reading()

    def reading(self, *, thorough: bool = False) -> TableBooks:
        books = TableBooks(self._tables)
        for (problem,) in self._tables.run("PRAGMA integrity_check" if thorough else "PRAGMA quick_check"):
            if problem != "ok":
                raise DamagedError(f"{self._tables.path}: {problem}")
        return books

    @property
    def paused(self) -> bool:
        return bool(self._tables.run("SELECT since FROM paused"))

    def pause(self, on: bool) -> None:
        self._tables.run("INSERT OR IGNORE INTO paused VALUES (0)" if on else "DELETE FROM paused")


class TableBooks:
    """`OpenBooks` in SQLite."""

    def __init__(self, tables: _Tables) -> None:
        self._tables = tables

    def campaign(self, name: str) -> TableCampaign:
        return TableCampaign(self._tables, name)

    def campaigns(self) -> list[TableCampaign]:
        names = self._tables.run("SELECT name FROM campaigns UNION SELECT name FROM offers ORDER BY name")
        return [self.campaign(name) for (name,) in names]


class TableCampaign:
    """`CampaignRecords` in SQLite."""

    def __init__(self, tables: _Tables, name: str) -> None:
        self._tables, self._name = tables, name

    @property
    def where(self) -> str:
        return f"{self._tables.path}, campaign {self._name}"

    def _one(self, column: str) -> Any:
        rows = self._tables.run(f"SELECT {column} FROM campaigns WHERE name = ?", self._name)
        return rows[0][0] if rows else None

    def _setting(self, column: str, value: object) -> _Step:
        upsert = f"INSERT INTO campaigns (name, {column}) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET {column} = ?2"
        return upsert, (self._name, value)

    def _noting(self, mark: str, refusal: Refused | None) -> _Step:
        said = (None, None) if refusal is None else (refusal.code.value, refusal.text)
        return "INSERT OR REPLACE INTO offers VALUES (?, ?, ?, ?)", (self._name, mark, *said)

    @property
    def published(self) -> str | None:
        text: str | None = self._one("published")
        return text

    def keep_published(self, text: str, refusal: Refused | None) -> None:
        refused = [] if refusal is None else [self._noting(RULES, refusal)]
        self._tables.together(self._setting("published", text), *refused)

    def offers(self) -> dict[str, Refused | None]:
        rows = self._tables.run("SELECT mark, code, text FROM offers WHERE name = ?", self._name)
        return {mark: None if code is None else Refused(Reason(code), text) for mark, code, text in rows}

    def note_offer(self, mark: str, refusal: Refused | None) -> None:
        self._tables.together(self._noting(mark, refusal))

    @property
    def known(self) -> bool:
        return self._one("terms") is not None

    @property
    def terms(self) -> Terms:
        return Terms.from_json(self._one("terms"))

    def accept(self, terms: Terms) -> None:
        self._tables.together(self._setting("terms", terms.to_json()))

    def releases(self) -> list[Release]:
        rows = self._tables.run("SELECT record FROM releases WHERE name = ? ORDER BY id", self._name)
        return [Release.from_record(json.loads(record)) for (record,) in rows]

    def record(self, release: Release, model: str) -> None:
        record = json.dumps(release.to_record())
        insert = "INSERT INTO releases (name, round, record, model) VALUES (?, ?, ?, ?)"
        self._tables.run(insert, self._name, release.round, record, model)

    def _of_round(self, column: str, round: int) -> Any:
        rows = self._tables.run(f"SELECT {column} FROM releases WHERE name = ? AND round = ?", self._name, round)
        return rows[0][0] if rows else None

    def model(self, round: int) -> str | None:
        digest: str | None = self._of_round("model", round)
        return digest

    def reply(self, round: int) -> bytes | None:
        digest, stored = self._of_round("digest", round), self._of_round("reply", round)
        if digest is not None and (stored is None or hashlib.sha256(stored).hexdigest() != digest):
            raise DamagedError(f"{self.where}: the reply to round {round} is not as it was given out")
        reply: bytes | None = stored
        return reply

    def keep(self, round: int, reply: bytes) -> None:
        if not self.answered(round):
            update = "UPDATE releases SET reply = ?, digest = ? WHERE name = ? AND round = ?"
            self._tables.run(update, reply, hashlib.sha256(reply).hexdigest(), self._name, round)

    def answered(self, round: int) -> bool:
        return self._of_round("digest", round) is not None

    def _sizes(self) -> list[tuple[int, int]]:
        select = "SELECT round, length(reply) FROM releases WHERE name = ? AND reply IS NOT NULL ORDER BY round"
        return self._tables.run(select, self._name)

    def replies_size(self) -> int:
        return sum(size for _, size in self._sizes())

    def drop_replies(self, most: int) -> None:
        for round, _ in self._sizes()[:-1]:
            if self.replies_size() > most:
                drop = "UPDATE releases SET reply = NULL WHERE name = ? AND round = ?"
                self._tables.run(drop, self._name, round)

    @property
    def closed(self) -> bool:
        return bool(self._one("closed"))

    def close(self) -> None:
        dropping = "UPDATE releases SET reply = NULL WHERE name = ?", (self._name,)
        self._tables.together(self._setting("closed", 1), dropping)


@dataclass(frozen=True, kw_only=True)
class TableFiles(ClientFiles):
    """A client whose books are in SQLite, beside where its folder would be."""

    def storage(self) -> ClientTables:
        return ClientTables(self.ledger.with_suffix(".sqlite"))


class ServerTables:
    """`ServerStorage` in SQLite."""

    def __init__(self, path: Path) -> None:
        self._tables = _Tables(path, _SERVER)

    def _save(self, name: str, value: object) -> None:
        self._tables.run("INSERT OR REPLACE INTO saved VALUES (?, ?)", name, pickle.dumps(value))

    def _saved(self, name: str) -> Any:
        rows = self._tables.run("SELECT value FROM saved WHERE name = ?", name)
        return pickle.loads(rows[0][0]) if rows else None

    def begin(self, rules: CampaignRules) -> None:
        if self._saved("published") not in (None, rules.as_dict()):
            raise InputError("another campaign is here; what was published cannot change")
        self._save("published", rules.as_dict())

    @contextlib.contextmanager
    def writing(self) -> Iterator[LedgerTable]:
        with self._tables.locked(wait=0.0):
            yield LedgerTable(self._tables)

    @contextlib.contextmanager
    def telling_the_end(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._save("outcome", type(error).__name__)
            raise
        self._save("outcome", "complete")

    def nodes(self) -> dict[str, int]:
        return self._saved("nodes") or {}

    def save_nodes(self, nodes: Mapping[str, int]) -> None:
        self._save("nodes", dict(nodes))

    def reports(self, rules: CampaignRules) -> dict[str, Report] | None:
        reports: dict[str, Report] | None = self._saved("reports")
        return reports

    def rejected(self) -> dict[str, str]:
        return self._saved("rejected") or {}

    def save_reports(self, reports: Mapping[str, Report], rejected: Mapping[str, str] | None = None) -> None:
        self._save("rejected", dict(rejected or {}))
        self._save("reports", dict(reports))

    def draft(self, rules: CampaignRules, attempt: int) -> Agreement | None:
        draft: Agreement | None = self._saved(f"offer {attempt}")
        return draft

    def save_draft(self, attempt: int, draft: Agreement) -> None:
        self._save(f"offer {attempt}", draft)

    def agreement(self, rules: CampaignRules) -> Agreement | None:
        agreement: Agreement | None = self._saved("agreement")
        return agreement

    def save_agreement(self, rules: CampaignRules, agreement: Agreement, environment: Mapping[str, str]) -> None:
        self._save("environment", dict(environment))
        self._save("agreement", agreement)

    def state(self) -> ModelState | None:
        state: ModelState | None = self._saved("state")
        return state

    def save_state(self, state: ModelState) -> None:
        self._save("state", state)

    def replies(self, round: int) -> dict[str, Vector]:
        rows = self._tables.run("SELECT client, value FROM replies WHERE round = ?", round)
        return {client: pickle.loads(value) for client, value in rows}

    def keep_reply(self, round: int, client: str, release: Vector) -> None:
        self._tables.run("INSERT OR REPLACE INTO replies VALUES (?, ?, ?)", round, client, pickle.dumps(release))

    def drop_replies(self) -> None:
        self._tables.run("DELETE FROM replies")

    @contextlib.contextmanager
    def metrics(self, size: int) -> Iterator[MetricsTable]:
        self._tables.run("DELETE FROM metrics WHERE id > ?", size)
        yield MetricsTable(self._tables)

    def read_metrics(self) -> list[dict[str, Any]]:
        return [json.loads(record) for (record,) in self._tables.run("SELECT record FROM metrics ORDER BY id")]

    def finish(self, model: bytes, summary: Mapping[str, Any]) -> None:
        self._save("model", model)
        self._save("summary", dict(summary))

    @property
    def model(self) -> bytes:
        """What `finish` stored."""
        model: bytes = self._saved("model")
        return model

    def save_books(self, books: Mapping[str, Any]) -> None:
        self._save("books", dict(books))


class LedgerTable:
    """`ReleaseLedger` in SQLite."""

    def __init__(self, tables: _Tables) -> None:
        self._tables = tables

    def append(self, releases: Iterable[Release]) -> int:
        stored = {(release.round, release.client): release for release in self}
        new = {}
        for release in releases:
            key = (release.round, release.client)
            if key not in stored:
                new[key] = stored[key] = release
            elif stored[key] != release:
                raise InputError(f"round {release.round}, client {release.client} was released otherwise")
        insert = "INSERT INTO releases (record) VALUES (?)"
        self._tables.together(*((insert, (json.dumps(release.to_record()),)) for release in new.values()))
        return len(new)

    def __iter__(self) -> Iterator[Release]:
        rows = self._tables.run("SELECT record FROM releases ORDER BY id")
        return iter([Release.from_record(json.loads(record)) for (record,) in rows])


class MetricsTable:
    """`RoundRecords` in SQLite."""

    def __init__(self, tables: _Tables) -> None:
        self._tables = tables

    def add(self, record: Mapping[str, Any]) -> None:
        self._tables.run("INSERT INTO metrics (record) VALUES (?)", json.dumps(record))

    def sync(self) -> int:
        size: int = self._tables.run("SELECT count(*) FROM metrics")[0][0]
        return size
