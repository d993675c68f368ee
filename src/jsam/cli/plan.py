"""`jsam plan`: from reports to a contract."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from jsam.cli.inputs import Inputs
from jsam.cli.options import RESULT, ClientsFile, PlotFile, Result, examples, option, with_options
from jsam.cli.rule_options import Economy
from jsam.mechanism.contract import Contract
from jsam.mechanism.fairness import CapPrice, Fairness, cap_prices

if TYPE_CHECKING:
    from rich.console import RenderableType

    from jsam.mechanism.budget.loss_weight import BudgetPlan

EXAMPLES = examples(
    "jsam plan clients.csv --prior uniform:0,1 --loss-weight 5",
    "jsam plan clients.csv --prior beta:2,5 --budget 10 --format json --output contract.json",
    "jsam plan clients.csv --prior uniform:0,1 --budget 10 --budget-probability 0.95 --write-rules rules.toml",
    "jsam plan clients.csv --rules rules.toml --max-selection-prob 0.05 --plot plan.png",
    "jsam plan clients.csv --prior uniform:0,1 --mechanism jsam-even --budget 10 --min-clients 20 --cap-prices",
)


@with_options
def plan(
    *,
    clients: ClientsFile,
    economy: Economy,
    result: Result,
    plot: PlotFile = None,
    prices: Annotated[
        bool,
        option(RESULT, "Plan again without each cap and floor, and show what it costs.", "--cap-prices"),
    ] = False,
    payments: Annotated[bool, option(RESULT, "Whether to compute payments.", "--payments/--no-payments")] = True,
) -> None:
    """Turn clients' reports into a contract: whom to select how often, how much ε to buy from each, and what to pay.

    CLIENTS.csv has the columns id and sensitivity, in any order; optionally samples, loss (for bbm-M), prior (a
    client's own, instead of --prior) and selection_prob (for usbm-compensated). A dash reads standard input.

    Exit codes: 0 done, 2 bad input (one line on standard error).
    """
    from jsam.report.fairness import fairness_text

    rules = economy.rules()
    result.check(sources=[clients, *economy.sources(rules)], plot=plot, write_rules=economy.written)
    inputs = Inputs.read(clients, rules)
    contract, bought = inputs.contract(payments=payments)
    mechanism = inputs.named_mechanism().with_loss_weight(contract.loss_weight)
    fairness = Fairness.of(contract)
    asked = list(cap_prices(mechanism, inputs.market, contract)) if prices else None
    files = economy.files(rules)
    if plot is not None:
        from jsam.report.figures import plan_picture

        files[plot] = plan_picture(contract, plot.suffix)
    parts: dict[str, Any] = {} if bought is None else {"budget_plan": bought.as_dict()}
    parts["fairness"] = fairness.as_dict()
    if asked is not None:
        parts["cap_prices"] = [entry.as_dict() for entry in asked]
    result.deliver(
        lambda: contract.as_dict() | parts,
        "clients",
        lambda: [
            *_tables(contract, bought, inputs, economy.why(rules)),
            fairness_text(fairness),
            *_prices(contract, asked),
        ],
        beside=files,
    )


def _prices(contract: Contract, asked: list[CapPrice] | None) -> Iterator[RenderableType]:
    from rich.text import Text

    from jsam.report.fairness import cap_price_table

    if asked:
        yield cap_price_table(contract, asked)
    elif asked is not None:
        yield Text("there are no caps and no floors, so there is nothing that they cost", style="dim")


def _tables(contract: Contract, bought: BudgetPlan | None, inputs: Inputs, why: str | None) -> Iterator[RenderableType]:
    from jsam.report.tables import clients_table, plan_headline

    flats = [flat for cost, _ in inputs.market.cost_groups for flat in cost.flats]
    yield plan_headline(contract, prior=inputs.prior_text, flats=flats, budget_plan=bought, why=why)
    yield clients_table(contract)
