"""`jsam reproduce`: the paper's figures and tables, from specifications to stored results to a page."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jsam.cli.output import Format, check_folder, deliver, rendered, require_matplotlib, say
from jsam.cli.running import require_torch
from jsam.errors import InputError

if TYPE_CHECKING:
    from reproduction.paths import Places
    from reproduction.spec import Spec

EXAMPLES = """
[bold]Examples[/bold]

  jsam reproduce list

  jsam reproduce run table-mnist --device cuda

  jsam reproduce table table-mnist --format json

  jsam reproduce render
"""


def _example(*lines: str) -> str:
    return "\n\n".join(["[bold]Examples[/bold]", *(f"  jsam reproduce {line}" for line in lines)])


app = typer.Typer(
    help="The paper's figures and tables: make the missing runs, show what is stored.",
    no_args_is_help=True,
    epilog=EXAMPLES,
)

Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", show_default=False)]
Root = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="A checkout of jsam. \\[default: the one you are in, else the one jsam is installed from]",
    ),
]
Output = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Where new results go. \\[default: results/paper of the checkout]")
]
Further = Annotated[
    Path | None, typer.Option("--output", metavar="DIR", help="Count what run --output DIR stored there too.")
]
Pages = Annotated[
    Path | None,
    typer.Option(
        "--output",
        metavar="DIR",
        help="Where figures and page go; what run --output DIR stored there counts too. "
        "\\[default: results/paper of the checkout]",
    ),
]


# Said where runs are about to be trained on a CPU: whoever has read how fast a GPU was would wait for that.


def _ids_or_all(ids: list[str] | None, everything: bool, known: list[str]) -> None:
    """Refuse to take no ID for all of them: that is for who says so."""
    if ids and everything:
        raise InputError("give either ID or --all, not both")
    if not ids and not everything:
        raise InputError(f"give an ID or --all; there are: {' '.join(known)}")


def _opened(
    ids: list[str] | None, root: Path | None, output: Path | None, *, read_only: bool = True
) -> tuple[list[Spec], Places]:
    from reproduction.paths import Places
    from reproduction.spec import load_specs

    if output is not None and not read_only:
        check_folder(output)
    places = Places.of(root, output, read_only=read_only)
    return load_specs(places, ids or ()), places


@app.command("list", epilog=_example("list", "list 'panels-*'"))
def list_experiments(ids: Ids = None, *, root: Root = None, output: Further = None) -> None:
    """The experiments, what each shows of the paper, and how much of it is stored.

    ID is an experiment's name, or a pattern as in 'panels-*'; give several, or none for all.
    """
    from rich.text import Text

    from jsam.report.tables import plain_table
    from reproduction.tabulate import progress_of

    specs, places = _opened(ids, root, output)
    progress = progress_of(specs, places)
    rows = [(spec.id, str(progress[spec.id]), spec.title) for spec in specs]
    deliver(rendered(plain_table(("experiment", "stored", "what"), rows), Text("")), None)


@app.command(epilog=_example("plan table-mnist"))
def plan(ids: Ids = None, *, root: Root = None) -> None:
    """Find η for every cost, and the losses that BBM selects by; a machine with an accelerator then need only train.

    ID is an experiment's name, or a pattern as in 'panels-*'; give several, or none for all.
    """
    require_torch()
    from reproduction.planning import Plans
    from reproduction.prerequisites import waiting_lines
    from reproduction.tuned_settings import Chosen

    specs, places = _opened(ids, root, None)
    chosen = Chosen.load(places.chosen)
    runs = [config for spec in specs for config in spec.runs(chosen)]
    for line in waiting_lines(specs, chosen, places).values():
        say(line)
    Plans.load(places.plans).prepare(runs, tell=say)
    say(f"{len(runs)} runs are planned")


@app.command(
    epilog=_example(
        "run table-mnist --device cuda --precision tf32",
        "run 'panels-*' --only '*/jsam/*seed0' --limit-seconds 600",
    )
)
def run(
    ids: Ids = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="All experiments.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    precision: Annotated[str, typer.Option(help="fp32, tf32 or bf16; the latter two on cuda.")] = "fp32",
    only: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="Only runs whose name or key fits, as in '*/jsam/*seed0'.")
    ] = None,
    limit_seconds: Annotated[
        float,
        typer.Option(show_default="no limit", help="Begin no run after this time, above 0; the next call goes on."),
    ] = math.inf,
    root: Root = None,
    output: Output = None,
) -> None:
    """Make the runs that are missing; each is stored as soon as it is there, so stopping loses nothing.

    ID is an experiment's name, or a pattern as in 'panels-*'; give several, or --all.
    """
    require_torch()
    from reproduction.running import run_specs

    specs, places = _opened(ids, root, output, read_only=False)
    _ids_or_all(ids, everything, [spec.id for spec in specs])
    outcome = run_specs(
        specs, places, device=device, precision=precision, only=only or (), limit_seconds=limit_seconds, tell=say
    )
    say(str(outcome))


@app.command(epilog=_example("merge from-the-other-machine"))
def merge(
    folder: Annotated[Path, typer.Argument(metavar="DIR", show_default=False)],
    *,
    root: Root = None,
) -> None:
    """Bring in results that another machine made with --output DIR."""
    from reproduction.paths import Places
    from reproduction.store import merge as merged

    new, same = merged(folder, Places.of(root).results)
    say(f"{new} runs are new, {same} were known")


@app.command(epilog=_example("choose"))
def choose(*, root: Root = None, output: Further = None) -> None:
    """Fix c₂, Q and the learning rates by the stated rule, from the stored tuning runs.

    They are written to results/paper/chosen.toml of the checkout; docs/reproduction.md states the rule.
    """
    from reproduction.choosing import choose as chosen_by_rule
    from reproduction.paths import Places

    places = Places.of(root, output, read_only=True)
    values = chosen_by_rule(places)
    say(f"wrote {places.chosen}: {values['status']}")


@app.command(epilog=_example("table table-mnist", "table 'panels-*' --format csv", "table --all --format json"))
def table(
    ids: Ids = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="All experiments with a table, but the tuning.")] = False,
    form: Annotated[Format, typer.Option("--format", help="table, json or csv.")] = Format.TABLE,
    root: Root = None,
    output: Further = None,
) -> None:
    """Stored accuracies (percent) and costs, the paper's beside them.

    ID is an experiment's name, or a pattern as in 'panels-*'; give several, or --all.
    """
    from jsam.report.plain import csv_text
    from jsam.report.tables import plain_table
    from reproduction.prerequisites import waiting_lines
    from reproduction.tabulate import COLUMNS, READABLE, readable, table_rows
    from reproduction.tuned_settings import Chosen

    specs, places = _opened(ids, root, output)
    _ids_or_all(ids, everything, [spec.id for spec in specs if spec.kind != "planner"])
    groups = table_rows([spec for spec in specs if ids or spec.kind == "training"], places)
    rows = [row for group in groups.values() for row in group]
    for spec in specs if ids else ():
        if spec.kind == "planner":
            say(f"{spec.id} has no table, only figures and claims: jsam reproduce render")
    for line in waiting_lines(specs if ids else (), Chosen.load(places.chosen), places).values():
        say(line)
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


@app.command(epilog=_example("render", "render 'panels-*' --output pictures"))
def render(ids: Ids = None, *, root: Root = None, output: Pages = None) -> None:
    """Figures and one page from what is stored; nothing is run, and what is missing is shown as missing.

    ID is an experiment's name, or a pattern as in 'panels-*'; give several, or none for all. It picks the figures, the
    page has all. Without --output the tables in docs/reproduction.md and README.md of the checkout are filled in too.
    """
    require_matplotlib("reproduce render")
    from reproduction.rendering import render_all

    _, places = _opened(ids, root, output, read_only=False)
    for path in render_all(places, ids or ()):
        say(f"wrote {path}")
