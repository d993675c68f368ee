"""A stored run, as the pages show it: read from the run's folder, computed nowhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsam.errors import RunFolderError
from jsam.files import read_json
from jsam.runs.label_counts import LabelCounts
from jsam.runs.run_folder import RunFolder


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
        run = RunFolder(folder)
        return cls(
            folder=run.path,
            config=run.read(run.config),
            contract=run.read(run.contract),
            audit=read_json(run.audit, error=RunFolderError, advice="jsam report writes it"),
            metrics=run.read_metrics(),
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

    @property
    def labels(self) -> LabelCounts | None:
        """The label counts that were bought before the plan, if any were."""
        return LabelCounts.of_run(self.config)

    @property
    def total_payment(self) -> float | None:
        """What all clients are paid, with what their label counts cost."""
        training: float | None = self.contract["total_payment"]
        labels = self.labels
        return training if labels is None or training is None else training + labels.total


def epsilon_sold(client: Mapping[str, Any]) -> float | None:
    """The ε that a client sold in all: by the audit where label counts are in it, else by the contract."""
    sold: float | None = client.get("bought" if "bought_for_labels" in client else "epsilon")
    return sold


def payment_due(client: Mapping[str, Any]) -> float | None:
    """What a client is paid in all."""
    paid, for_labels = client.get("payment"), client.get("label_payment")
    return paid if paid is None or for_labels is None else paid + for_labels
