"""`jsam compare`: all mechanisms on the same clients, side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import typer

from jsam.cli.inputs import Inputs
from jsam.cli.options import ECONOMY, ClientsFile, EconomyOptions, PlotFile, ResultOptions, known_here, with_options
from jsam.cli.output import Format, deliver, progress_bar, rendered
from jsam.cli.plan import planned
from jsam.cli.wording import in_options
from jsam.errors import InputError
from jsam.mechanism.contract import Contract
from jsam.report.plain import csv_text, json_text

EXAMPLES = """
[bold]Examples[/bold]

  jsam compare clients.csv --prior uniform:0,1 --loss-weight 5

  jsam compare clients.csv --prior uniform:0,1 --budget 10 --plot compare.png

  jsam compare clients.csv --prior beta:2,5 --loss-weight 5 --mechanism jsam --mechanism fsbm-20 --format csv
"""

COLUMNS = (
    "mechanism",
    "num_selected",
    "loss_weight",
    "expected_cost",
    "total_payment",
    "loss_bound",
    "objective",
    "truthful",
    "error",
)

# The sweep behind the pictures: so many loss weights, so far to both sides of the one asked for.
SWEEP_POINTS, SWEEP_POINTS_LARGE, SWEEP_REACH = 49, 17, 25.0
# The noise weight under which the paper's numbers of selected clients come out (docs/theory.md, "The mechanisms").
PAPER_NOISE_WEIGHT, PAPER_CLIENTS = 9.0, 100


@with_options
def compare(
    *,
    clients: ClientsFile,
    economy: EconomyOptions,
    mechanism: Annotated[
        list[str] | None,
        typer.Option(
            help="A mechanism to compare; repeat for several. Without any: jsam  jsam-ci  usbm, fsbm with half and"
            " three quarters of the clients, and bbm with half if there are losses.",
            parser=known_here,
            metavar="NAME",
            rich_help_panel=ECONOMY,
        ),
    ] = None,
    result: ResultOptions,
    plot: PlotFile = None,
) -> None:
    """Plan with every mechanism for the same clients: at the same loss weight, or each at its own for one budget.

    CLIENTS.csv and the options are those of jsam plan.

    Exit codes: 0 done, 2 bad input (one line on standard error).
    """
    result.check(plot, sources=[clients, *economy.past_reports])
    inputs = Inputs.read(clients, economy)
    names, notes = (mechanism, []) if mechanism else _all_names(inputs)
    rows = _rows(inputs, names)
    content: dict[str, Any] = {
        "num_clients": inputs.market.num_clients,
        "noise_weight": economy.noise_weight,
        "bias_weight": economy.bias_weight,
        "budget": economy.budget,
        "mechanisms": rows,
        "notes": notes,
    }
    if plot is not None:
        content["sweep"] = _sweep(inputs, rows)
    text, picture = _text(content, result), b""
    if plot is not None:
        from jsam.report.figures import compare_picture

        picture = compare_picture(rows, content["sweep"], plot.suffix)
    deliver(text, result.output, picture=picture, plot=plot)


def _all_names(inputs: Inputs) -> tuple[list[str], list[str]]:
    N = inputs.market.num_clients
    half, most = max(1, round(N / 2)), max(1, round(3 * N / 4))
    names = list(dict.fromkeys(["jsam", "jsam-ci", "usbm", f"fsbm-{half}", f"fsbm-{most}"]))
    if inputs.market.losses is not None:
        return [*names, f"bbm-{half}"], []
    return names, [f"bbm-{half} is left out: it selects by local loss, and {inputs.table.source} has no column 'loss'"]


def _rows(inputs: Inputs, names: Sequence[str]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    errors: list[InputError] = []
    for name in names:
        inputs.mechanism(name)  # A name or a weight that is wrong is wrong for the whole comparison.
        try:
            contract, _ = planned(inputs, name, payments=True)
            rows.append({**_record(contract), "error": None})
        except InputError as error:
            errors.append(error)
            rows.append({**dict.fromkeys(COLUMNS), "mechanism": name, "error": in_options(str(error))})
    if len(errors) == len(rows):
        raise errors[0]
    return rows


def _record(contract: Contract) -> dict[str, Any]:
    return {name: getattr(contract, name) for name in COLUMNS if name != "error"}


def _sweep(inputs: Inputs, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What each mechanism buys over a range of loss weights: one plain record a point."""
    runs = list(_sweep_runs(inputs, rows))
    records = []
    with progress_bar("Sweep over loss weights", len(runs)) as bar:
        for mechanism in runs:
            contract = mechanism.plan(inputs.market, payments=False)
            records.append({**_record(contract), "noise_weight": mechanism.noise_weight})
            bar.advance(1)
    return records


def _sweep_runs(inputs: Inputs, rows: Sequence[dict[str, Any]]) -> Iterator[Any]:
    good = [row for row in rows if row["error"] is None]
    centre = good[0]["loss_weight"]
    points = SWEEP_POINTS if inputs.market.num_clients <= 5000 else SWEEP_POINTS_LARGE
    etas = centre * np.geomspace(1 / SWEEP_REACH, SWEEP_REACH, points)
    for row in good:
        mechanism = inputs.mechanism(row["mechanism"])
        for eta in etas:
            yield mechanism.with_loss_weight(float(eta))
        paper_scale = row["mechanism"] == "jsam" and inputs.market.num_clients == PAPER_CLIENTS
        if paper_scale and mechanism.noise_weight != PAPER_NOISE_WEIGHT:
            for eta in etas:
                yield replace(mechanism, loss_weight=float(eta), noise_weight=PAPER_NOISE_WEIGHT)


def _text(content: dict[str, Any], result: ResultOptions) -> str:
    kind = result.kind
    if kind is Format.JSON:
        return json_text(content)
    if kind is Format.CSV:
        return csv_text(content["mechanisms"], COLUMNS)
    from jsam.report.tables import compare_table

    return rendered(compare_table(content["mechanisms"], content["notes"]), to_file=result.output is not None)
