"""`jsam supernode`: one client of a federation, on the client's own terms."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from jsam.cli.options import RESULT, with_options
from jsam.cli.output import PageFormat, deliver, rendered, say
from jsam.cli.running import require_flower
from jsam.errors import InputError
from jsam.report.plain import json_text

EXAMPLES = """
[bold]Examples[/bold]

  jsam supernode client.toml --superlink server.example:8000 --root-certificates ca.crt --key hospital-a

  jsam supernode client.toml --statement
"""

CONNECTION = "How to reach the server"


@with_options
def supernode(
    *,
    client: Annotated[Path, typer.Argument(metavar="CLIENT.toml", show_default=False)],
    superlink: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The SuperLink.", rich_help_panel=CONNECTION)
    ] = None,
    root_certificates: Annotated[
        Path | None,
        typer.Option(metavar="CA.crt", help="Who may vouch for the SuperLink.", rich_help_panel=CONNECTION),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The private key that the server knows.", rich_help_panel=CONNECTION),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Plain text and no key: on one machine only.", rich_help_panel=CONNECTION)
    ] = False,
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="A free port of this machine's own.", rich_help_panel=CONNECTION)
    ] = 8001,
    app: Annotated[
        str, typer.Option(help="Another installed app, as module:name.")
    ] = "jsam.flower.client_app:deployed",
    statement: Annotated[
        bool, typer.Option("--statement", help="Only show what the ledger says.", rich_help_panel=RESULT)
    ] = False,
    format: Annotated[  # noqa: A002 - the option's name
        PageFormat, typer.Option(help="Of the statement.", rich_help_panel=RESULT)
    ] = PageFormat.TABLE,
) -> None:
    """Take part in campaigns as the client of CLIENT.toml, or show its accounts.

    CLIENT.toml holds `name`, `sensitivity`, `data` (an .npz of `inputs` and `targets`), `ledger` (a folder) and, if you
    like, `policy` (limits on what is sold). The app that runs is the one installed here, whatever a server ships.
    """
    if statement:
        deliver(_statement(client, format), None)
        return
    require_flower("supernode")
    from jsam.flower.client_files import ClientFiles
    from jsam.flower.processes import quiet_environment
    from jsam.flower.supernode import become_supernode
    from jsam.privacy.files import keep_private

    if superlink is None:
        raise InputError("give --superlink HOST:PORT (or --statement)")
    host, _, number = superlink.rpartition(":")
    if not host or not (number.isascii() and number.isdigit() and 0 < int(number) < 65536):
        raise InputError(f"--superlink is {superlink!r}; it must be HOST:PORT, as in server.example:8000")
    ClientFiles.load(client)  # what is wrong with it is said alone
    options = ["--superlink", superlink, "--host", "127.0.0.1", "--port", str(port)]
    if insecure:
        if key is not None or root_certificates is not None:
            raise InputError("give --insecure, or --root-certificates and --key, not both")
        say("warning: plain text and no proof of identity; anybody on the way can read and pretend")
        options.append("--insecure")
    else:
        if key is None:
            raise InputError("give --key, the private key whose public half the server registered (or --insecure)")
        for option, path in (("--key", key), ("--root-certificates", root_certificates)):
            if path is not None and not path.is_file():
                raise InputError(f"{option} {str(path)!r} is not a file")
        keep_private(key, "--key")
        options += ["--auth-supernode-private-key", str(key.absolute())]
        if root_certificates is not None:
            options += ["--root-certificates", str(root_certificates.absolute())]
    home = client.absolute().parent / "flower"
    become_supernode(client, options, environment=quiet_environment(home), app=app)


def _statement(client_file: Path, format: PageFormat) -> str:  # noqa: A002
    from jsam.flower.client_files import ClientFiles
    from jsam.flower.client_ledger import ClientLedger

    files = ClientFiles.load(client_file)
    ledger = ClientLedger(files.ledger, files.policy)
    rows = [entry.as_dict() for entry in ledger.statement()]
    if format is PageFormat.JSON:
        return json_text(
            {"client": files.name, "spent": ledger.spent().as_dict(), "campaigns": json.loads(json.dumps(rows))}
        )
    from rich.table import Table
    from rich.text import Text

    table = Table(title=f"What {files.name} has sold, spent and earned")
    table.add_column("campaign", overflow="fold")
    for title in ("ε sold", "ε spent", "draws", "payment", "state"):
        table.add_column(title, justify="right")
    for row in rows:
        table.add_row(
            row["campaign"],
            f"{row['epsilon_bought']:.4g}",
            f"{row['epsilon_spent']:.4g}",
            f"{row['participations']} of {row['participations_bought']}",
            f"{row['payment']:.4g}",
            _state(row),
        )
    spent = ledger.spent()
    return rendered(table, Text(f"Spent over all campaigns (sums): ε = {spent.epsilon:.4g} at δ = {spent.delta:.3g}"))


def _state(row: Mapping[str, Any]) -> str:
    """A client is not told that a campaign is over; it knows when no draw is left to answer."""
    if row["withdrawn"]:
        return "withdrawn"
    if row["participations"] >= row["participations_bought"]:
        return "done"
    return "closed" if row["closed"] else "open"
