"""`jsam plan`: from reports to a contract."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from jsam.cli.options import (
    RESULT,
    ClientsFile,
    EconomyOptions,
    MechanismName,
    PlotFile,
    ResultOptions,
    with_options,
)
from jsam.cli.output import Format, check_targets, chosen_format, deliver, progress_bar, rendered, say
from jsam.cli.setup import Setup
from jsam.mechanism.contract import Contract
from jsam.mechanism.mechanisms import plan as make_contract
from jsam.report.plain import csv_text, json_text

if TYPE_CHECKING:
    from jsam.mechanism.budgeting import BudgetPlan

EXAMPLES = """
[bold]Examples[/bold]

  jsam plan clients.csv --prior uniform:0,1 --loss-weight 5

  jsam plan clients.csv --prior beta:2,5 --budget 10 --format json --output contract.json

  jsam plan clients.csv --prior uniform:0,1 --budget 10 --budget-probability 0.95

  jsam plan clients.csv --prior uniform:0,1 --loss-weight 5 --max-selection-prob 0.05 --plot plan.png
"""


@with_options
def plan(
    *,
    clients: ClientsFile,
    economy: EconomyOptions,
    mechanism: MechanismName = "jsam",
    result: ResultOptions,
    plot: PlotFile = None,
    payments: Annotated[
        bool, typer.Option("--payments/--no-payments", help="Whether to compute payments.", rich_help_panel=RESULT)
    ] = True,
) -> None:
    """Turn clients' reports into a contract: whom to select how often, how much ε to buy from each, and what to pay.

    Exit codes: 0 done, 2 bad input (one line on standard error).
    """
    check_targets(result.output, plot)
    setup = Setup.read(clients, economy)
    contract, budget_plan = planned(setup, mechanism, payments=payments)
    text = _text(contract, budget_plan, setup, result)
    if plot is not None:
        from jsam.report.figures import plot_plan

        plot_plan(contract, plot)
        say(f"wrote {plot}")
    deliver(text, result.output)


def planned(setup: Setup, name: str, *, payments: bool) -> tuple[Contract, BudgetPlan | None]:
    """The contract of one mechanism, under the budget if there is one."""
    mechanism, budget_plan = setup.within_budget(setup.mechanism(name))
    with setup.table.locating_errors(), progress_bar(f"Payments of {name}", setup.market.num_clients) as bar:
        contract = make_contract(setup.market, mechanism, payments=payments, progress=bar.advance)
    return dataclasses.replace(contract, budget=setup.options.budget), budget_plan


def _text(contract: Contract, budget_plan: BudgetPlan | None, setup: Setup, result: ResultOptions) -> str:
    kind = chosen_format(result.format, result.output)
    if kind is Format.TABLE:
        from jsam.report.tables import clients_table, plan_headline

        flats = [flat for cost, _ in setup.market.cost_groups for flat in cost.flats]
        headline = plan_headline(contract, prior=setup.prior_text, flats=flats, budget_plan=budget_plan)
        return rendered(headline, clients_table(contract), to_file=result.output is not None)
    content = contract.as_dict()
    if kind is Format.CSV:
        return csv_text(content["clients"])
    if budget_plan is not None:
        content["budget_plan"] = budget_plan.as_dict()
    return json_text(content)
