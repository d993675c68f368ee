"""The commands about private training, added to the program."""

from __future__ import annotations

import typer

from jsam.cli import calibrate, data, demo, publish, report_run, resume, simulate
from jsam.errors import InputError


def register(app: typer.Typer) -> None:
    """Add demo, simulate, resume, report, publish, calibrate and data."""
    app.command("demo", epilog=demo.EXAMPLES)(demo.demo)
    app.command("simulate", epilog=simulate.EXAMPLES)(simulate.simulate)
    app.command("resume", epilog=resume.EXAMPLES)(resume.resume)
    app.command("report", epilog=report_run.EXAMPLES)(report_run.report)
    app.command("publish", epilog=publish.EXAMPLES)(publish.publish)
    app.command("calibrate", epilog=calibrate.EXAMPLES)(calibrate.calibrate)
    app.add_typer(data.app, name="data")
    app.command("reproduce", hidden=True, context_settings=_ANY_ARGUMENTS)(_reproduce)


_ANY_ARGUMENTS = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def _reproduce() -> None:
    """Say where the command of earlier versions went, whatever its arguments are."""
    raise InputError("the paper's experiments are no part of jsam: in a checkout, run python -m reproduction --help")
