"""`jsam report`: what every client sold and what was spent of it, recomputed from the ledger."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsam.cli.options import Result, RunFolderArgument, examples, with_options
from jsam.cli.output import plain_table
from jsam.cli.running import run_lines, say_noise, stop_unless_kept

if TYPE_CHECKING:
    from rich.console import RenderableType

    from jsam.runs.settlement import Settlement

EXAMPLES = examples(
    "jsam report runs/a",
    "jsam report runs/a --format csv --output spending.csv",
)


@with_options
def report(*, folder: RunFolderArgument, result: Result) -> None:
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
    content = settlement.as_dict() | {"report": str(page)}
    result.deliver(lambda: content, "clients", lambda: _tables(content, settlement, folder, page))
    say_noise(settlement.settings)
    stop_unless_kept(settlement)


def _tables(content: dict[str, Any], settlement: Settlement, folder: Path, page: Path) -> Iterator[RenderableType]:
    yield spending_table(content["clients"])
    yield from run_lines(folder, settlement, page)
    yield files_table(content["files"])


def files_table(files: list[dict[str, str]]) -> RenderableType:
    """Which files may be shown to others, and why or why not."""
    table = plain_table("file", "publish?", "why")
    for file in files:
        table.add_row(file["name"], file["publish"], file["why"])
    return table


def spending_table(clients: list[dict[str, Any]]) -> RenderableType:
    """The clients that took part, the best paid first."""
    from rich.text import Text

    from jsam.report.run_data import payment_due
    from jsam.report.tables import number

    table = plain_table()
    table.add_column("client", no_wrap=True)
    parts = {"bought_for_training": "for training", "bought_for_labels": "for labels"}
    shown_parts = [name for name in parts if any(name in client for client in clients)]
    bought = ("ε sold", *(parts[name] for name in shown_parts))
    for name in ("draws", *bought, "ε spent", "second accountant", "payment", ""):
        table.add_column(name, justify="right")
    shown = [client for client in clients if client["releases"] or client["bought"]]
    for client in sorted(shown, key=lambda client: -(payment_due(client) or 0.0)):
        spent = "∞" if client["spent"] is None else number(client["spent"])
        sold = [number(client.get(name)) for name in ("bought", *shown_parts)]
        cells = (*sold, spent, number(client["second_opinion"]), number(payment_due(client)))
        remark = "OVER" if client["over"] else "" if client["participations"] else "never drawn"
        style = "bold red" if client["over"] else ""
        table.add_row(Text(client["id"]), str(client["participations"]), *cells, remark, style=style)
    return table
