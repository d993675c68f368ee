"""The last screen of `jsam demo`: who was paid what, what was learned, whether every contract was kept."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jsam.cli.output import deliver, rendered

if TYPE_CHECKING:
    from rich.console import RenderableType

    from jsam.mechanism.contract import Contract
    from jsam.runs.settlement import Settlement

SHOWN = 3
# Seeds differ by some points: a gap of less than this is called a draw.
SEED_SPREAD = 0.05


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """What came of one mechanism's contract: its accuracy, its settlement, and the seconds of training."""

    contract: Contract
    folder: Path
    accuracy: float
    settlement: Settlement
    seconds: float


def verdict(outcomes: list[Outcome], num_test: int) -> tuple[str, list[str]]:
    first, second, *others = sorted(outcomes, key=lambda part: -part.accuracy)
    gap = first.accuracy - second.accuracy
    sampling = 3 * math.sqrt(sum(part.accuracy * (1 - part.accuracy) for part in (first, second)) / num_test)
    a, b = first.contract.mechanism.upper(), second.contract.mechanism.upper()
    rest = "".join(f", {part.contract.mechanism.upper()} {part.accuracy:.1%}" for part in others)
    if gap <= max(sampling, SEED_SPREAD):
        headline = f"{a} {first.accuracy:.1%}, {b} {second.accuracy:.1%}{rest}: the first two are too close to call"
    else:
        headline = f"{a} {first.accuracy:.1%}, {b} {second.accuracy:.1%}{rest}, each for the same expected cost"
    costs = ", ".join(f"{part.contract.expected_cost:.4g} ({part.contract.mechanism})" for part in outcomes)
    closing = (
        f"All loss weights were set from the prior alone, so that each mechanism's expected cost is "
        f"{first.contract.budget:g}; for the reports that came in it is {costs}."
    )
    steps = ", ".join(f"{part.settlement.settings.learning_rate:.2g} ({part.contract.mechanism})" for part in outcomes)
    fitted = f"Each trains with the step that one rule fits to its own noise: {steps}; everything else is the same."
    return headline, [closing, fitted]


def show(outcomes: list[Outcome], page: Path, headline: str, notes: list[str], seconds: float) -> None:
    from rich.panel import Panel
    from rich.text import Text

    from jsam.report.comparison_html import paid_words

    kept = all(part.settlement.kept for part in outcomes)
    contracts = ", ".join(f"{part.contract.num_selected} of {part.contract.mechanism}" for part in outcomes)
    audit = Text(
        f"NO CONTRACT WAS OVERSPENT ({contracts}, checked from the ledgers by two accountants)"
        if kept
        else "A CONTRACT WAS NOT KEPT: "
        + "; ".join(line for part in outcomes for line in part.settlement.lines() if not part.settlement.kept),
        style="bold green" if kept else "bold red",
    )
    # A line if the noise is known to others.
    known = {part.settlement.noise for part in outcomes if part.settlement.settings.noise_seed is not None}
    deliver(
        rendered(
            Panel(Text(headline, style="bold"), expand=False),
            _accuracy_table(outcomes),
            Text(paid_words([part.contract.as_dict() for part in outcomes])),
            Text(""),
            *(_paid_table(part) for part in outcomes),
            audit,
            *(Text(words, style="bold red") for words in known),
            *(Text(note, style="dim") for note in notes),
            Text(f"The report: {page}   ({seconds:.0f} s)", style="bold"),
        ),
        None,
    )


def _accuracy_table(outcomes: list[Outcome]) -> RenderableType:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("mechanism")
    for name in ("accuracy", "paid", "clients paid", "ε sold", "time"):
        table.add_column(name, justify="right", no_wrap=True)
    for part in outcomes:
        contract = part.contract
        sold = contract.epsilons[contract.epsilons > 0]
        table.add_row(
            contract.mechanism,
            f"{part.accuracy:.1%}",
            f"{contract.total_payment:.2f}",
            f"{contract.num_selected} of {contract.num_clients}",
            f"{sold.min():.2f} to {sold.max():.2f}",
            f"{part.seconds:.0f} s",
        )
    return table


def _paid_table(part: Outcome) -> RenderableType:
    """The best and the least paid of those who are paid at all."""
    from rich import box
    from rich.table import Table

    table = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, title=f"Who is paid under {part.contract.mechanism}", title_justify="left"
    )
    table.add_column("client")
    for name in ("payment", "sensitivity", "ε sold", "ε spent", "draws"):
        table.add_column(name, justify="right")
    payments = part.contract.payments
    assert payments is not None
    spending = {str(entry.client): entry for entry in part.settlement.report.clients}
    order = [int(k) for k in (-payments).argsort() if payments[k] > 0]
    unpaid = part.contract.num_clients - len(order)
    chosen = order if len(order) <= 2 * SHOWN else [*order[:SHOWN], None, *order[-SHOWN:]]
    for k in chosen:
        if k is None:
            table.add_row("…", *["…"] * 5)
            continue
        entry = spending[part.contract.ids[k]]
        table.add_row(
            part.contract.ids[k],
            f"{payments[k]:.3f}",
            f"{part.contract.sensitivities[k]:.3f}",
            f"{entry.bought:.3f}",
            f"{entry.spent:.3f}",
            str(entry.participations),
        )
    if unpaid:
        table.add_row(f"{unpaid} others", "0", "", "0", "0", "0")
    return table
