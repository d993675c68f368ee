"""`jsam demo`: the whole story on one machine, from reports over contracts and training to a settled ledger."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jsam.cli.options import RESULT, WEIGHTS, EconomyOptions, with_options
from jsam.cli.output import deliver, rendered, say
from jsam.cli.running import EXIT_VIOLATION, RoundProgress, require_torch, settled, warnings_as_lines
from jsam.cli.simulate import simulated_contract
from jsam.errors import InputError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from jsam.mechanism.contract import Contract
    from jsam.training.data import Dataset
    from jsam.training.settings import TrainingSettings
    from jsam.training.settlement import Settlement

EXAMPLES = """
[bold]Examples[/bold]

  jsam demo

  jsam demo --budget 20 --seed 3 --output runs/demo-20
"""

MECHANISMS = ("jsam", "usbm")
SHOWN = 3
# Two runs that differ only in their seed were seen to differ by up to about this much: less is called a draw.
SEED_SPREAD = 0.03


@dataclass(frozen=True, kw_only=True)
class Story:
    """What the demonstration runs; the numbers were chosen so that it trains, and in under three minutes."""

    dataset: str
    num_clients: int
    rounds: int
    per_round: int
    clip_norm: float
    learning_rate: float
    similarity: float
    noise_weight: float
    budget: float


MNIST = Story(
    dataset="mnist", num_clients=100, rounds=100, per_round=10, clip_norm=1.0, learning_rate=2.0, similarity=50.0,
    noise_weight=200.0, budget=20.0,
)  # fmt: skip
DIGITS = Story(
    dataset="digits", num_clients=20, rounds=60, per_round=5, clip_norm=1.0, learning_rate=1.0, similarity=50.0,
    noise_weight=200.0, budget=30.0,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class Told:
    """One mechanism's part of the story."""

    contract: Contract
    folder: Path
    accuracy: float
    settlement: Settlement
    seconds: float


@with_options
def demo(
    *,
    output: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where everything goes.", rich_help_panel=RESULT)
    ] = Path("out/demo"),
    budget: Annotated[
        float | None, typer.Option(help="Expected cost of either mechanism. [default: 20 on MNIST]")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of training. [default: as tuned]")] = None,
    max_selection_prob: Annotated[
        float, typer.Option(help="Cap on JSAM's selection probabilities.", rich_help_panel=WEIGHTS)
    ] = 0.05,
    max_epsilon: Annotated[
        float, typer.Option(help="No client sells more ε than this.", rich_help_panel=WEIGHTS)
    ] = 10.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.", rich_help_panel=WEIGHTS)] = 1,
    dataset: Annotated[
        str, typer.Option(help="mnist, or digits, which needs no download and is used if MNIST cannot be had.")
    ] = "mnist",
) -> None:
    """Clients report, two mechanisms buy their privacy for the same expected cost, and each trains on what it bought.

    Contract, training, ledger, audit, comparison: a screen at the end, and a report page. Under three minutes.
    Exit codes: 0 done, 1 a client is over its contract, 2 bad input (one line on standard error).
    """
    require_torch()
    began = time.monotonic()
    story, data, notes = _data(dataset)
    economy = EconomyOptions(
        prior="uniform:0,1",
        budget=story.budget if budget is None else budget,
        noise_weight=story.noise_weight,
        max_selection_prob=max(max_selection_prob, 2 / story.num_clients),
        max_epsilon=max_epsilon,
        seed=seed,
    )
    output = _fresh(output)
    who = f"{story.num_clients} clients report, {' and '.join(MECHANISMS)} plan for a cost of {economy.budget:g}"
    say(f"1/3  Planning: {who}")
    contracts = {name: simulated_contract(name, story.num_clients, economy) for name in MECHANISMS}
    told = []
    for name, contract in contracts.items():
        say(f"2/3  Training under {name}: {contract.num_selected} clients sell ε, {rounds or story.rounds} rounds")
        told.append(_told(contract, story, data, output / name, seed=seed, rounds=rounds))
    say("3/3  Writing the report")
    headline, closing = _verdict(told, data.num_test)
    page = output / "report.html"
    _write_page(told, page, headline, [*notes, *closing])
    _show(told, page, headline, [*notes, *closing], time.monotonic() - began)
    if not all(part.settlement.kept for part in told):
        raise typer.Exit(EXIT_VIOLATION)


def _data(dataset: str) -> tuple[Story, Dataset, list[str]]:
    from jsam.cli.data import fetched
    from jsam.training.data import DataError, load_dataset

    stories = {story.dataset: story for story in (MNIST, DIGITS)}
    if dataset not in stories:
        raise InputError(f"--dataset is {dataset!r}; the demo knows {' and '.join(stories)}")
    if dataset == "mnist":
        try:
            fetched("mnist")
            return MNIST, load_dataset("mnist"), []
        except DataError as error:
            say(f"warning: {error}")
            say("warning: going on with the small digits of scikit-learn instead of MNIST")
            note = (
                "MNIST could not be had, so this is scikit-learn's digits: 1,500 images, far fewer than MNIST's 60,000."
            )
            return DIGITS, load_dataset("digits"), [note]
    return DIGITS, load_dataset("digits"), []


def _fresh(output: Path) -> Path:
    """The folder asked for, or the next free one beside it: a run is never written over."""
    from jsam.training.records import RunFolder

    for number in range(1, 1000):
        folder = output if number == 1 else output.with_name(f"{output.name}-{number}")
        if not any(RunFolder(folder / name).config.exists() for name in MECHANISMS):
            return folder
    raise InputError(f"--output {output}: a thousand demos lie there already; choose another folder")


def _told(contract: Contract, story: Story, data: Dataset, folder: Path, *, seed: int, rounds: int | None) -> Told:
    from jsam.privacy import derived_seed
    from jsam.training.loop import train
    from jsam.training.models import build_model
    from jsam.training.task import Task, TaskSpec

    settings = _settings(story, seed, rounds)
    spec = TaskSpec(
        dataset=story.dataset,
        num_clients=story.num_clients,
        scheme="similarity",
        similarity=story.similarity,
        seed=seed,
    )
    model = build_model(story.dataset, derived_seed(seed, "model"))
    task = Task(dataset=data, partition=spec.split(data), model=model, spec=spec)
    with warnings_as_lines(), RoundProgress(f"{contract.mechanism:5}", settings.rounds) as progress:
        result = train(contract, task, settings, folder, progress=progress)
    settlement, _ = settled(folder)
    return Told(
        contract=contract, folder=folder, accuracy=result.accuracy, settlement=settlement, seconds=result.seconds
    )


def _settings(story: Story, seed: int, rounds: int | None) -> TrainingSettings:
    from jsam.training.settings import TrainingSettings

    return TrainingSettings(
        rounds=rounds or story.rounds,
        per_round=story.per_round,
        clip_norm=story.clip_norm,
        learning_rate=story.learning_rate,
        learning_rate_schedule="cosine",
        evaluate_every=10,
        seed=seed,
    )


def _verdict(told: list[Told], num_test: int) -> tuple[str, list[str]]:
    first, second = told
    gap = first.accuracy - second.accuracy
    sampling = 3 * math.sqrt(sum(part.accuracy * (1 - part.accuracy) for part in told) / num_test)
    a, b = first.contract.mechanism.upper(), second.contract.mechanism.upper()
    if abs(gap) <= max(sampling, SEED_SPREAD):
        headline = f"{a} {first.accuracy:.1%}, {b} {second.accuracy:.1%}: too close to call from one run each"
    else:
        winner, loser = (a, b) if gap > 0 else (b, a)
        headline = f"{winner} beats {loser} by {100 * abs(gap):.0f} points of accuracy for the same expected cost"
    costs = " and ".join(f"{part.contract.expected_cost:.4g} ({part.contract.mechanism})" for part in told)
    closing = (
        f"Both loss weights were set from the prior alone, so that each mechanism's expected cost is "
        f"{first.contract.budget:g}; for the reports that came in it is {costs}."
    )
    return headline, [closing]


def _write_page(told: list[Told], page: Path, headline: str, notes: list[str]) -> None:
    from jsam.report.comparison_html import write_comparison_page

    write_comparison_page([part.folder for part in told], page, headline=headline, notes=notes)


def _show(told: list[Told], page: Path, headline: str, notes: list[str], seconds: float) -> None:
    """The last screen."""
    from rich.panel import Panel
    from rich.text import Text

    kept = all(part.settlement.kept for part in told)
    audit = Text(
        "NO CONTRACT WAS OVERSPENT" if kept else "A CONTRACT WAS OVERSPENT", style="bold green" if kept else "bold red"
    )
    detail = Text("\n".join(f"  {p.contract.mechanism}: {line}" for p in told for line in p.settlement.lines()), "dim")
    deliver(
        rendered(
            Panel(Text(headline, style="bold"), expand=False),
            _outcome(told),
            *(_paid(part) for part in told),
            audit,
            detail,
            *(Text(note, style="dim") for note in notes),
            Text(f"The report: {page}   ({seconds:.0f} s)", style="bold"),
        ),
        None,
    )


def _outcome(told: list[Told]) -> RenderableType:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("mechanism")
    for name in ("test accuracy", "paid in total", "clients under contract", "ε sold", "training"):
        table.add_column(name, justify="right")
    for part in told:
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


def _paid(part: Told) -> RenderableType:
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
