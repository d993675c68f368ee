"""`jsam reproduce`: the paper's figures and tables, from specifications to stored results to a page."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jsam.cli.output import Format, deliver, rendered, require_matplotlib, say
from jsam.cli.running import require_torch

if TYPE_CHECKING:
    from jsam.experiments.places import Places
    from jsam.experiments.spec import Spec

EXAMPLES = """
[bold]Examples[/bold]

  jsam reproduce list

  jsam reproduce run table-mnist --device cuda

  jsam reproduce table table-mnist --format json

  jsam reproduce render
"""

app = typer.Typer(
    help="The paper's figures and tables: make the missing runs, show what is stored.",
    no_args_is_help=True,
    epilog=EXAMPLES,
)

Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", show_default=False)]
Root = Annotated[Path | None, typer.Option(metavar="DIR", help="A checkout of jsam. [default: the one you are in]")]
Output = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Where new results go. [default: results/paper of the checkout]")
]


def _opened(ids: list[str] | None, root: Path | None, output: Path | None) -> tuple[list[Spec], Places]:
    from jsam.experiments.places import Places
    from jsam.experiments.spec import load_specs

    places = Places.of(root, output)
    return load_specs(places, ids or ()), places


@app.command("list")
def list_experiments(ids: Ids = None, *, root: Root = None, output: Output = None) -> None:
    """The experiments, what each shows of the paper, and how much of it is stored."""
    from rich.text import Text

    from jsam.experiments.tabulate import progress_of
    from jsam.report.tables import plain_table

    specs, places = _opened(ids, root, output)
    rows = []
    for spec in specs:
        there, wanted = progress_of(spec, places)
        rows.append((spec.id, f"{there} of {wanted}", spec.title))
    deliver(rendered(plain_table(("experiment", "stored", "what"), rows), Text("")), None)


@app.command()
def plan(ids: Ids = None, *, root: Root = None, output: Output = None) -> None:
    """Find η for every cost, and the losses that BBM selects by; a machine with an accelerator then need only train."""
    require_torch()
    from jsam.experiments.chosen import Chosen
    from jsam.experiments.planning import Plans

    specs, places = _opened(ids, root, output)
    chosen = Chosen.load(places.chosen)
    runs = [config for spec in specs for config in spec.runs(chosen)]
    Plans.load(places.plans).prepare(runs, tell=say)
    say(f"{len(runs)} runs are planned")


@app.command()
def run(
    ids: Ids = None,
    *,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    precision: Annotated[str, typer.Option(help="fp32, tf32 or bf16; the latter two on cuda.")] = "fp32",
    only: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="Only runs whose name or key fits, as in '*/jsam/*seed0'.")
    ] = None,
    limit_seconds: Annotated[float, typer.Option(help="Stop after this time; the rest is made by the next call.")] = (
        math.inf
    ),
    root: Root = None,
    output: Output = None,
) -> None:
    """Make the runs that are missing; each is stored as soon as it is there, so stopping loses nothing."""
    require_torch()
    from jsam.experiments.running import run_specs

    specs, places = _opened(ids, root, output)
    outcome = run_specs(
        specs, places, device=device, precision=precision, only=only or (), limit_seconds=limit_seconds, tell=say
    )
    say(f"{outcome.made} runs made in {outcome.seconds:.0f} s, {outcome.left} left")


@app.command()
def merge(folder: Annotated[Path, typer.Argument(metavar="DIR", show_default=False)], *, root: Root = None) -> None:
    """Bring in results that another machine made with --output DIR."""
    from jsam.experiments.places import Places
    from jsam.experiments.store import merge as merged

    new, same = merged(folder, Places.of(root).results)
    say(f"{new} runs are new, {same} were known")


@app.command()
def choose(*, root: Root = None) -> None:
    """Fix c₂, Q and the learning rates by the stated rule, from the stored tuning runs."""
    from jsam.experiments.choosing import choose as chosen_by_rule
    from jsam.experiments.places import Places

    places = Places.of(root)
    values = chosen_by_rule(places)
    say(f"wrote {places.chosen}: {values['status']}")


@app.command()
def table(
    ids: Ids = None,
    *,
    form: Annotated[Format, typer.Option("--format", help="table, json or csv.")] = Format.TABLE,
    root: Root = None,
    output: Output = None,
) -> None:
    """Stored accuracies (percent) and costs, the paper's beside them; without ID, all experiments but the tuning."""
    from jsam.experiments.tabulate import COLUMNS, READABLE, readable, table_rows
    from jsam.report.plain import csv_text
    from jsam.report.tables import plain_table

    specs, places = _opened(ids, root, output)
    groups = table_rows([spec for spec in specs if ids or spec.kind == "training"], places)
    rows = [row for group in groups.values() for row in group]
    for spec in specs if ids else ():
        if spec.kind == "planner":
            say(f"{spec.id} has no table, only figures and claims: jsam reproduce render")
    if form is Format.JSON:
        deliver(json.dumps(rows, indent=1) + "\n", None)
    elif form is Format.CSV:
        deliver(csv_text(rows, COLUMNS), None)
    else:
        titles = {spec.id: spec.title for spec in specs}
        parts = [
            plain_table(READABLE, [readable(row) for row in group], titles[name]) for name, group in groups.items()
        ]
        deliver(rendered(*parts) if parts else "", None)


@app.command()
def render(ids: Ids = None, *, root: Root = None, output: Output = None) -> None:
    """Figures and one page from what is stored; nothing is run, and what is missing is shown as missing."""
    require_matplotlib("reproduce render")
    from jsam.experiments.places import Places
    from jsam.experiments.rendering import render_all

    for path in render_all(Places.of(root, output), ids or ()):
        say(f"wrote {path}")
