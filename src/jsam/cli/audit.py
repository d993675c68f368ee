"""`jsam audit`: check from the outside that lying never pays, nobody loses, and the cost is what is claimed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from jsam.cli.inputs import Inputs
from jsam.cli.options import ClientsFile, EconomyOptions, MechanismName, ResultOptions, with_options
from jsam.cli.output import (
    EXIT_VIOLATION,
    Format,
    deliver,
    progress_bar,
    rendered,
)
from jsam.cli.plan import finite_contract
from jsam.report.plain import csv_text, json_text

if TYPE_CHECKING:
    from jsam.mechanism.audit import AuditReport

EXAMPLES = """
[bold]Examples[/bold]

  jsam audit clients.csv --prior uniform:0,1 --loss-weight 5

  jsam audit clients.csv --prior beta:2,5 --budget 10 --mechanism fsbm-50 --format json

  jsam audit clients.csv --prior uniform:0,1 --loss-weight 5 --mechanism jsam-ci --strict
"""

AUDIT = "Audit"


@with_options
def audit(
    *,
    clients: ClientsFile,
    economy: EconomyOptions,
    mechanism: MechanismName = "jsam",
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Hold a mechanism to truthfulness that does not claim it.", rich_help_panel=AUDIT
        ),
    ] = False,
    grid: Annotated[
        int, typer.Option(help="False reports to try for each client, before refining.", rich_help_panel=AUDIT)
    ] = 64,
    result: ResultOptions,
) -> None:
    """Try to catch a mechanism cheating: gains from lies, losses from the truth, wrong payments, wrong costs.

    The reports are taken as the truth, and every promise is derived again without the planner's own code. Large
    markets are sampled. CLIENTS.csv and the options are those of jsam plan.

    Exit codes: 0 all promises hold, 1 a violation was found, 2 bad input (one line on standard error).
    """
    result.check(sources=[clients, *economy.past_reports])
    inputs = Inputs.read(clients, economy)
    chosen, _ = inputs.within_budget(inputs.mechanism(mechanism))

    from jsam.mechanism.audit import audit as run_audit

    with inputs.table.locating_errors(), progress_bar(f"Audit of {mechanism}", _audited(inputs)) as bar:
        # Numbers beyond floating point are the input's fault, not a broken promise of the mechanism.
        finite_contract(inputs, chosen, payments=False)
        report = run_audit(
            inputs.market,
            chosen,
            grid=grid,
            strict=strict,
            budget=economy.budget,
            budget_probability=economy.budget_probability,
            progress=bar.advance,
            seed=economy.seed,
        )
    deliver(_text(report, result), result.output)
    if not report.ok:
        raise typer.Exit(EXIT_VIOLATION)


def _audited(inputs: Inputs) -> int | None:
    from jsam.mechanism.audit.choice import ALL_CLIENTS_UP_TO

    return inputs.market.num_clients if inputs.market.num_clients <= ALL_CLIENTS_UP_TO else None


def _text(report: AuditReport, result: ResultOptions) -> str:
    kind = result.kind
    if kind is Format.JSON:
        return json_text(report.as_dict())
    if kind is Format.CSV:
        return csv_text([check.as_dict() for check in report.checks])
    from jsam.report.tables import audit_tables

    return rendered(*audit_tables(report), to_file=result.output is not None)
