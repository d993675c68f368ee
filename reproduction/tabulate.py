"""Rows of results: the seeds of one setting together, the paper's numbers beside them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reproduction import paper_numbers as published
from reproduction.config import RunConfig
from reproduction.economics import current_planner
from reproduction.paths import Places
from reproduction.planning import Plans
from reproduction.spec import Spec
from reproduction.store import Record, read_places
from reproduction.tuned_settings import Chosen

COLUMNS = (
    "dataset", "mechanism", "similarity", "noise", "c2", "loss_weight", "noise_weight", "monetary_cost",
    "total_payment", "accuracy_mean", "accuracy_std", "seeds", "epsilon_exact_max", "paper_accuracy", "paper_cost",
    "nominal_cost", "nominal_cost_of", "straggler_epsilon", "max_selection_prob",
    "epsilon_sold_max", "learning_rate", "max_epsilon", "heterogeneity",
)  # fmt: skip

READABLE = ("mechanism", "s", "cost", "paper's", "accuracy", "paper's", "diff.", "seeds", "exact ε")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One setting over its seeds. `wanted` counts the seeds of the specification; runs not made are missing."""

    config: RunConfig
    wanted: int
    records: Sequence[Record]

    def values(self, name: str) -> list[float]:
        numbers = [record.result.get(name) for record in self.records]
        return [float(value) for value in numbers if value is not None]

    def mean(self, name: str) -> float | None:
        values = self.values(name)
        return statistics.fmean(values) if values else None

    @property
    def accuracies(self) -> dict[int, float]:
        """Percent, by seed."""
        return {record.config.seed: 100 * record.result["accuracy"] for record in self.records}

    @property
    def accuracy_mean(self) -> float | None:
        return statistics.fmean(self.accuracies.values()) if self.records else None

    @property
    def accuracy_std(self) -> float | None:
        """Over seeds; unknown for one seed."""
        return statistics.stdev(self.accuracies.values()) if len(self.records) > 1 else None

    @property
    def paper_accuracy(self) -> float | None:
        c = self.config
        return published.table_accuracy(c.dataset, c.mechanism, c.similarity) if self._of_the_tables else None

    @property
    def paper_cost(self) -> float | None:
        c = self.config
        return published.table_cost(c.dataset, c.mechanism, c.similarity) if self._of_the_tables else None

    @property
    def _of_the_tables(self) -> bool:
        c = self.config
        return (c.cost, c.cost_of, c.noise) == (published.TABLE_COST, "jsam", "lemma1") and not c.held_out

    def largest(self, name: str) -> float | None:
        return max(self.values(name), default=None)

    def row(self, loss_weight: float | None) -> dict[str, Any]:
        """`loss_weight` is the one planned, for a setting without runs; seeds share theirs."""
        c = self.config
        values = {
            "dataset": c.dataset,
            "mechanism": c.mechanism,
            "similarity": c.similarity,
            "noise": c.noise,
            "c2": c.c2,
            "loss_weight": next(iter(self.values("loss_weight")), loss_weight),
            "noise_weight": c.noise_weight,
            "monetary_cost": self.mean("monetary_cost"),
            "total_payment": self.mean("total_payment"),
            "accuracy_mean": self.accuracy_mean,
            "accuracy_std": self.accuracy_std,
            "seeds": len(self.records),
            "epsilon_exact_max": self.largest("epsilon_exact_max"),
            "paper_accuracy": self.paper_accuracy,
            "paper_cost": self.paper_cost,
            "nominal_cost": c.cost,
            "nominal_cost_of": c.cost_of,
            "straggler_epsilon": c.straggler_epsilon,
            "max_selection_prob": c.max_selection_prob,
            "epsilon_sold_max": self.largest("epsilon_sold_max"),
            "learning_rate": c.learning_rate or self.mean("learning_rate"),
            "max_epsilon": c.max_epsilon,
            "heterogeneity": c.heterogeneity,
        }
        return {name: _tidy(values[name]) for name in COLUMNS}


def cells(configs: Sequence[RunConfig], known: Mapping[str, Record]) -> list[Cell]:
    """The runs in groups that differ in their seed only, in the order of the specification."""
    groups: dict[str, list[RunConfig]] = {}
    for config in configs:
        groups.setdefault(config.changed(seed=0).key, []).append(config)
    return [
        Cell(config=group[0], wanted=len(group), records=[known[c.key] for c in group if c.key in known])
        for group in groups.values()
    ]


def table_rows(specs: Sequence[Spec], places: Places) -> dict[str, list[dict[str, Any]]]:
    """Rows by experiment; a row without runs has its setting and nothing else."""
    known = read_places(places)
    chosen, plans = Chosen.load(places.chosen), Plans.load(places.new_plans, places.plans)
    return {
        spec.id: [cell.row(plans.known_loss_weight(cell.config)) for cell in cells(spec.runs(chosen), known)]
        for spec in specs
        if spec.kind != "planner"
    }


def _tidy(value: Any) -> Any:
    return float(f"{value:.8g}") if isinstance(value, float) else value


def readable(row: Mapping[str, Any]) -> list[str]:
    """A row for people; what was not run is a dash, and its cost the one that η is set at, in brackets."""
    mean, std, paper = row["accuracy_mean"], row["accuracy_std"], row["paper_accuracy"]
    cap = row["max_selection_prob"]
    return [
        row["mechanism"] + ("" if cap is None else f", p ≤ {cap:g}"),
        f"{row['similarity']:g}",
        _cost(row),
        _number(row["paper_cost"], ".4g"),
        _number(mean, ".2f") + ("" if std is None else f" ± {std:.2f}"),
        _number(paper, ".2f"),
        _number(None if mean is None or paper is None else mean - paper, "+.2f"),
        str(row["seeds"]),
        _number(row["epsilon_exact_max"], ".3g"),
    ]


def _cost(row: Mapping[str, Any]) -> str:
    if row["monetary_cost"] is not None:
        return _number(row["monetary_cost"], ".4g")
    of = "" if row["nominal_cost_of"] == row["mechanism"] else f" of {row['nominal_cost_of']}"
    return f"({row['nominal_cost']:.4g}{of})"


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How many results are stored, how many there are to be, and how many more wait for steps to be chosen."""

    stored: int
    wanted: int
    waiting: int = 0

    def __str__(self) -> str:
        if self.waiting and not self.wanted:
            return "waits for learning rates"
        return f"{self.stored} of {self.wanted}" + (f", {self.waiting} wait for learning rates" if self.waiting else "")


def progress_of(specs: Sequence[Spec], places: Places) -> dict[str, Progress]:
    """By experiment."""
    chosen, known = Chosen.load(places.chosen), read_places(places)
    progress = {}
    for spec in specs:
        if spec.kind == "planner":
            progress[spec.id] = Progress(stored=int(current_planner(spec, chosen, places) is not None), wanted=1)
            continue
        runs = spec.runs(chosen)
        there = sum(config.key in known for config in runs)
        progress[spec.id] = Progress(stored=there, wanted=len(runs), waiting=len(spec.waiting(chosen)))
    return progress
