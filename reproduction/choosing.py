"""What the paper leaves open, chosen by a rule on held-out images. Up to its last sentence it looks at JSAM alone.

- Q: the whole number nearest to the geometric middle of those that put both of the paper's numbers of selected clients
  inside the 95% band over draws. It needs no training.
- For a c₂, the learning rate (with its schedule and momentum) of a data set is the one with the best mean accuracy at
  cost 1 among those that reach the paper's table at cost 590.5 within its tolerance; if none does, the one that misses
  least.
- c₂ serves a data set if that learning rate reaches the table and JSAM is at least half-way between guessing and the
  table's accuracy at cost 1 with s = 100, as the paper's panels need. The largest c₂ of the grid that serves all data
  sets is taken, since a larger one is nearer to what privacy truly needs; if none does, the one that misses least.
- Under exact accounting: the clipping norm and Q with the best mean accuracy over the tuned cells, each cell at its
  best learning rate; the learning rate, with those, that is best on average. Where more was tuned, every mechanism has
  a learning rate of its own at every cost, and JSAM with a cap too: the best on the held-out images, on average over
  the similarities tried. The same under Lemma 1's noise, for panels that ask for it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jsam.report.output_files import write_result
from reproduction import paper_numbers as published
from reproduction.config import RunConfig
from reproduction.economics import read_planner
from reproduction.paths import Places
from reproduction.prerequisites import TUNES_STEPS
from reproduction.spec import load_specs
from reproduction.store import Record, read_places
from reproduction.tuned_settings import STEPS, Chosen, cost_key, toml_text, variant_key

LOW_COST = 1.0
GUESSING = 10.0
_EXACT = "tuning-exact-"
_HEAD = "# Written by `python -m reproduction choose`, whose rule docs/reproduction.md tells.\n"

Step = tuple[float, str, float]  # learning rate, its schedule, momentum


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A learning rate of a data set at one c₂, and what JSAM reached with it: percent, by (similarity, cost)."""

    dataset: str
    c2: float
    step: Step
    accuracies: Mapping[tuple[float, float], float]

    @property
    def shortfall(self) -> float:
        """Points by which the tuned cells of the table are missed, summed; 0 if all are within the tolerance."""
        return sum(max(0.0, gap) for gap in self._gaps())

    def _gaps(self) -> Iterable[float]:
        for (similarity, cost), accuracy in self.accuracies.items():
            paper = published.table_accuracy(self.dataset, "jsam", similarity)
            if cost == published.TABLE_COST and paper is not None:
                yield paper - published.TABLE_TOLERANCE[self.dataset] - accuracy

    @property
    def at_low_cost(self) -> float:
        accuracies = [accuracy for (_, cost), accuracy in self.accuracies.items() if cost == LOW_COST]
        return statistics.fmean(accuracies) if accuracies else -math.inf

    @property
    def lags(self) -> float:
        """Points below half-way between guessing and the table at low cost, s = 100; 0 if above."""
        paper = published.table_accuracy(self.dataset, "jsam", 100.0) or 100.0
        return max(0.0, (GUESSING + paper) / 2 - self.accuracies.get((100.0, LOW_COST), -math.inf))

    @property
    def misses(self) -> float:
        return self.shortfall + self.lags

    @property
    def rank(self) -> tuple[float, float]:
        """The better, the larger."""
        return -self.shortfall, self.at_low_cost


def best_steps(runs: Sequence[tuple[RunConfig, float]]) -> dict[tuple[str, float], Candidate]:
    """The best learning rate for each data set and c₂, of those that were run wherever most others were.

    Some were run in more cells besides; those count where they are.
    """
    cells: dict[tuple[str, float, Step], dict[tuple[float, float], float]] = {}
    for config, accuracy in runs:
        place = (
            config.dataset,
            config.c2 or 0.0,
            (config.learning_rate, config.learning_rate_schedule, config.momentum),
        )
        cells.setdefault(place, {})[config.similarity, config.cost] = 100 * accuracy
    usual = {name: _usual([cell for place, cell in cells.items() if place[0] == name]) for name, *_ in cells}
    best: dict[tuple[str, float], Candidate] = {}
    for (dataset, c2, step), accuracies in sorted(cells.items()):
        candidate = Candidate(dataset=dataset, c2=c2, step=step, accuracies=accuracies)
        rival = best.get((dataset, c2))
        if usual[dataset] <= accuracies.keys() and (rival is None or candidate.rank > rival.rank):
            best[dataset, c2] = candidate
    return best


def _usual(tables: Sequence[Mapping[tuple[float, float], float]]) -> set[tuple[float, float]]:
    """Cells that at least half of the tables have."""
    return {cell for table in tables for cell in table if 2 * sum(cell in other for other in tables) >= len(tables)}


def best_c2(best: Mapping[tuple[str, float], Candidate]) -> float | None:
    """The largest c₂ that serves every data set that was tuned; else the one that misses least."""
    datasets = {dataset for dataset, _ in best}
    common = [c2 for c2 in {c2 for _, c2 in best} if all((dataset, c2) in best for dataset in datasets)]
    if not common:
        return None
    misses = {c2: sum(best[dataset, c2].misses for dataset in datasets) for c2 in common}
    return min(common, key=lambda c2: (misses[c2], -c2))


def best_exact(runs: Sequence[tuple[RunConfig, float]]) -> dict[str, dict[str, float]]:
    """Clipping norm, learning rate and Q for each data set, of those that were run wherever most others were."""
    cells: dict[str, dict[tuple[float, float], dict[float, dict[tuple[float, float], float]]]] = {}
    for config, accuracy in runs:
        setting = cells.setdefault(config.dataset, {}).setdefault((config.clip_norm, config.noise_weight), {})
        setting.setdefault(config.learning_rate, {})[config.similarity, config.cost] = accuracy
    best: dict[str, dict[str, float]] = {}
    for dataset, settings in sorted(cells.items()):
        usual = _usual([cell for rates in settings.values() for cell in rates.values()])
        whole = {
            setting: {rate: cell for rate, cell in rates.items() if usual <= cell.keys()}
            for setting, rates in settings.items()
        }
        means = {
            setting: statistics.fmean(max(cell[place] for cell in rates.values()) for place in usual)
            for setting, rates in whole.items()
            if rates
        }
        clip_norm, weight = max(sorted(means), key=means.__getitem__)
        rates = whole[clip_norm, weight]
        rate = max(sorted(rates), key=lambda candidate: statistics.fmean(rates[candidate][place] for place in usual))
        best[dataset] = {"clip_norm": clip_norm, "learning_rate": rate, "noise_weight": weight}
    return best


def best_steps_at(runs: Iterable[RunConfig], known: Mapping[str, Record]) -> dict[str, dict[str, dict[str, float]]]:
    """Learning rates by data set, variant and cost, the best on average over the similarities tried.

    None at a cost where some variant has not tried all of its own.
    """
    tried: dict[tuple[str, str, float], dict[float, list[float]]] = {}
    lacking = set()
    for config in runs:
        if config.key not in known:
            lacking.add((config.dataset, config.cost))
            continue
        variant = variant_key(config.mechanism, config.max_selection_prob)
        rates = tried.setdefault((config.dataset, variant, config.cost), {})
        rates.setdefault(config.learning_rate, []).append(float(known[config.key].result["accuracy"]))
    steps: dict[str, dict[str, dict[str, float]]] = {}
    for (dataset, variant, cost), rates in sorted(tried.items()):
        if (dataset, cost) not in lacking:
            best = max(rates, key=lambda rate: statistics.fmean(rates[rate]))
            steps.setdefault(dataset, {}).setdefault(variant, {})[cost_key(cost)] = best
    return steps


def fitting_noise_weight(places: Places) -> float | None:
    """Q from the paper's two numbers of selected clients; None if no Q serves both, or nothing is stored."""
    stored = read_planner("selected-clients", places)
    both = None if stored is None else stored["noise_weight_for_both"]
    return None if both is None else float(round(math.sqrt(both[0] * both[1])))


def choose(places: Places) -> dict[str, Any]:
    """Apply the rule to what is stored, write chosen.toml, and return it. What was not tuned stays as it was."""
    before = Chosen.load(places.chosen)
    values: dict[str, Any] = {**before.values}
    weight = fitting_noise_weight(places)
    if weight is not None:
        values["noise_weight"] = weight
    grids = [record for name in ("tuning-mnist", "tuning-cifar10") for record in grid_records(places, name)]
    tuned = [record for record in grids if record.config.noise_weight == values["noise_weight"]]
    lemma1 = dict(values.get("lemma1", {}))
    best = best_steps(_accuracies(tuned, "lemma1"))
    c2 = best_c2(best)
    if c2 is not None:
        lemma1["c2"] = c2
        for (dataset, other), candidate in best.items():
            if other == c2:
                rate, schedule, momentum = candidate.step
                lemma1[dataset] = {
                    "learning_rate": rate,
                    "learning_rate_schedule": schedule,
                    "momentum": momentum,
                }
    values |= {"lemma1": lemma1, "exact": _exact(places, values)}
    values = _with_steps(places, values)
    values["status"] = _status(places, Chosen(values=values))
    write_result(places.chosen, (_HEAD + toml_text(values)).encode())
    return values


def _exact(places: Places, values: Mapping[str, Any]) -> dict[str, Any]:
    """C, Q and the learning rate, from the grids made for them.

    The runs that tune steps have no say in it: they look at other costs, and not for every C and Q.
    """
    grids = [spec.id for spec in load_specs(places) if spec.id.startswith(_EXACT)]
    tuned = [record for name in grids for record in grid_records(places, name)]
    exact = dict(values.get("exact", {}))
    for dataset, best in best_exact(_accuracies(tuned, "exact")).items():
        exact[dataset] = {**exact.get(dataset, {}), **best}
    return exact


def _with_steps(places: Places, values: Mapping[str, Any]) -> dict[str, Any]:
    """The learning rates of each variant at each cost; those of an earlier choice do not count."""
    tables = {
        noise: {name: _without(table, STEPS) for name, table in values[noise].items()} for noise in ("lemma1", "exact")
    }
    so_far, known = Chosen(values={**values, **tables}), read_places(places)
    # Each grid for itself, the later over the earlier: a wider one counts at a cost as soon as all of it is run there.
    for spec in (spec for spec in load_specs(places) if spec.id.startswith(TUNES_STEPS)):
        for dataset, table in best_steps_at(spec.runs(so_far), known).items():
            steps = tables[spec.settings["noise"]][dataset].setdefault(STEPS, {})
            for variant, by_cost in table.items():
                steps[variant] = {**steps.get(variant, {}), **by_cost}
    return {**values, **tables}


def _without(table: Any, name: str) -> Any:
    return {key: value for key, value in table.items() if key != name} if isinstance(table, Mapping) else table


def _status(places: Places, chosen: Chosen) -> str:
    """Whether every tuning grid was run in full, and how far those are that were not."""
    known = {record.key for record in tuning_records(places)}
    lacking: list[str] = []
    for spec in load_specs(places):
        runs = spec.runs(chosen) if spec.kind == "tuning" else []
        there = sum(config.key in known for config in runs)
        if there < len(runs):
            lacking.append(f"{spec.id} {there} of {len(runs)}{'' if lacking else ' runs'}")
    return f"provisional: {', '.join(lacking)}" if lacking else "by the rule"


def tuning_records(places: Places) -> list[Record]:
    """Stored runs on held-out images."""
    return [record for record in read_places(places).values() if record.config.held_out]


def grid_records(places: Places, spec_id: str) -> list[Record]:
    """Stored runs of one tuning experiment, in its order."""
    known = read_places(places)
    (spec,) = load_specs(places, [spec_id])
    runs = spec.runs(Chosen.load(places.chosen))
    return [known[config.key] for config in runs if config.key in known]


def _accuracies(records: Iterable[Record], noise: str) -> list[tuple[RunConfig, float]]:
    return [
        (record.config, float(record.result["accuracy"]))
        for record in records
        if record.config.noise == noise and record.config.mechanism == "jsam"
    ]
