"""`jsam plan`: from reports to a contract."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from jsam.cli.inputs import Inputs
from jsam.cli.options import RESULT, ClientsFile, PlotFile, Result, examples, option, with_options
from jsam.cli.rule_options import Economy
from jsam.mechanism.contract import Contract

if TYPE_CHECKING:
    from rich.console import RenderableType

    from jsam.mechanism.budget.loss_weight import BudgetPlan

EXAMPLES = examples(
    "jsam plan clients.csv --prior uniform:0,1 --loss-weight 5",
    "jsam plan clients.csv --prior beta:2,5 --budget 10 --format json --output contract.json",
    "jsam plan clients.csv --prior uniform:0,1 --budget 10 --budget-probability 0.95 --write-rules rules.toml",
    "jsam plan clients.csv --rules rules.toml --max-selection-prob 0.05 --plot plan.png",
)


@with_options
def plan(
    *,
    clients: ClientsFile,
    economy: Economy,
    result: Result,
    plot: PlotFile = None,
    payments: Annotated[bool, option(RESULT, "Whether to compute payments.", "--payments/--no-payments")] = True,
) -> None:
    """Turn clients' reports into a contract: whom to select how often, how much ε to buy from each, and what to pay.

    CLIENTS.csv has the columns id and sensitivity, in any order; optionally samples, loss (for bbm-M), prior (a
    client's own, instead of --prior) and selection_prob (for usbm-compensated). A dash reads standard input.

    Exit codes: 0 done, 2 bad input (one line on standard error).
    """
    rules = economy.rules()
    result.check(sources=[clients, *economy.sources(rules)], plot=plot, write_rules=economy.written)
    inputs = Inputs.read(clients, rules)
    contract, bought = inputs.contract(payments=payments)
    files = economy.files(rules)
    if plot is not None:
        from jsam.report.figures import plan_picture

        files[plot] = plan_picture(contract, plot.suffix)
    budget_plan = {} if bought is None else {"budget_plan": bought.as_dict()}
    result.deliver(
        lambda: contract.as_dict() | budget_plan,
        "clients",
        lambda: _tables(contract, bought, inputs, economy.why(rules)),
        beside=files,
    )


def _tables(contract: Contract, bought: BudgetPlan | None, inputs: Inputs, why: str | None) -> Iterator[RenderableType]:
    from jsam.report.tables import clients_table, plan_headline

    flats = [flat for cost, _ in inputs.market.cost_groups for flat in cost.flats]
    yield plan_headline(contract, prior=inputs.prior_text, flats=flats, budget_plan=bought, why=why)
    yield clients_table(contract)
