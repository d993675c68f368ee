"""`jsam audit`: check from the outside that lying never pays, nobody loses, and the cost is what is claimed."""

from __future__ import annotations

from typing import Annotated

import typer

from jsam.cli.inputs import Inputs
from jsam.cli.options import ClientsFile, Result, examples, option, with_options
from jsam.cli.output import EXIT_VIOLATION, progress_bar
from jsam.cli.rule_options import Economy

EXAMPLES = examples(
    "jsam audit clients.csv --prior uniform:0,1 --loss-weight 5",
    "jsam audit clients.csv --prior beta:2,5 --budget 10 --mechanism fsbm-50 --format json",
    "jsam audit clients.csv --rules rules.toml --mechanism jsam-ci --strict",
)

AUDIT = "Audit"


@with_options
def audit(
    *,
    clients: ClientsFile,
    economy: Economy,
    strict: Annotated[
        bool,
        option(AUDIT, "Hold a mechanism to truthfulness that does not claim it.", "--strict"),
    ] = False,
    grid: Annotated[int, option(AUDIT, "False reports to try for each client, before refining.")] = 64,
    result: Result,
) -> None:
    """Try to catch a mechanism cheating: gains from lies, losses from the truth, wrong payments, wrong costs.

    The reports are taken as the truth, and every promise is derived again without the planner's own code. Large
    markets are sampled. CLIENTS.csv and the options are those of jsam plan.

    Exit codes: 0 all promises hold, 1 a violation was found, 2 bad input (one line on standard error).
    """
    rules = economy.rules()
    result.check(sources=[clients, *economy.sources(rules)], write_rules=economy.written)
    inputs = Inputs.read(clients, rules)
    mechanism, _ = inputs.settled_mechanism()

    from jsam.mechanism.audit import audit as run_audit
    from jsam.mechanism.audit.choice import ALL_CLIENTS_UP_TO
    from jsam.report.tables import audit_tables

    everybody = inputs.market.num_clients if inputs.market.num_clients <= ALL_CLIENTS_UP_TO else None
    with inputs.locating_errors(), progress_bar(f"Audit of {mechanism.name}", everybody) as bar:
        # Numbers beyond floating point are the input's fault, not a broken promise of the mechanism.
        inputs.planned(mechanism, payments=False)
        report = run_audit(
            inputs.market,
            mechanism,
            grid=grid,
            strict=strict,
            budget=rules.budget,
            budget_probability=rules.budget_probability,
            progress=bar.advance,
            seed=rules.seed,
        )
    result.deliver(
        report.as_dict, "checks", lambda: audit_tables(report, why=economy.why(rules)), beside=economy.files(rules)
    )
    if not report.ok:
        raise typer.Exit(EXIT_VIOLATION)
