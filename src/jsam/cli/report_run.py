"""`jsam report`: what every client sold and what was spent of it, recomputed from the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from jsam.cli.options import ResultOptions, with_options
from jsam.cli.output import Format, deliver, rendered, say
from jsam.cli.resume import Folder
from jsam.cli.running import EXIT_VIOLATION, say_noise
from jsam.report.plain import csv_text, json_text

if TYPE_CHECKING:
    from pathlib import Path

    from jsam.runs.settlement import Settlement

EXAMPLES = """
[bold]Examples[/bold]

  jsam report runs/a

  jsam report runs/a --format csv --output spending.csv
"""


@with_options
def report(*, folder: Folder, result: ResultOptions) -> None:
    """Recompute each client's spent ε from the ledger with two accountants, and write the report page anew.

    Every release is held against what the contract demands of it: noise, clipping norm, samples and draws. At the end
    stands which files of the folder may be shown to others; jsam publish copies those.

    Exit codes: 0 every contract kept, 1 a client is over its contract or the ledger is not the one that the contract
    demands, 2 bad input (one line on standard error).
    """
    from jsam.report.run_html import write_run_page
    from jsam.runs.settlement import settle

    result.check()
    settlement = settle(folder)
    page = write_run_page(folder)
    deliver(_text(settlement, result, folder, page), result.output)
    say_noise(settlement.settings)
    if not settlement.kept:
        for line in settlement.lines():
            say(line)
        raise typer.Exit(EXIT_VIOLATION)


def _text(settlement: Settlement, result: ResultOptions, folder: Path, page: Path) -> str:
    content = settlement.as_dict()
    kind = result.kind
    if kind is Format.JSON:
        return json_text({**content, "report": str(page)})
    if kind is Format.CSV:
        return csv_text(content["clients"])
    from jsam.cli.running import run_text

    to_file = result.output is not None
    files = files_table(content["files"], to_file=to_file)
    return spending_table(content["clients"], to_file=to_file) + run_text(folder, settlement, page) + files


def files_table(files: list[dict[str, str]], *, to_file: bool = False) -> str:
    """Which files may be shown to others, and why or why not."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("file", "publish?", "why"):
        table.add_column(name)
    for file in files:
        table.add_row(file["name"], file["publish"], file["why"])
    return rendered(table, to_file=to_file)


def spending_table(clients: list[dict[str, Any]], *, to_file: bool = False) -> str:
    """The clients that took part, the best paid first."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from jsam.report.tables import number

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("client", no_wrap=True)
    for name in ("draws", "ε sold", "ε spent", "second accountant", "payment", ""):
        table.add_column(name, justify="right")
    shown = [client for client in clients if client["releases"] or client["bought"]]
    for client in sorted(shown, key=lambda client: -(client["payment"] or 0.0)):
        spent = "∞" if client["spent"] is None else number(client["spent"])
        cells = (number(client["bought"]), spent, number(client["second_opinion"]), number(client["payment"]))
        remark = "OVER" if client["over"] else "" if client["releases"] else "never drawn"
        style = "bold red" if client["over"] else ""
        table.add_row(Text(client["id"]), str(client["participations"]), *cells, remark, style=style)
    return rendered(table, to_file=to_file)
