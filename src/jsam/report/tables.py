"""Tables for the terminal, in plain words. Ids come from files: they are shown as text, never read as markup."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from jsam.mechanism.contract import Contract
from jsam.mechanism.pricing.virtual_cost import Flat
from jsam.mechanism.registry import find_description

if TYPE_CHECKING:
    from jsam.mechanism.audit import AuditReport
    from jsam.mechanism.budget.loss_weight import BudgetPlan

# More clients than this and only the first few rows are shown.
WHOLE, FIRST = 40, 20
MOST_VIOLATIONS = 4
VERDICTS = {"passed": "green", "violated": "bold red", "not claimed": "yellow"}


def number(value: float | None, digits: int = 5) -> str:
    """A number for reading, not for computing with."""
    return "–" if value is None else f"{value:.{digits}g}"


@dataclass(frozen=True)
class PathCell:
    """A path that goes on in the next line after a slash, and within a name only if the name alone is too long."""

    path: str

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(max(map(cell_len, self._names()), default=0), cell_len(self.path))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = [""]
        for name in self._names():
            if lines[-1] and cell_len(lines[-1] + name) > options.max_width:
                lines.append("")
            lines[-1] += name
        yield Text("\n".join(lines), overflow="fold")

    def _names(self) -> list[str]:
        return re.findall(r"[^/\\]*[/\\]|[^/\\]+", self.path)


def plan_headline(
    contract: Contract,
    *,
    prior: str,
    flats: Sequence[Flat] = (),
    budget_plan: BudgetPlan | None = None,
    why: str | None = None,
) -> RenderableType:
    """What was decided and what it costs; `why` says why this mechanism was used."""
    lines: list[tuple[str, str, str]] = [
        ("kept", f"{contract.num_selected} of {contract.num_clients}", _most_drawn(contract)),
        ("expected cost", number(contract.expected_cost), "what the server expected to pay, from the prior"),
        ("total due", number(contract.total_payment), _payments_known(contract)),
        ("loss bound", number(contract.loss_bound), "of training: selection bias and privacy noise"),
    ]
    said = find_description(contract.mechanism)
    if said is not None and said.spends_budget:
        lines.append(("budget", number(contract.budget), "never more than this falls due, whatever the reports"))
    else:
        lines.append(("objective", number(contract.objective), _runner_up(contract)))
        lines.append(("loss weight", number(contract.loss_weight), _where_from(contract, budget_plan)))
    if budget_plan is not None:
        lines.append(("may fall due", number(budget_plan.payment_quantiles[0.5]), _quantiles(budget_plan)))
    lines.append(("prior", "", f"{prior} · {_regularity(flats)}"))
    caps = [
        f"{name} ≤ {number(cap)}"
        for name, cap in (("selection probability", contract.max_selection_prob), ("ε", contract.max_epsilon))
        if cap is not None
    ]
    if why:
        lines.append(("mechanism", "", why))
    if caps:
        lines.append(("caps", "", ", ".join(caps)))
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(style="dim")
    for name, value, remark in lines:
        grid.add_row(Text(name), Text(value), Text(remark))
    claim = "no client gains by misreporting" if contract.truthful else "truthfulness is not claimed"
    return Panel(grid, title=Text(f"{contract.mechanism}: {claim}"), title_align="left", expand=False)


def _most_drawn(contract: Contract) -> str:
    p = contract.selection_probs
    most = int(p.argmax())
    if p[most] <= p[p > 0].min() * (1 + 1e-9):
        return "clients, all drawn equally often"
    return f"clients; most draws go to {contract.ids[most]}: {p[most]:.3g}"


def _payments_known(contract: Contract) -> str:
    if contract.payments is None:
        return "payments were left out"
    error = contract.payment_error_bound
    return f"payments for these reports{f', each ± {number(error, 1)}' if error else ''}"


def _runner_up(contract: Contract) -> str:
    other = contract.runner_up
    if contract.rounding_bound is not None:
        lost = number(100 * contract.rounding_bound / contract.objective, 2)
        return f"sizes are rounded to a public grid: at most {lost}% above the best without"
    if other is None:
        return "loss weight × loss bound + expected cost"
    return f"runner-up: keep {other.num_selected}, {number(100 * (other.objective / contract.objective - 1), 2)}% worse"


def _quantiles(budget_plan: BudgetPlan) -> str:
    parts = [f"{q:.0%} {number(amount, 4)}" for q, amount in budget_plan.payment_quantiles.items() if q != 0.5]
    return f"in the median market; quantiles {', '.join(parts)}"


def _where_from(contract: Contract, budget_plan: BudgetPlan | None) -> str:
    if budget_plan is None and contract.budget is not None:
        return f"of both halves together, from their shares of a budget of {number(contract.budget)}"
    if budget_plan is None:
        return "as given"
    sure = f"{budget_plan.confidence:.1%}"
    if budget_plan.probability is None:
        return (
            f"what a budget of {number(budget_plan.budget)} buys in expectation: the expected cost is"
            f" {number(budget_plan.expected_cost)}, and with {sure} confidence over the {budget_plan.draws} markets"
            f" drawn from the prior at most {number(budget_plan.expected_cost_bound)}"
        )
    return (
        f"what a budget of {number(budget_plan.budget)} buys with probability {budget_plan.probability:g}: payments"
        f" kept to it in {budget_plan.probability_seen:.1%} of {budget_plan.payment_draws} markets drawn from the"
        f" prior, which means at least {budget_plan.probability_bound:.1%} with {sure} confidence"
    )


def _regularity(flats: Sequence[Flat]) -> str:
    if not flats:
        return "regular, not ironed"
    stretches = ", ".join(f"{number(flat.low, 3)} to {number(flat.high, 3)}" for flat in flats[:4])
    more = f" and {len(flats) - 4} more" if len(flats) > 4 else ""
    return f"irregular: ironed from {stretches}{more}"


def clients_table(contract: Contract) -> RenderableType:
    """The clients by virtual cost, cheapest first; a long list is cut and says so."""
    order = np.lexsort((-contract.selection_probs, contract.virtual_costs))
    shown = order if len(order) <= WHOLE else order[:FIRST]
    sizes = [] if contract.data_shares is None else ["share of data"]
    table = plain_columns("rank", "client", *sizes, "sensitivity", "virtual cost", "selection prob.", "ε", "payment")
    for rank, k in enumerate(shown, start=1):
        kept = contract.selection_probs[k] > 0
        paid = None if contract.payments is None else contract.payments[k]
        held = () if contract.data_shares is None else (contract.data_shares[k],)
        cells = (*held, contract.sensitivities[k], contract.virtual_costs[k], contract.selection_probs[k])
        table.add_row(
            str(rank),
            Text(contract.ids[k], overflow="ellipsis"),
            *map(number, cells),
            number(contract.epsilons[k]),
            number(paid),
            style="" if kept else "dim",
        )
    hidden = len(order) - len(shown)
    if not hidden:
        return table
    return Group(table, Text(f"… and {hidden} more; --format csv or json gives all", style="dim"))


def audit_tables(report: AuditReport, why: str | None = None) -> tuple[RenderableType, ...]:
    """The verdict and why this mechanism was used, then every check with its worst client and what was found."""
    table = plain_columns("check", "verdict", "worst client", "found")
    for check in report.checks:
        verdict = Text(check.status, style=VERDICTS.get(check.status, ""))
        message = "\n".join(dict.fromkeys([check.message, *(v.message for v in check.violations[:MOST_VIOLATIONS])]))
        hidden = len(check.violations) - MOST_VIOLATIONS
        more = f"\n… and {hidden} more; --format json gives all" if hidden > 0 else ""
        table.add_row(Text(check.name), verdict, Text(check.client or "–", overflow="ellipsis"), Text(message + more))
    if report.ok:
        title = "all promises hold" if report.claims_truthful else "all that is claimed holds"
    else:
        title = f"violated: {', '.join(dict.fromkeys(violation.check for violation in report.violations))}"
    some = "" if report.num_audited == report.num_clients else f" of {report.num_clients}, the most telling ones,"
    text = Text(f"{report.num_audited} clients{some} were tried with false reports.")
    if why:
        text.append(f"\nmechanism: {why}")
    head = Text(f"{report.mechanism}: {title}", style="green" if report.ok else "bold red")
    return Panel(text, title=head, title_align="left", expand=False, padding=(0, 2)), table


def compare_table(rows: Sequence[Mapping[str, Any]], notes: Sequence[str] = ()) -> RenderableType:
    """All mechanisms side by side; one that cannot be run says why."""
    table = plain_columns("mechanism", "kept", "loss weight", "expected cost", "total due", "loss bound", "objective")
    reasons = list(notes)
    for row in rows:
        if row["error"] is not None:
            table.add_row(Text(row["mechanism"]), *["–"] * 6, style="dim")
            reasons.append(f"{row['mechanism']}: {row['error']}")
            continue
        names = ("loss_weight", "expected_cost", "total_payment", "loss_bound", "objective")
        table.add_row(Text(row["mechanism"]), str(row["num_selected"]), *(number(row[name]) for name in names))
    return Group(table, *(Text(reason, style="dim") for reason in reasons))


def plain_columns(*columns: str) -> Table:
    """An empty table: words to the left, numbers to the right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in columns:
        words = name in ("client", "mechanism", "check", "verdict", "worst client", "found", "without")
        width = max(map(len, name.split()))
        table.add_column(name, justify="left" if words else "right", no_wrap=words and name != "found", min_width=width)
    return table
