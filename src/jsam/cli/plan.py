"""`jsam plan`: from reports to a contract."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from jsam.cli.inputs import Inputs
from jsam.cli.options import (
    RESULT,
    ClientsFile,
    EconomyOptions,
    MechanismName,
    PlotFile,
    ResultOptions,
    with_options,
)
from jsam.cli.output import Format, deliver, progress_bar, rendered
from jsam.mechanism.contract import Contract
from jsam.mechanism.families import plan as make_contract
from jsam.mechanism.families.base import RangeMechanism
from jsam.mechanism.solver.payments import Progress
from jsam.report.plain import csv_text, json_text

if TYPE_CHECKING:
    from jsam.mechanism.budget.loss_weight import BudgetPlan

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

    CLIENTS.csv has the columns id and sensitivity, in any order; optionally samples, loss (for bbm-M), prior (a
    client's own, instead of --prior) and selection_prob (for usbm-compensated). A dash reads standard input.

    Exit codes: 0 done, 2 bad input (one line on standard error).
    """
    result.check(plot, sources=[clients, *economy.past_reports])
    inputs = Inputs.read(clients, economy)
    contract, budget_plan = planned(inputs, mechanism, payments=payments)
    text, picture = _text(contract, budget_plan, inputs, result), b""
    if plot is not None:
        from jsam.report.figures import plan_picture

        picture = plan_picture(contract, plot.suffix)
    deliver(text, result.output, picture=picture, plot=plot)


def planned(inputs: Inputs, name: str, *, payments: bool) -> tuple[Contract, BudgetPlan | None]:
    """The contract of one mechanism, under the budget if there is one."""
    mechanism, budget_plan = inputs.within_budget(inputs.mechanism(name))
    with progress_bar(f"Payments of {name}", inputs.market.num_clients) as bar:
        contract = finite_contract(inputs, mechanism, payments=payments, progress=bar.advance)
    return dataclasses.replace(contract, budget=inputs.options.budget), budget_plan


def finite_contract(
    inputs: Inputs, mechanism: RangeMechanism, *, payments: bool, progress: Progress | None = None
) -> Contract:
    """The contract, unless it gets too large for floating-point numbers; then it is refused."""
    trouble: OverflowError | None = None
    try:
        with inputs.table.locating_errors():
            contract = make_contract(inputs.market, mechanism, payments=payments, progress=progress)
        if np.isfinite((contract.objective, contract.expected_cost, contract.total_payment or 0.0)).all():
            return contract
    except OverflowError as error:
        trouble = error
    raise inputs.too_large(mechanism.name, mechanism.loss_weight) from trouble


def _text(contract: Contract, budget_plan: BudgetPlan | None, inputs: Inputs, result: ResultOptions) -> str:
    kind = result.kind
    if kind is Format.TABLE:
        from jsam.report.tables import clients_table, plan_headline

        flats = [flat for cost, _ in inputs.market.cost_groups for flat in cost.flats]
        headline = plan_headline(contract, prior=inputs.prior_text, flats=flats, budget_plan=budget_plan)
        return rendered(headline, clients_table(contract), to_file=result.output is not None)
    content = contract.as_dict()
    if kind is Format.CSV:
        return csv_text(content["clients"])
    if budget_plan is not None:
        content["budget_plan"] = budget_plan.as_dict()
    return json_text(content)
