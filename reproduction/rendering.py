"""Figures, a page and the generated parts of the documentation, from what is stored. Nothing is run here."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from itertools import product
from pathlib import Path

from jsam.report import page
from jsam.report.output_files import write_result
from jsam.report.plain import csv_text
from reproduction import paper_numbers as published
from reproduction.claims import GAIN_COSTS, all_claims
from reproduction.even_results import (
    CAPPED_HEAD,
    UNCAPPED_HEAD,
    WRONG_HEAD,
    capped_rows,
    even_claims,
    uncapped_rows,
    wrong_rows,
)
from reproduction.paths import Places
from reproduction.pictures import Picture, pictures_of
from reproduction.results import Difference, Results
from reproduction.spec import load_specs
from reproduction.store import Record
from reproduction.tabulate import COLUMNS, READABLE, Cell, progress_of, readable, table_rows
from reproduction.tuned_settings import STEPS
from reproduction.verdicts import NAMES, NOT_RUN, Claim

LEVELS = {"mnist": (80.0, 90.0, 95.0), "cifar10": (40.0, 50.0, 60.0)}
SUMMARY = (
    "data set", "s", "JSAM at cost 590", "in the paper", "its exact ε",
    "JSAM − USBM, costs 1 to 3", "with own learning rates",
)  # fmt: skip
ROWS = "rows.csv"
NOT_YET = "*Not run yet.*\n"
STEPS_HEAD = ("noise", "data set", "mechanism", "learning rate at each cost")
STOCK = ("experiment", "runs", "device time")
REACHED = ("data set", "s", "accuracy", *published.MECHANISMS)
LARGEST = ("data set", "cost", *published.MECHANISMS)
OTHER_Q = ("data set", "s", "cost", "JSAM's accuracy and the largest ε sold, at each Q that was run")
DOCUMENTS = ("docs/reproduction.md", "docs/reproduction-constants.md", "docs/even-shares.md")


def render_all(places: Places, ids: Sequence[str] = ()) -> list[Path]:
    """Write figures (those of `ids`, or all), page and documentation; return what was written."""
    results = Results(places)
    load_specs(places, ids)  # refuses unknown names
    pictures = pictures_of(results)
    claims = all_claims(results)
    files = {
        places.output / "figures" / f"{picture.name}.png": picture.content
        for picture in pictures
        if not ids or any(fnmatch(picture.name, name) for name in ids)
    }
    files[places.output / ROWS] = _rows_csv(results)
    files[places.output / "index.html"] = _page(results, pictures, claims).encode()
    for document in (places.home / name for name in DOCUMENTS):
        if document.exists() and places.output == places.results:
            files[document] = _documentation(document.read_text(encoding="utf-8"), results, claims, pictures).encode()
    for path, content in files.items():
        write_result(path, content)
    return list(files)


def _reached(results: Results) -> list[tuple[str, Sequence[str]]]:
    """The least cost run at which each mechanism's mean accuracy reached a level, data sets and s as in the paper."""
    rows: list[tuple[str, Sequence[str]]] = []
    for dataset, levels in LEVELS.items():
        cells = results.cells(f"exact-{dataset}")
        for similarity in sorted({cell.config.similarity for cell in cells}, reverse=True):
            for level in levels:
                costs = [_least_cost(cells, name, similarity, level) for name in published.MECHANISMS]
                rows.append(("", (NAMES[dataset], f"{similarity:g}", f"{level:g}%", *costs)))
    return rows


def _least_cost(cells: Sequence[Cell], mechanism: str, similarity: float, level: float) -> str:
    """A dash where nothing was run; more than the largest cost run where none sufficed."""
    run = {
        cell.config.cost: cell.accuracy_mean
        for cell in cells
        if (cell.config.mechanism, cell.config.similarity) == (mechanism, similarity) and cell.accuracy_mean is not None
    }
    reached = [cost for cost, accuracy in run.items() if accuracy >= level]
    if reached:
        return f"{min(reached):g}"
    return f">{max(run):g}" if run else "–"


def _largest(results: Results, kind: str, name: str) -> list[tuple[str, Sequence[str]]]:
    """The largest `name` over s and seeds, for each cost and mechanism of the panels of this kind."""
    rows: list[tuple[str, Sequence[str]]] = []
    for dataset in NAMES:
        cells = results.cells(f"{kind}-{dataset}")
        for cost in sorted({cell.config.cost for cell in cells}):
            values = [
                [v for c in cells if (c.config.mechanism, c.config.cost) == (m, cost) for v in c.values(name)]
                for m in published.MECHANISMS
            ]
            numbers = [_digits(max(column)) if column else "–" for column in values]
            rows.append(("", (NAMES[dataset], f"{cost:g}", *numbers)))
    return rows


def _spent(results: Results) -> list[tuple[str, Sequence[str]]]:
    return _largest(results, "panels", "epsilon_exact_max")


def _sold(results: Results) -> list[tuple[str, Sequence[str]]]:
    return _largest(results, "exact", "epsilon_sold_max")


def _digits(value: float) -> str:
    """Two digits, or all before the point."""
    return f"{value:.2g}" if value < 10 else f"{value:,.0f}"


def _other_weights(results: Results) -> list[tuple[str, Sequence[str]]]:
    """JSAM under exact accounting with every Q that was run, chosen or not; of two learning rates the better."""
    best: dict[tuple[str, float, float], dict[float, dict[float, list[Record]]]] = {}
    for record in results.known.values():
        c = record.config
        if (c.mechanism, c.noise, c.held_out, c.max_selection_prob, c.max_epsilon) == (
            "jsam", "exact", False, None, None,
        ):  # fmt: skip
            place = best.setdefault((c.dataset, -c.similarity, c.cost), {}).setdefault(c.noise_weight, {})
            place.setdefault(c.learning_rate, []).append(record)
    rows: list[tuple[str, Sequence[str]]] = []
    for (dataset, similarity, cost), by_weight in sorted(
        best.items(), key=lambda item: (item[0][0] != "mnist", item[0])
    ):
        if similarity in (-100.0, 0.0) and len(by_weight) > 1:
            parts = [_at_weight(weight, by_weight[weight]) for weight in sorted(by_weight)]
            rows.append(("", (NAMES[dataset], f"{-similarity:g}", f"{cost:g}", "; ".join(parts))))
    return rows


def _at_weight(weight: float, by_rate: Mapping[float, Sequence[Record]]) -> str:
    accuracy, rate = max(
        (statistics.fmean(r.result["accuracy"] for r in records), rate) for rate, records in by_rate.items()
    )
    sold = max(record.result["epsilon_sold_max"] for record in by_rate[rate])
    return f"Q = {weight:,g}: {accuracy:.1%} (ε {_digits(sold)})"


def _rows_csv(results: Results) -> bytes:
    """Every setting of every figure and table, the exact ε beside its accuracy."""
    specs = [spec for spec in results.specs.values() if spec.kind == "training"]
    rows = [{"experiment": name, **row} for name, group in table_rows(specs, results.places).items() for row in group]
    return csv_text(rows, ("experiment", *COLUMNS)).encode()


def rows_of(results: Results, spec_id: str) -> list[list[str]]:
    return [readable(cell.row(None)) for cell in results.cells(spec_id)]


def _page(results: Results, pictures: Sequence[Picture], claims: Sequence[Claim]) -> str:
    sections = [page.section("Claims", _claims_table(claims))]
    for dataset, name in NAMES.items():
        rows = [("", row) for row in rows_of(results, f"table-{dataset}")]
        sections.append(page.section(f"{name} at large cost", page.table(READABLE, rows)))
    sections += [page.section(picture.caption, page.picture(picture.name, picture.content)) for picture in pictures]
    sections += [
        page.section("Largest ε spent in the panels, Lemma 1's noise", page.table(LARGEST, _spent(results))),
        page.section("Largest ε sold, exact accounting", page.table(LARGEST, _sold(results))),
        page.section("JSAM with other Q, exact accounting", page.table(OTHER_Q, _other_weights(results), words=True)),
        page.section("Least cost for an accuracy, exact accounting", page.table(REACHED, _reached(results))),
    ]
    every = f'<p><a href="{ROWS}">{ROWS}</a>: every setting, with its accuracy and the exact ε of its runs</p>'
    sections.append(page.section("What is stored", every, page.table(STOCK, _stock(results), words=True)))
    sections.append(
        page.section("Values that the paper does not give", page.table(("name", "value"), _chosen(results), words=True))
    )
    sections.append(page.section("Learning rates of one's own", page.table(STEPS_HEAD, _steps(results), words=True)))
    return page.page("The paper, reproduced", "Every number comes from a stored run; a dash was not run.", *sections)


def _claims_table(claims: Sequence[Claim]) -> str:
    rows = [("none" if c.verdict == NOT_RUN else "", (c.source, c.statement, c.verdict, c.numbers)) for c in claims]
    return page.table(("where", "statement", "verdict", "numbers"), rows, words=True)


def _stock(results: Results) -> list[tuple[str, Sequence[str]]]:
    specs = [spec for spec in results.specs.values() if spec.kind != "planner"]
    rows: list[tuple[str, Sequence[str]]] = []
    for name, progress in progress_of(specs, results.places).items():
        seconds, made = results.device_time(name)
        rows.append(("", (name, str(progress), f"{seconds:.0f} s for {made} runs" if made else "–")))
    return rows


def _gain(gain: Difference | None) -> str:
    if gain is None:
        return "not run"
    so_far = (
        " (one seed)" * (gain.seeds == 1)
        if gain.complete
        else f" so far ({gain.settings} of {len(GAIN_COSTS)} costs, {gain.seeds} seed{'s' * (gain.seeds > 1)})"
    )
    error = "" if math.isinf(gain.error) else f" ± {gain.error:.1f}"
    return f"{gain.mean:+.1f}{error}{so_far}"


def _largest_epsilon(cell: Cell) -> str:
    values = cell.values("epsilon_exact_max")
    return f"{max(values):.2g}" if values else "–"


def _summary(results: Results) -> list[list[str]]:
    """JSAM's rows of both tables, and its gain over USBM at low cost."""
    rows = []
    for dataset, name in NAMES.items():
        for cell in results.cells(f"table-{dataset}"):
            c, ours, paper = cell.config, cell.accuracy_mean, cell.paper_accuracy
            if c.mechanism == "jsam":
                gains = [
                    results.difference(spec, "jsam", ["usbm"], costs=GAIN_COSTS, similarities=[c.similarity])
                    for spec in (f"panels-{dataset}", f"own-steps-{dataset}")
                ]
                rows.append(
                    [
                        name,
                        f"{c.similarity:g}",
                        "–" if ours is None else f"{ours:.2f}",
                        "–" if paper is None else f"{paper:.2f}",
                        _largest_epsilon(cell),
                        *map(_gain, gains),
                    ]
                )
    return rows


def _chosen(results: Results) -> list[tuple[str, Sequence[str]]]:
    def flat(values: object, prefix: str = "") -> list[tuple[str, str]]:
        if isinstance(values, dict):
            return [
                pair for key, item in values.items() if key != STEPS for pair in flat(item, f"{prefix} {key}".strip())
            ]
        return [(prefix, str(values))]

    return [("", pair) for pair in flat(dict(results.chosen.values))]


def _steps(results: Results) -> list[tuple[str, Sequence[str]]]:
    """The learning rates of each mechanism by cost."""
    rows: list[tuple[str, Sequence[str]]] = []
    for noise, dataset in product(("lemma1", "exact"), NAMES):
        tables = results.chosen.values.get(noise, {}).get(dataset, {}).get(STEPS, {})
        for variant, table in tables.items():
            rates = ", ".join(f"{cost}: {table[cost]:g}" for cost in sorted(table, key=float))
            rows.append(("", (noise, NAMES[dataset], variant, rates)))
    return rows


def _documentation(text: str, results: Results, claims: Sequence[Claim], pictures: Sequence[Picture]) -> str:
    """Fill what stands between <!-- name --> and <!-- end --> lines; `figure` blocks only where there is a figure."""
    drawn = {picture.name: picture for picture in pictures}
    text = re.sub(
        r"(<!-- figure (\S+) -->\n).*?(<!-- end -->)",
        lambda match: f"{match[1]}{_figure(drawn.get(match[2]), match[2])}{match[3]}",
        text,
        flags=re.DOTALL,
    )
    reached = [cells for _, cells in _reached(results)]
    parts: dict[str, str] = {
        "claims": _markdown(
            ("where", "statement", "verdict", "numbers"),
            [(c.source, c.statement, c.verdict, c.numbers) for c in claims],
        ),
        "reached": _markdown(REACHED, reached) if any(any(c != "–" for c in row[3:]) for row in reached) else NOT_YET,
        "spent": _markdown(LARGEST, [cells for _, cells in _spent(results)]),
        "sold": _markdown(LARGEST, [cells for _, cells in _sold(results)]),
        "other-weights": _markdown(OTHER_Q, [cells for _, cells in _other_weights(results)]),
        "stock": _markdown(STOCK, [cells for _, cells in _stock(results)]),
        "summary": _markdown(SUMMARY, _summary(results)),
        "chosen": _markdown(("name", "value"), [cells for _, cells in _chosen(results)]),
        "steps": _markdown(STEPS_HEAD, [cells for _, cells in _steps(results)]),
        "even-uncapped": _markdown(UNCAPPED_HEAD, uncapped_rows(results)),
        "even-capped": _markdown(CAPPED_HEAD, capped_rows(results)),
        "even-wrong": _markdown(WRONG_HEAD, wrong_rows(results)),
        "even-claims": _markdown(
            ("statement", "verdict", "numbers"), [(c.statement, c.verdict, c.numbers) for c in even_claims(results)]
        ),
        **{f"table-{dataset}": _markdown(READABLE, rows_of(results, f"table-{dataset}")) for dataset in NAMES},
    }
    for name, content in parts.items():
        block = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        text = block.sub(lambda match, content=content: f"{match[1]}{content}{match[2]}", text)  # type: ignore[misc]
    return text


def _figure(picture: Picture | None, name: str) -> str:
    return NOT_YET if picture is None else f"![{picture.caption}](../results/paper/figures/{name}.png)\n"


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |\n" for line in lines)
