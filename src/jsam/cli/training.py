"""The commands about private training, added to the program."""

from __future__ import annotations

import typer

from jsam.cli import calibrate, data, demo, publish, report_run, reproduce, resume, simulate


def register(app: typer.Typer) -> None:
    """Add demo, simulate, resume, report, publish, calibrate, data and reproduce."""
    app.command("demo", epilog=demo.EXAMPLES)(demo.demo)
    app.command("simulate", epilog=simulate.EXAMPLES)(simulate.simulate)
    app.command("resume", epilog=resume.EXAMPLES)(resume.resume)
    app.command("report", epilog=report_run.EXAMPLES)(report_run.report)
    app.command("publish", epilog=publish.EXAMPLES)(publish.publish)
    app.command("calibrate", epilog=calibrate.EXAMPLES)(calibrate.calibrate)
    app.add_typer(data.app, name="data")
    app.add_typer(reproduce.app, name="reproduce")
