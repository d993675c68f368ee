"""The program `jsam`: its commands, and what becomes of everything that can go wrong."""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import click
import numpy as np
import typer

import jsam
from jsam.cli import (
    audit,
    calibrate,
    compare,
    data,
    demo,
    deploy_local,
    plan,
    publish,
    report_run,
    resume,
    simulate,
    supernode,
    verify_contract,
)
from jsam.cli.output import EXIT_BUG, EXIT_STOPPED, deliver, fail, say
from jsam.cli.wording import in_options, invoked, usage_line
from jsam.errors import InputError, JsamError

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="docs/glossary.md explains all words and letters, from ε to virtual cost.",
)
_COMMANDS: dict[str, Any] = {
    "plan": plan, "audit": audit, "compare": compare, "demo": demo, "simulate": simulate, "resume": resume,
    "report": report_run, "publish": publish, "calibrate": calibrate, "deploy-local": deploy_local,
    "supernode": supernode, "verify-contract": verify_contract,
}  # fmt: skip
for _name, _module in _COMMANDS.items():
    app.command(_name, epilog=_module.EXAMPLES)(getattr(_module, _name.replace("-", "_")))
app.add_typer(data.app, name="data")


@app.command(
    "reproduce",
    hidden=True,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
)
def _reproduce() -> None:
    """Say where the command of earlier versions went, whatever its arguments are."""
    raise InputError("the paper's experiments are no part of jsam: in a checkout, run python -m reproduction --help")


@app.callback(invoke_without_command=True)
def program(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False
) -> None:
    """Buy privacy truthfully: from clients' reports to a contract that nobody gains by lying to."""
    if version:
        deliver(f"jsam {jsam.__version__}\n", None)
        raise typer.Exit
    if context.invoked_subcommand is None:
        deliver(context.get_help(), None)


@contextmanager
def _no_warnings() -> Iterator[None]:
    """Numbers that overflow on the way are judged by the result; a warning would be a second line in code's words."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        for kind in (RuntimeWarning, UserWarning, FutureWarning):  # numpy's, those of scipy and matplotlib, anyone's
            warnings.simplefilter("ignore", kind)
        yield


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 a check found a violation, 2 bad input."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A terminal that cannot show ε should show ?, not a traceback.
            stream.reconfigure(errors="replace")
    command = typer.main.get_command(app)
    try:
        with _no_warnings():
            code = command.main(arguments, prog_name="jsam", standalone_mode=False)
    except JsamError as error:
        return fail(in_options(str(error), invoked(command, sys.argv[1:] if arguments is None else arguments)))
    except click.ClickException as error:
        said = usage_line(error)
        return fail(said) if said else 0  # nothing to say: a group of commands alone, whose help is on the screen
    except (KeyboardInterrupt, click.Abort):
        code = EXIT_STOPPED
    except Exception:  # noqa: BLE001 - a bug of ours; Python's own exit code 1 would be taken for a violation
        traceback.print_exc()
        return EXIT_BUG
    if code == EXIT_STOPPED:
        say("stopped")
    return code if isinstance(code, int) else 0
