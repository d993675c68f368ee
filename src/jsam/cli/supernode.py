"""`jsam supernode`: one client of a federation, on the client's own terms."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from jsam.cli.client_books import adopted, paused, policy_page, statement_page, withdrawn
from jsam.cli.options import RESULT, argument, examples, option, with_options
from jsam.cli.output import PageFormat, deliver, require_flower, say
from jsam.errors import InputError

EXAMPLES = examples(
    "jsam supernode client.toml --superlink server.example:8000 --root-certificates ca.crt --key hospital-a",
    "jsam supernode client.toml --statement",
    "jsam supernode client.toml --show-policy",
    "jsam supernode client.toml --pause",
    "jsam supernode client.toml --withdraw three-hospitals",
)

CONNECTION = "How to reach the server"
OWN = "Without any server"


@with_options
def supernode(
    *,
    client: Annotated[Path, argument("CLIENT.toml")],
    superlink: Annotated[str | None, option(CONNECTION, "The SuperLink.", metavar="HOST:PORT")] = None,
    root_certificates: Annotated[
        Path | None, option(CONNECTION, "Who may vouch for the SuperLink.", metavar="CA.crt")
    ] = None,
    key: Annotated[Path | None, option(CONNECTION, "The private key that the server knows.", metavar="FILE")] = None,
    insecure: Annotated[bool, option(CONNECTION, "Plain text and no key: on one machine only.", "--insecure")] = False,
    port: Annotated[int, option(CONNECTION, "A free port of this machine's own.", min=1, max=65535)] = 8001,
    app: Annotated[str, option(None, "Another installed app, as module:name.")] = "jsam.flower.client_app:deployed",
    statement: Annotated[bool, option(OWN, "Only show what the ledger says.", "--statement")] = False,
    show_policy: Annotated[
        bool, option(OWN, "Show all limits on what is sold, with those that nobody wrote down.", "--show-policy")
    ] = False,
    pause: Annotated[
        bool | None,
        option(
            OWN,
            "Answer no request, with the reason `paused`, until --unpause. Nothing is lost or closed.",
            "--pause/--unpause",
            show_default=False,
        ),
    ] = None,
    withdraw: Annotated[
        str | None,
        option(
            OWN,
            "End this campaign for good: nothing more is released. Says what was spent and what is due.",
            metavar="CAMPAIGN",
        ),
    ] = None,
    adopt_ledger: Annotated[
        bool,
        option(
            OWN,
            "Take over a ledger of an earlier version, as it is. Only if you know that nothing in it is missing.",
            "--adopt-ledger",
        ),
    ] = False,
    format: Annotated[PageFormat, option(RESULT, "Of the statement.")] = PageFormat.TABLE,  # noqa: A002
) -> None:
    """Take part in campaigns as the client of CLIENT.toml, show its accounts, pause, or leave a campaign.

    CLIENT.toml holds `name`, `sensitivity`, `data` (an .npz of `inputs` and `targets`), `ledger` (a folder) and, if you
    like, `policy` (limits on what is sold; what it leaves out has a default, see --show-policy). The app that runs is
    the one installed here, whatever a server ships.
    """
    from jsam.campaign.client.client_files import ClientFiles

    alone = sum((statement, show_policy, pause is not None, withdraw is not None, adopt_ledger))
    if alone > 1:
        raise InputError("give one of --statement, --show-policy, --pause, --unpause, --withdraw and --adopt-ledger")
    if alone:
        files = ClientFiles.load(client)
        if statement:
            page = statement_page(files, format)
        elif show_policy:
            page = policy_page(files, format)
        elif pause is not None:
            page = paused(files, pause)
        elif withdraw is not None:
            page = withdrawn(files, withdraw)
        else:
            page = adopted(files)
        deliver(page, None)
        return
    require_flower("supernode")
    from jsam.files import keep_private
    from jsam.flower.launch.processes import quiet_environment
    from jsam.flower.launch.supernode import become_supernode

    if superlink is None:
        raise InputError("give --superlink HOST:PORT (or what needs no server, such as --statement)")
    host, _, number = superlink.rpartition(":")
    if not host or not (number.isascii() and number.isdigit() and 0 < int(number) < 65536):
        raise InputError(f"--superlink is {superlink!r}; it must be HOST:PORT, as in server.example:8000")
    ClientFiles.load(client).books().check()  # what is wrong with either is said alone
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
