"""How even a contract is, in words and tables: one for the terminal, one for the pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from jsam.mechanism.contract import Contract
from jsam.mechanism.fairness import CapPrice, Fairness
from jsam.report.tables import number, plain_columns

WORDS = (
    "A Gini coefficient is 0 if all have equally many draws and near 1 if one client has nearly all. Rent is what "
    "clients are paid above their cost, sensitivity × ε."
)
HEADER = ("mechanism", "kept", "Gini, all", "Gini, kept", "most ÷ least", "largest ε", "paid per ε", "rent")


def fairness_text(fairness: Fairness) -> Text:
    """Lines below a plan: who is drawn, and what the money goes for."""
    drawn = (
        f"draws: Gini {number(fairness.gini_all, 3)} among all clients, {number(fairness.gini_kept, 3)} among those"
        f" kept; most ÷ least {number(fairness.draws_ratio, 3)}"
    )
    if fairness.draws_ratio_per_record != fairness.draws_ratio:
        drawn += f", per record {number(fairness.draws_ratio_per_record, 3)}"
    lines = [drawn, f"ε: the largest is {number(fairness.largest_epsilon, 4)}"]
    if fairness.rent_share is not None:
        lines[1] += f"; a unit of it is paid {_prices(fairness)}; {_percent(fairness.rent_share)} of the money is rent"
    return Text("\n".join(lines), style="dim")


def fairness_table(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Mechanisms side by side; each row has a name and what `Fairness.as_dict` gives."""
    table = plain_columns(*HEADER)
    for row in rows:
        table.add_row(*map(Text, cells(str(row["mechanism"]), _fairness(row))))
    return table


def cap_price_table(contract: Contract, prices: Sequence[CapPrice]) -> RenderableType:
    """What each cap and floor costs: the contract first, then the plans without."""
    table = plain_columns("without", "kept", "loss bound", "expected cost", "objective", "price", "largest ε")
    table.add_row(Text("– (as planned)"), *_plan_cells(contract, 0.0, float(contract.epsilons.max())))
    for entry in prices:
        table.add_row(Text(entry.without), *_plan_cells(entry, entry.price, entry.largest_epsilon))
    words = "The loss weight stays as it is; the price is what a cap or floor adds to the objective."
    return Group(table, Text(words, style="dim"))


def cells(name: str, fairness: Fairness) -> list[str]:
    """One row under `HEADER`."""
    return [
        name,
        str(fairness.num_selected),
        number(fairness.gini_all, 3),
        number(fairness.gini_kept, 3),
        number(fairness.draws_ratio, 3),
        number(fairness.largest_epsilon, 4),
        _prices(fairness),
        "–" if fairness.rent_share is None else _percent(fairness.rent_share),
    ]


def _fairness(row: Mapping[str, Any]) -> Fairness:
    return Fairness(**{name: value for name, value in row.items() if name != "mechanism"})


def _prices(fairness: Fairness) -> str:
    if fairness.payment_per_epsilon_median is None:
        return "–"
    ends = f"{number(fairness.payment_per_epsilon_min, 2)}–{number(fairness.payment_per_epsilon_max, 2)}"
    return f"{number(fairness.payment_per_epsilon_median, 2)} ({ends})"


def _percent(share: float) -> str:
    return f"{share:.0%}"


def _plan_cells(plan: Contract | CapPrice, price: float, largest: float) -> list[str]:
    amounts = (plan.loss_bound, plan.expected_cost, plan.objective, price, largest)
    return [str(plan.num_selected), *map(number, amounts)]
