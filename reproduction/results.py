"""All that is stored, as the tables, figures and claims need it. Nothing is run here."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jsam.sweeps.device_time import CPU, Sweep, read_sweeps
from reproduction.economics import current_planner
from reproduction.paths import Places
from reproduction.spec import Spec, load_specs
from reproduction.store import Record, read_places
from reproduction.tabulate import Cell, cells
from reproduction.tuned_settings import Chosen


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A paired difference in points: its mean over settings, its standard error and its largest value over settings.

    The error is the larger of two: that of the seeds' means, since runs of one seed share their clients, and that over
    settings, since two or three seeds may agree by chance. With one seed it is the latter alone, and is said to be.
    """

    mean: float
    error: float
    largest: float
    seeds: int
    settings: int
    ahead: int
    """Settings in which the mean over seeds is above 0."""
    complete: bool = True
    """Whether no pair of runs that is wanted is lacking."""
    runs: int = 0
    """Single pairs of runs."""
    runs_ahead: int = 0
    same: bool = False
    """Whether accuracy and cost are equal to the last digit in every pair: one contract, one run."""

    @classmethod
    def of(
        cls, pairs: Sequence[tuple[int, str, float]], *, complete: bool = True, same: bool = False
    ) -> Difference | None:
        """From (seed, setting, difference); None if there is nothing to compare."""
        if not pairs:
            return None
        by_seed = _means((seed, value) for seed, _, value in pairs)
        by_setting = _means((setting, value) for _, setting, value in pairs)
        errors = [_error(group.values()) for group in (by_seed, by_setting) if len(group) > 1]
        return cls(
            mean=statistics.fmean(by_setting.values()),
            error=max(errors, default=math.inf),
            largest=max(by_setting.values()),
            seeds=len(by_seed),
            settings=len(by_setting),
            ahead=sum(value > 0 for value in by_setting.values()),
            complete=complete,
            runs=len(pairs),
            runs_ahead=sum(value > 0 for _, _, value in pairs),
            same=same,
        )

    @property
    def mean_text(self) -> str:
        digits = 2 if abs(self.mean) < 1 else 1  # else a small difference reads +0.1 ± 0.0
        spread = "" if math.isinf(self.error) else f" ± {self.error:.{digits}f}"
        remark = " over settings (one seed)" if self.seeds == 1 and spread else ""
        return f"mean {self.mean:+.{digits}f}{spread} points{remark}"

    @property
    def extent(self) -> str:
        most = "" if self.complete or self.seeds == 1 else "up to "
        seeds = f"{most}{self.seeds} seed{'s' if self.seeds > 1 else ''}"
        return f"{self.settings} setting{'s' if self.settings > 1 else ''}, {seeds}"

    @property
    def where(self) -> str:
        return f"above 0 in {self.ahead} of {self.extent}"

    def __str__(self) -> str:
        return f"{self.mean_text}, largest {self.largest:+.1f} ({self.where})"


def _numbers(cell: Cell) -> dict[int, tuple[Any, Any]]:
    return {r.config.seed: (r.result["accuracy"], r.result.get("monetary_cost")) for r in cell.records}


def _error(values: Collection[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values))


def _means(pairs: Any) -> dict[Any, float]:
    groups: dict[Any, list[float]] = {}
    for name, value in pairs:
        groups.setdefault(name, []).append(value)
    return {name: statistics.fmean(values) for name, values in groups.items()}


@dataclass(frozen=True)
class Results:
    """What the places hold."""

    places: Places

    @cached_property
    def known(self) -> dict[str, Record]:
        return read_places(self.places)

    @cached_property
    def chosen(self) -> Chosen:
        return Chosen.load(self.places.chosen)

    @cached_property
    def specs(self) -> dict[str, Spec]:
        return {spec.id: spec for spec in load_specs(self.places)}

    @cached_property
    def _cells(self) -> dict[str, list[Cell]]:
        return {name: cells(spec.runs(self.chosen), self.known) for name, spec in self.specs.items()}

    def cells(self, spec_id: str) -> list[Cell]:
        """Settings of an experiment, in its order; none for one that there is no specification of."""
        return self._cells.get(spec_id, [])

    def planner(self, spec_id: str) -> dict[str, Any] | None:
        """What is stored of a planner's experiment, if it was made with the settings that hold now."""
        spec = self.specs.get(spec_id)
        return None if spec is None else current_planner(spec, self.chosen, self.places)

    def device_time(self, spec_id: str) -> tuple[float, int]:
        """Seconds for which an accelerator was busy with an experiment, and the runs it made in them."""
        sweeps = [sweep for sweep in self._sweeps if sweep.experiment == spec_id and not sweep.device.startswith(CPU)]
        return sum(sweep.seconds for sweep in sweeps), sum(sweep.runs for sweep in sweeps)

    @cached_property
    def _sweeps(self) -> list[Sweep]:
        return sorted({*read_sweeps(self.places.output), *read_sweeps(self.places.results)})

    def stored(self, spec_id: str) -> tuple[int, int]:
        """Runs there, runs wanted."""
        cells = self.cells(spec_id)
        return sum(len(cell.records) for cell in cells), sum(cell.wanted for cell in cells)

    def difference(
        self,
        spec_id: str,
        mechanism: str,
        others: Sequence[str],
        *,
        costs: Sequence[float] | None = None,
        similarities: Sequence[float] | None = None,
    ) -> Difference | None:
        """Accuracy of one mechanism minus the best of the others, for equal data, cost and seed."""
        by_setting: dict[str, dict[str, Cell]] = {}
        for cell in self.cells(spec_id):
            c = cell.config
            if (costs is None or c.cost in costs) and (similarities is None or c.similarity in similarities):
                by_setting.setdefault(f"s = {c.similarity:g}, cost {c.cost:g}", {})[c.mechanism] = cell
        pairs, wanted, same = [], 0, len(others) == 1
        for setting, row in by_setting.items():
            if mechanism not in row or any(other not in row for other in others):
                continue
            wanted += row[mechanism].wanted
            same = same and all(_numbers(row[mechanism]) == _numbers(row[other]) for other in others)
            for seed, accuracy in row[mechanism].accuracies.items():
                rivals = [row[other].accuracies.get(seed) for other in others]
                if all(rival is not None for rival in rivals):
                    pairs.append((seed, setting, accuracy - max(rival for rival in rivals if rival is not None)))
        return Difference.of(pairs, complete=len(pairs) >= wanted, same=same)
