"""Figures, a page and the generated parts of the documentation, from what is stored. Nothing is run here."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from jsam.experiments import published
from jsam.experiments.claims import NAMES, Claim, all_claims, rank_correlations
from jsam.experiments.places import Places
from jsam.experiments.results import Results
from jsam.experiments.tabulate import READABLE, Cell, readable
from jsam.report import page
from jsam.report.files import write_atomically
from jsam.report.paper_figures import (
    Panel,
    Point,
    dearest_picture,
    eta_picture,
    panels_picture,
    scatter_picture,
    selected_picture,
    structure_picture,
)

ACCURACY = "test accuracy (%)"


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A figure with its file's name and its caption."""

    name: str
    caption: str
    content: bytes


def render_all(places: Places) -> list[Path]:
    """Write figures, page and documentation; return what was written."""
    results = Results(places)
    pictures = list(_pictures(results))
    claims = all_claims(results)
    files = {places.output / "figures" / f"{picture.name}.png": picture.content for picture in pictures}
    files[places.output / "index.html"] = _page(results, pictures, claims).encode()
    document = places.home / "docs" / "reproduction.md"
    if document.exists() and places.output == places.results:
        files[document] = _documentation(document.read_text(encoding="utf-8"), results, claims).encode()
    for path, content in files.items():
        write_atomically(path, content)
    return list(files)


def _pictures(results: Results) -> Sequence[Picture]:
    found = []
    for dataset, name in NAMES.items():
        caption = f"{name}: accuracy against expected cost, Lemma 1's noise; bands: one standard deviation over seeds."
        found.append(Picture(name=f"panels-{dataset}", caption=caption, content=_panels(results, f"panels-{dataset}")))
    for dataset, name in NAMES.items():
        caption = f"{name} again with the noise that every contract truly needs."
        content = _panels(results, f"exact-{dataset}", log=True)
        found.append(Picture(name=f"exact-{dataset}", caption=caption, content=content))
    straggler = _straggler(results)
    found.append(
        Picture(
            name="straggler",
            caption="Accuracy as the most sensitive client sells less and less privacy.",
            content=panels_picture([straggler], x_label="ε of one client (log scale)", y_label=ACCURACY, log=True),
        )
    )
    chosen = float(results.chosen.values["noise_weight"])
    planners: list[tuple[str, str, Callable[..., bytes]]] = [
        ("cost-against-eta", "Expected cost against η: mean and 95% band over draws.", eta_picture),
        ("selected-clients", "Clients that JSAM keeps.", lambda stored: selected_picture(stored, chosen)),
        ("structure", "Selection probabilities of ten clients as η grows; dotted: 1/N.", structure_picture),
        ("who-costs-most", "What each client costs, one draw.", dearest_picture),
    ]
    for name, caption, draw in planners:
        stored = results.planner(name)
        if stored is not None:
            found.append(Picture(name=name, caption=caption, content=draw(stored)))
    for dataset, name in NAMES.items():
        groups = _bound_points(results.cells(f"panels-{dataset}"))
        if groups:
            content = scatter_picture(groups, x_label="loss bound (log scale)", y_label=ACCURACY)
            caption = f"{name}: accuracy against the planner's loss bound, a dot a run."
            found.append(Picture(name=f"bound-{dataset}", caption=caption, content=content))
    return found


def _panels(results: Results, spec_id: str, *, log: bool = False) -> bytes:
    cells = results.cells(spec_id)
    wanted = [s for s in published.SIMILARITIES if any(cell.config.similarity == s for cell in cells)]
    panels = [
        Panel(
            title=f"s = {s:g}",
            curves={
                name: [
                    Point(
                        x=cell.mean("monetary_cost") or cell.config.cost, mean=cell.accuracy_mean, std=cell.accuracy_std
                    )
                    for cell in cells
                    if cell.config.similarity == s and cell.config.mechanism == name
                ]
                for name in published.MECHANISMS
            },
        )
        for s in wanted
    ]
    label = "expected cost (log scale)" if log else "expected cost"
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


def _bound_points(cells: Sequence[Cell]) -> dict[str, list[tuple[float, float]]]:
    groups: dict[str, list[tuple[float, float]]] = {}
    correlations = rank_correlations(cells)
    for cell in cells:
        if cell.config.similarity not in correlations:
            continue
        rho = correlations[cell.config.similarity][0]
        name = f"s = {cell.config.similarity:g}, ρ = {rho:+.2f}"
        groups.setdefault(name, []).extend(
            (record.result["loss_bound"], 100 * record.result["accuracy"]) for record in cell.records
        )
    return groups


def rows_of(results: Results, spec_id: str) -> list[list[str]]:
    return [readable(cell.row(None)) for cell in results.cells(spec_id)]


def _page(results: Results, pictures: Sequence[Picture], claims: Sequence[Claim]) -> str:
    sections = [page.section("Claims", _claims_table(claims))]
    for dataset, name in NAMES.items():
        rows = [("", row) for row in rows_of(results, f"table-{dataset}")]
        sections.append(page.section(f"{name} at large cost", page.table(READABLE, rows)))
    for picture in pictures:
        source = base64.b64encode(picture.content).decode()
        image = f'<img alt="{picture.name}" style="width:100%" src="data:image/png;base64,{source}">'
        sections.append(page.section(picture.caption, page.figure(image)))
    sections.append(page.section("What is stored", page.table(("experiment", "runs", "seconds"), _stock(results))))
    sections.append(
        page.section("Values that the paper does not give", page.table(("name", "value"), _chosen(results)))
    )
    return page.page("The paper, reproduced", "Every number comes from a stored run; a dash was not run.", *sections)


def _claims_table(claims: Sequence[Claim]) -> str:
    rows = [("none" if c.verdict == "not run" else "", (c.source, c.statement, c.verdict, c.numbers)) for c in claims]
    return page.table(("where", "statement", "verdict", "numbers"), rows)


def _stock(results: Results) -> list[tuple[str, Sequence[str]]]:
    rows: list[tuple[str, Sequence[str]]] = []
    for spec in results.specs.values():
        if spec.kind != "planner":
            there, wanted = results.stored(spec.id)
            rows.append(("", (spec.id, f"{there} of {wanted}", f"{results.seconds(spec.id):.0f}")))
    return rows


def _chosen(results: Results) -> list[tuple[str, Sequence[str]]]:
    def flat(values: object, prefix: str = "") -> list[tuple[str, str]]:
        if isinstance(values, dict):
            return [pair for key, item in values.items() for pair in flat(item, f"{prefix} {key}".strip())]
        return [(prefix, str(values))]

    return [("", pair) for pair in flat(dict(results.chosen.values))]


def _documentation(text: str, results: Results, claims: Sequence[Claim]) -> str:
    """Fill what stands between <!-- name --> and <!-- end --> lines."""
    parts: dict[str, str] = {
        "claims": _markdown(
            ("where", "statement", "verdict", "numbers"),
            [(c.source, c.statement, c.verdict, c.numbers) for c in claims],
        ),
        "stock": _markdown(("experiment", "runs", "seconds"), [cells for _, cells in _stock(results)]),
        "chosen": _markdown(("name", "value"), [cells for _, cells in _chosen(results)]),
        **{f"table-{dataset}": _markdown(READABLE, rows_of(results, f"table-{dataset}")) for dataset in NAMES},
    }
    for name, content in parts.items():
        block = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        text = block.sub(lambda match, content=content: f"{match[1]}{content}{match[2]}", text)  # type: ignore[misc]
    return text


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |\n" for line in lines)
