"""One page about several runs on the same data: who learned what for the same money, and who was paid."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from jsam.report.fairness import WORDS as FAIRNESS_WORDS
from jsam.report.output_files import write_result
from jsam.report.page import cards, figure, number, page, paragraph, percent, section, table, verdict
from jsam.report.run_data import RunData
from jsam.report.run_html import CLIENT_WORDS, accuracy_chart, clients_table, fairness_html, guarantee


def write_comparison_page(
    folders: Sequence[Path | str], path: Path | str, *, headline: str, notes: Sequence[str]
) -> None:
    """Write the page; the runs' own pages are linked to, everything else is inside it."""
    runs = [RunData.load(folder) for folder in folders]
    write_result(path, comparison_page(runs, Path(path).parent, headline=headline, notes=notes).encode())


def comparison_page(runs: Sequence[RunData], base: Path, *, headline: str, notes: Sequence[str]) -> str:
    first = runs[0]
    data = first.config["data"]
    subtitle = (
        f"{data['dataset']}, {data['partition']}, {data['num_clients']} clients, {first.settings['rounds']} rounds of "
        f"{first.settings['per_round']} draws, δ = {first.settings['delta']:g}"
    )
    kept = all(run.audit["kept"] for run in runs)
    lines = [f"{run.mechanism}: {line}" for run in runs for line in run.audit["verdict"]]
    over = any(client["over"] for run in runs for client in run.audit["clients"])
    bad = "a contract was OVERSPENT" if over else "a ledger is NOT the one that its contract demands"
    sentence = "no contract was overspent in any run, by two accountants" if kept else bad
    return page(
        headline,
        subtitle,
        cards([(percent(run.accuracy), f"test accuracy with {run.mechanism}") for run in runs]),
        verdict(kept, [sentence, *lines]),
        *(paragraph(note) for note in notes),
        section("Accuracy", figure(accuracy_chart(list(runs)))),
        section(
            "Side by side",
            table(_HEADER, [("", _cells(run)) for run in runs]),
            paragraph(paid_words([run.contract for run in runs])),
            _links(runs, base),
        ),
        section("How even they are", fairness_html(runs), paragraph(FAIRNESS_WORDS, soft=True)),
        paragraph(CLIENT_WORDS, soft=True),
        *(section(f"Every client under {run.mechanism}", clients_table(run)) for run in runs),
        section("What the guarantee says", paragraph(guarantee(first.audit))),
    )


def paid_words(contracts: Sequence[Mapping[str, Any]]) -> str:
    """Why what is paid is neither the clients' cost nor the expected cost (docs/theory.md, "Payments")."""
    costs = [sum(client["sensitivity"] * client["epsilon"] for client in c["clients"]) for c in contracts]
    own = ", ".join(f"{cost:.2f} with {c['mechanism']}" for cost, c in zip(costs, contracts, strict=True))
    return (
        f"Paid is what these very reports make due: the clients' own cost, sensitivity × ε ({own}), and on top the "
        "rent for which they tell the truth; it equals the expected cost only on average over reports from the prior, "
        "and does not depend on who is drawn in training."
    )


_HEADER = (
    "mechanism", "expected cost", "paid", "clients kept", "ε sold, least", "ε sold, most", "clients drawn", "accuracy",
)  # fmt: skip


def _cells(run: RunData) -> list[str]:
    sold = [client["epsilon"] for client in run.contract["clients"] if client["epsilon"] > 0]
    return [
        run.mechanism,
        number(run.contract["expected_cost"]),
        number(run.contract["total_payment"]),
        f"{run.contract['num_selected']} of {run.contract['num_clients']}",
        number(min(sold, default=None)),
        number(max(sold, default=None)),
        str(sum(bool(client["participations"]) for client in run.audit["clients"])),
        percent(run.accuracy),
    ]


def _links(runs: Sequence[RunData], base: Path) -> str:
    items = []
    for run in runs:
        target = Path(os.path.relpath(run.folder / "report.html", base)).as_posix()
        items.append(f'<a href="{escape(target)}">{escape(run.mechanism)}</a>')
    return f"<p class=soft>Each run has a page of its own: {', '.join(items)}.</p>"
