"""The figures that stored results allow. Nothing is run here."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from reproduction import paper_numbers as published
from reproduction.bound_claims import Correlations, rank_correlations
from reproduction.choosing import LOW_COST
from reproduction.paper_figures import (
    Panel,
    Point,
    dearest_picture,
    eta_picture,
    panels_picture,
    scatter_picture,
    selected_picture,
    structure_picture,
)
from reproduction.results import Results
from reproduction.step_claims import OWN, steps_of
from reproduction.store import Record
from reproduction.tabulate import Cell
from reproduction.tuned_settings import CHOSEN
from reproduction.verdicts import NAMES

ACCURACY, HELD = "test accuracy (%)", "held-out accuracy (%)"
_AGAINST_THE_BOUND: tuple[tuple[str, str, str, Callable[[Record], float | None], Callable[[Correlations], float]], ...]
_AGAINST_THE_BOUND = (
    ("", "accuracy", ACCURACY, lambda record: 100 * record.result["accuracy"], lambda ranks: ranks.accuracy),
    (
        "gradient-",
        "norm of the clipped mean gradient, mean over rounds,",
        "gradient norm",
        lambda record: record.result.get("gradient_norm"),
        lambda ranks: ranks.gradient_norm,
    ),
)


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A figure with its file's name and its caption."""

    name: str
    caption: str
    content: bytes


def pictures_of(results: Results) -> list[Picture]:
    """Every figure of which there is a run."""
    pictures = []
    for dataset, name in NAMES.items():
        caption = f"{name}: accuracy against the cost Σ v ε, Lemma 1's noise; bands: one standard deviation over seeds."
        content = _panels(results, f"panels-{dataset}")
        if content is not None:
            pictures.append(Picture(name=f"panels-{dataset}", caption=caption, content=content))
    for dataset, name in NAMES.items():
        content = _panels(results, f"own-steps-{dataset}")
        if content is not None:
            caption = f"{name} at low cost again, every mechanism with its own learning rate at each cost."
            pictures.append(Picture(name=f"own-steps-{dataset}", caption=caption, content=content))
    for dataset, name in NAMES.items():
        caption = f"{name} again with the noise that every contract truly needs."
        content = _panels(results, f"exact-{dataset}", log=True)
        if content is not None:
            pictures.append(Picture(name=f"exact-{dataset}", caption=caption, content=content))
    content = _panels_of(_variants(results), log=True) if results.stored("variants-mnist")[0] else None
    if content is not None:
        caption = "MNIST with exact accounting: JSAM with and without a cap on p, FSBM with fewer clients."
        pictures.append(Picture(name="variants-mnist", caption=caption, content=content))
    straggler = _straggler(results)
    if not straggler.empty:
        content = panels_picture([straggler], x_label="ε of one client (log scale)", y_label=ACCURACY, log=True)
        caption = "Accuracy as the most sensitive client sells less and less privacy."
        pictures.append(Picture(name="straggler", caption=caption, content=content))
    for dataset, name in NAMES.items():
        label = "learning rate ÷ (1 − momentum)"
        tuned = _tuning(results, dataset)
        if tuned:
            content = panels_picture(tuned, x_label=label, y_label=HELD, log=True)
            caption = (
                f"{name}: held-out accuracy of JSAM against the step; dash-dotted without momentum, else with 0.9."
            )
            pictures.append(Picture(name=f"tuning-{dataset}", caption=caption, content=content))
    for dataset, name in NAMES.items():
        spec_id = f"tuning-steps-lemma1-{dataset}"
        shorter = _shorter(results, spec_id)
        if shorter:
            content = panels_picture(shorter, x_label="learning rate (log scale)", y_label=HELD, log=True)
            caption = f"{name} at low cost: held-out accuracy of each mechanism against the step, all else as chosen."
            pictures.append(Picture(name=spec_id, caption=caption, content=content))
    weights = noise_weight_panels(results)
    if any(len(points) > 1 for panel in weights for points in panel.curves.values()):
        content = panels_picture(weights, x_label="Q (log scale)", y_label=HELD, log=True)
        caption = "MNIST: held-out accuracy of JSAM against Q, all else as chosen."
        pictures.append(Picture(name="tuning-noise-weight", caption=caption, content=content))
    chosen = _chosen_weight(results)
    planners: list[tuple[str, str, Callable[..., bytes]]] = [
        ("cost-against-eta", "Expected cost against η: mean and 95% band over draws.", eta_picture),
        ("selected-clients", "Clients that JSAM keeps.", lambda stored: selected_picture(stored, chosen)),
        ("structure", "Selection probabilities of ten clients as η grows; dotted: 1/N.", structure_picture),
        ("who-costs-most", "What each client costs, one draw.", dearest_picture),
    ]
    for name, caption, draw in planners:
        stored = results.planner(name)
        if stored is not None:
            pictures.append(Picture(name=name, caption=caption, content=draw(stored)))
    for dataset, name in NAMES.items():
        for suffix, what, label, value, rank in _AGAINST_THE_BOUND:
            groups = _bound_points(results.cells(f"panels-{dataset}"), value, rank)
            if groups:
                content = scatter_picture(groups, x_label="loss bound (log scale)", y_label=label)
                caption = f"{name}: {what} against the planner's loss bound, a dot a run."
                pictures.append(Picture(name=f"bound-{suffix}{dataset}", caption=caption, content=content))
    steps = {name: steps_of(results, spec_id) for spec_id, name in OWN.items()}
    if any(steps.values()):
        content = scatter_picture(
            {name.replace(", ", "\n"): places for name, places in steps.items() if places},
            x_label="noise over the run ÷ most signal\n(log scale)",
            y_label="best step, mean over rounds,\nin clipping norms (log scale)",
            log_y=True,
        )
        caption = "The step that was best for a mechanism at a cost, against the noise of its contract: a dot each."
        pictures.append(Picture(name="steps-against-noise", caption=caption, content=content))
    return pictures


def _panels(results: Results, spec_id: str, *, log: bool = False) -> bytes | None:
    return _panels_of(_by_mechanism(results.cells(spec_id)), log=log)


def _by_mechanism(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """The paper's mechanisms first, in its order."""
    names = dict.fromkeys([*published.MECHANISMS, *(cell.config.mechanism for cell in cells)])
    curves = {name: [cell for cell in cells if cell.config.mechanism == name] for name in names}
    return {name: curve for name, curve in curves.items() if curve}


def _variants(results: Results) -> dict[str, list[Cell]]:
    """JSAM and FSBM-50 of the exact panels where variants were tried, and each variant."""
    variants = results.cells("variants-mnist")
    places = {(cell.config.cost, cell.config.similarity) for cell in variants}
    plain = [cell for cell in results.cells("exact-mnist") if (cell.config.cost, cell.config.similarity) in places]
    curves = {name: [cell for cell in plain if cell.config.mechanism == name] for name in ("jsam", "fsbm-50")}
    for cell in variants:
        cap = cell.config.max_selection_prob
        label = cell.config.mechanism if cap is None else f"jsam with p ≤ {cap:g}"
        curves.setdefault(label, []).append(cell)
    return curves


def _panels_of(curves: Mapping[str, Sequence[Cell]], *, log: bool) -> bytes | None:
    """A panel for each s."""
    there = {cell.config.similarity for cells in curves.values() for cell in cells}
    panels = [
        Panel(
            title=f"s = {s:g}",
            curves={
                name: [
                    Point(
                        x=cell.mean("monetary_cost") or cell.config.cost, mean=cell.accuracy_mean, std=cell.accuracy_std
                    )
                    for cell in cells
                    if cell.config.similarity == s
                ]
                for name, cells in curves.items()
            },
        )
        for s in published.SIMILARITIES
        if s in there
    ]
    if all(panel.empty for panel in panels):
        return None
    label = f"cost of the drawn clients\n(mean over seeds{', log scale' if log else ''})"
    return panels_picture(panels, x_label=label, y_label=ACCURACY, log=log)


def _straggler(results: Results) -> Panel:
    return Panel(
        title="cost 10, s = 100",
        curves={
            name: [
                Point(x=cell.config.straggler_epsilon or 0.0, mean=cell.accuracy_mean, std=cell.accuracy_std)
                for cell in results.cells("straggler")
                if cell.config.mechanism == name
            ]
            for name in ("usbm", "jsam")
        },
    )


def _tuning(results: Results, dataset: str) -> list[Panel]:
    """A panel for each tuned cost and similarity, a curve for each c₂, with and without momentum.

    A step with momentum adds up to 1/(1 − momentum) plain ones, so they share an axis. The better schedule counts.
    """
    best: dict[tuple[str, str, float], float | None] = {}
    for cell in results.cells(f"tuning-{dataset}"):
        c, reached = cell.config, cell.accuracy_mean
        tuned = c.noise_weight == _chosen_weight(results) and c.cost in (LOW_COST, published.TABLE_COST)
        if tuned:
            name = f"c₂ = {c.c2:g}{'' if c.momentum else ', plain'}"
            place = (f"s = {c.similarity:g}, cost {c.cost:g}", name, c.learning_rate / (1 - c.momentum))
            best[place] = max((value for value in (reached, best.get(place)) if value is not None), default=None)
    panels: dict[str, dict[str, list[Point]]] = {}
    for (title, name, step), highest in sorted(best.items()):
        # A gap where a step was not run; no curve where none was.
        if any(other[:2] == (title, name) and value is not None for other, value in best.items()):
            panels.setdefault(title, {}).setdefault(name, []).append(Point(x=step, mean=highest))
    return [Panel(title=title, curves=curves) for title, curves in panels.items()]


def _shorter(results: Results, spec_id: str) -> list[Panel]:
    """A panel for each similarity and cost, a curve for each mechanism; none while hardly anything is run."""
    there, wanted = results.stored(spec_id)
    if 2 * there < wanted:
        return []
    panels: dict[tuple[float, float], dict[str, list[Point]]] = {}
    for cell in sorted(results.cells(spec_id), key=lambda cell: cell.config.learning_rate):
        c = cell.config
        curve = panels.setdefault((-c.similarity, c.cost), {}).setdefault(c.mechanism, [])
        curve.append(Point(x=c.learning_rate, mean=cell.accuracy_mean))
    return [Panel(title=f"s = {-s:g}, cost {cost:g}", curves=panels[s, cost]) for s, cost in sorted(panels)]


def noise_weight_panels(results: Results) -> list[Panel]:
    """A curve for each cost, of all held-out runs of JSAM that differ from the chosen settings in Q alone."""
    settings = ("c2", "clip_norm", "learning_rate", "learning_rate_schedule", "momentum")
    wanted = results.chosen.resolve({"noise": "lemma1", "dataset": "mnist", **dict.fromkeys(settings, CHOSEN)})
    wanted |= {"mechanism": "jsam", "cost_of": "jsam", "held_out": True, "straggler_epsilon": None}
    accuracies: dict[tuple[float, float, float], list[float]] = {}
    for record in results.known.values():
        c = record.config
        if all(getattr(c, name) == value for name, value in wanted.items()):
            place = (-c.similarity, c.cost, c.noise_weight)
            accuracies.setdefault(place, []).append(100 * record.result["accuracy"])
    panels: dict[str, dict[str, list[Point]]] = {}
    weights = sorted({weight for *_, weight in accuracies})
    for similarity, cost in sorted({place[:2] for place in accuracies}):
        if sum(place[:2] == (similarity, cost) for place in accuracies) == 1:
            continue  # run for another purpose, at one Q
        # A gap where others have a Q that this one was not run with.
        reached = [accuracies.get((similarity, cost, weight)) for weight in weights]
        panels.setdefault(f"s = {-similarity:g}", {})[f"cost {cost:g}"] = [
            Point(x=weight, mean=statistics.fmean(values) if values else None)
            for weight, values in zip(weights, reached, strict=True)
        ]
    return [Panel(title=title, curves=curves) for title, curves in panels.items()]


def _chosen_weight(results: Results) -> float:
    return float(results.chosen.values["noise_weight"])


def _bound_points(
    cells: Sequence[Cell], value: Callable[[Record], float | None], rank: Callable[[Correlations], float]
) -> dict[str, list[tuple[float, float]]]:
    groups: dict[str, list[tuple[float, float]]] = {}
    for similarity, correlations in rank_correlations(cells).items():
        title = f"ρ = {rank(correlations):+.2f}" if correlations.enough else f"only {correlations.runs} runs"
        groups[f"s = {similarity:g}, {title}"] = [
            (bound, height)
            for cell in cells
            for record in cell.records
            if cell.config.similarity == similarity
            and (bound := record.result.get("loss_bound")) is not None
            and (height := value(record)) is not None
        ]
    return groups
