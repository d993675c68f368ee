"""A stored run, as the pages show it: read from the run's folder, computed nowhere."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsam.errors import InputError


@dataclass(frozen=True, kw_only=True, eq=False)
class RunData:
    """The JSON files of one run."""

    folder: Path
    config: dict[str, Any]
    contract: dict[str, Any]
    audit: dict[str, Any]
    metrics: list[dict[str, Any]]

    @classmethod
    def load(cls, folder: Path | str) -> RunData:
        folder = Path(folder)
        return cls(
            folder=folder,
            config=_json(folder / "config.json"),
            contract=_json(folder / "contract.json"),
            audit=_json(folder / "audit.json"),
            metrics=_lines(folder / "metrics.jsonl"),
        )

    @property
    def mechanism(self) -> str:
        return str(self.contract["mechanism"])

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self.config["settings"])

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        return [record for record in self.metrics if "accuracy" in record]

    @property
    def accuracy(self) -> float | None:
        """At the last evaluation."""
        return self.evaluations[-1]["accuracy"] if self.evaluations else None

    @property
    def private(self) -> bool:
        """Whether the noise is unknown to others."""
        return bool(self.audit.get("private", True))

    @property
    def complete(self) -> bool:
        return bool(self.metrics) and self.metrics[-1]["round"] == self.settings["rounds"]

    @property
    def clients(self) -> list[dict[str, Any]]:
        """Contract and audit side by side, in the contract's order; strangers to the contract last."""
        audited = {client["id"]: client for client in self.audit["clients"]}
        known = [{**audited.pop(client["id"], {}), **client} for client in self.contract["clients"]]
        return known + list(audited.values())


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; jsam report writes what is missing") from error
    except ValueError as error:
        raise InputError(f"{path} is damaged: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} is damaged: it must hold one JSON object")
    return content


def _lines(path: Path) -> list[dict[str, Any]]:
    records = []
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            # The last line may be torn while a run goes on.
            with contextlib.suppress(ValueError):
                record = json.loads(line)
                if isinstance(record, dict):
                    records.append(record)
    return records
