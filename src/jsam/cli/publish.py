"""`jsam publish`: a copy of a run that may be shown to anybody."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from jsam.cli.options import RESULT, RunFolderArgument, argument, examples, option, with_options
from jsam.cli.output import deliver, rendered
from jsam.cli.running import settled, stop_unless_kept

EXAMPLES = examples(
    "jsam publish runs/a public/a",
    "jsam publish runs/a public/a --with-ledger",
)


@with_options
def publish(
    *,
    folder: RunFolderArgument,
    target: Annotated[Path, argument("TARGET")],
    with_ledger: Annotated[
        bool,
        option(
            RESULT,
            "Copy the ledger too: everybody can then recompute what was spent, and each client's sensitivity.",
            "--with-ledger",
        ),
    ] = False,
) -> None:
    """Copy what may be shown of the complete run in FOLDER to the new folder TARGET: the model and what is promised.

    What stays behind, and why, is in the list of jsam report. Nothing is copied of a run whose noise is known.

    Exit codes: 0 done, 1 a client is over its contract or the ledger is not the one that the contract demands, 2 bad
    input (one line on standard error).
    """
    from jsam.runs.publishing import publish as copy_to

    settlement, _ = settled(folder)
    stop_unless_kept(settlement, "nothing is published")
    copy_to(folder, target, settlement, with_ledger=with_ledger)
    names = ", ".join(sorted(path.name for path in target.iterdir()))
    deliver(rendered(f"{target} may be shown to anybody: {names}"), None)
