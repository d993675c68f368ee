"""`jsam demo`: the whole story on one machine, from reports over contracts and training to a settled ledger."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jsam.cli.demo_screen import Told, show, verdict
from jsam.cli.options import RESULT, WEIGHTS, EconomyOptions, with_options
from jsam.cli.output import check_folder, say
from jsam.cli.running import EXIT_VIOLATION, RoundProgress, require_torch, say_noise, settled, warnings_as_lines
from jsam.cli.simulate import checked_planner, simulated_contract
from jsam.cli.training_options import NoiseSeed
from jsam.errors import InputError

if TYPE_CHECKING:
    from jsam.mechanism.contract import Contract
    from jsam.runs.settings import TrainingSettings
    from jsam.training.data import Dataset
    from jsam.training.task import Task

EXAMPLES = """
[bold]Examples[/bold]

  jsam demo

  jsam demo --budget 20 --seed 3 --output runs/demo-20
"""

MECHANISMS = ("jsam", "usbm")


@dataclass(frozen=True, kw_only=True)
class Story:
    """What the demonstration runs; the numbers were chosen so that it trains, and in under three minutes."""

    dataset: str
    num_clients: int
    rounds: int
    per_round: int
    clip_norm: float
    similarity: float
    noise_weight: float
    max_selection_prob: float
    budget: float


MNIST = Story(
    dataset="mnist", num_clients=100, rounds=100, per_round=5, clip_norm=1.0, similarity=50.0,
    noise_weight=200.0, max_selection_prob=0.05, budget=10.0,
)  # fmt: skip
DIGITS = Story(
    dataset="digits", num_clients=10, rounds=60, per_round=5, clip_norm=1.0, similarity=50.0,
    noise_weight=200.0, max_selection_prob=0.25, budget=10.0,
)  # fmt: skip


@with_options
def demo(
    *,
    output: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER",
            help="Where everything goes; where a demo is already, the next free name (out/demo-2).",
            rich_help_panel=RESULT,
        ),
    ] = Path("out/demo"),
    budget: Annotated[float | None, typer.Option(help="Expected cost of either mechanism. \\[default: 10]")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of training. \\[default: as tuned]")] = None,
    max_selection_prob: Annotated[
        float | None,
        typer.Option(help="Cap on JSAM's selection probabilities. \\[default: 0.05 on MNIST]", rich_help_panel=WEIGHTS),
    ] = None,
    max_epsilon: Annotated[
        float, typer.Option(help="No client sells more ε than this.", rich_help_panel=WEIGHTS)
    ] = 10.0,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of everything random but the noise.", rich_help_panel=WEIGHTS)
    ] = 1,
    noise_seed: NoiseSeed = None,
    dataset: Annotated[
        str, typer.Option(help="mnist, or digits, which needs no download and is used if MNIST cannot be had.")
    ] = "mnist",
) -> None:
    """Clients report, two mechanisms buy their privacy for the same expected cost, and each trains on what it bought.

    Contract, training, ledger, audit, comparison: a screen at the end, and a report page. Under three minutes.
    Exit codes: 0 done, 1 a client is over its contract, 2 bad input (one line on standard error).
    """
    require_torch()
    from jsam.report.comparison_html import write_comparison_page
    from jsam.runs.settings import TrainingSettings

    began = time.monotonic()
    check_folder(output)
    story, data, notes = _data(dataset)
    rounds = story.rounds if rounds is None else rounds
    plain = TrainingSettings(rounds=rounds, seed=seed, noise_seed=noise_seed)  # what is wrong is said before planning
    say_noise(plain)
    economy = EconomyOptions(
        prior="uniform:0,1",
        budget=story.budget if budget is None else budget,
        noise_weight=story.noise_weight,
        max_selection_prob=story.max_selection_prob if max_selection_prob is None else max_selection_prob,
        max_epsilon=max_epsilon,
        seed=seed,
    )
    for name in MECHANISMS:
        checked_planner(name, story.num_clients, economy)
    asked, output = output, _fresh(output)
    if output != asked:
        say(f"{asked} is there already; this goes to {output}")
    who = f"{story.num_clients} clients report, {' and '.join(MECHANISMS)} plan for a cost of {economy.budget:g}"
    say(f"1/3  Planning: {who}")
    told = []
    with _interruptible(output):
        contracts = {name: simulated_contract(name, story.num_clients, economy) for name in MECHANISMS}
        for name, contract in contracts.items():
            say(f"2/3  Training under {name}: {contract.num_selected} clients sell ε, {rounds} rounds")
            told.append(_told(contract, story, data, output / name, seed=seed, noise_seed=noise_seed, rounds=rounds))
    say("3/3  Writing the report")
    headline, closing = verdict(told, data.num_test)
    page = output / "report.html"
    write_comparison_page([part.folder for part in told], page, headline=headline, notes=[*notes, *closing])
    show(told, page, headline, [*notes, *closing], time.monotonic() - began)
    if not all(part.settlement.kept for part in told):
        raise typer.Exit(EXIT_VIOLATION)


def _data(dataset: str) -> tuple[Story, Dataset, list[str]]:
    from jsam.cli.data import fetched
    from jsam.training.data import MissingDataError, load_dataset

    stories = {story.dataset: story for story in (MNIST, DIGITS)}
    if dataset not in stories:
        raise InputError(f"--dataset is {dataset!r}; the demo knows {' and '.join(stories)}")
    if dataset == "mnist":
        try:
            fetched("mnist")
            return MNIST, load_dataset("mnist"), []
        except MissingDataError as error:
            say(f"warning: {error}")
            say("warning: going on with the small digits of scikit-learn instead of MNIST")
            note = (
                "MNIST could not be had, so this is scikit-learn's digits: 1,500 images, far fewer than MNIST's 60,000."
            )
            return DIGITS, load_dataset("digits"), [note]
    return DIGITS, load_dataset("digits"), []


def _fresh(output: Path) -> Path:
    """The folder asked for, or the next free one beside it: a run is never written over."""
    from jsam.runs.run_folder import RunFolder

    for number in range(1, 1000):
        folder = output if number == 1 else output.with_name(f"{output.name}-{number}")
        if not any(RunFolder(folder / name).config.exists() for name in MECHANISMS):
            return folder
    raise InputError(f"--output {output}: a thousand demos lie there already; choose another folder")


@contextlib.contextmanager
def _interruptible(output: Path) -> Iterator[None]:
    """Tell the one who presses Ctrl-C that a demo is not gone on with, but the training under way can be."""
    from jsam.runs.run_folder import RunFolder

    try:
        yield
    except KeyboardInterrupt:
        runs = [RunFolder(output / name) for name in MECHANISMS]
        begun = [run.path for run in runs if run.config.exists() and not run.summary.exists()]
        alone = "".join(f"; go on with this training alone: jsam resume {path}" for path in begun)
        say(f"interrupted; jsam demo starts anew{alone}")
        raise


def _told(
    contract: Contract, story: Story, data: Dataset, folder: Path, *, seed: int, noise_seed: int | None, rounds: int
) -> Told:
    from jsam.privacy import derived_seed
    from jsam.training.loop import train
    from jsam.training.models import build_model
    from jsam.training.task import Task, TaskSpec

    spec = TaskSpec(
        dataset=story.dataset,
        num_clients=story.num_clients,
        scheme="similarity",
        similarity=story.similarity,
        seed=seed,
    )
    model = build_model(story.dataset, derived_seed(seed, "model"))
    task = Task(dataset=data, partition=spec.split(data), model=model, spec=spec)
    settings = _settings(story, contract, task, seed, noise_seed, rounds)
    with warnings_as_lines(), RoundProgress(f"Training ({contract.mechanism})", settings.rounds) as progress:
        result = train(contract, task, settings, folder, progress=progress)
    settlement, _ = settled(folder)
    return Told(
        contract=contract, folder=folder, accuracy=result.accuracy, settlement=settlement, seconds=result.seconds
    )


def _settings(
    story: Story, contract: Contract, task: Task, seed: int, noise_seed: int | None, rounds: int
) -> TrainingSettings:
    """Each mechanism with the step that fits its own noise: one step for all would favour somebody."""
    from jsam.runs.settings import TrainingSettings
    from jsam.training.learning_rate import with_fitted_step

    settings = TrainingSettings(
        rounds=rounds,
        per_round=story.per_round,
        clip_norm=story.clip_norm,
        learning_rate_schedule="cosine",
        evaluate_every=10,
        seed=seed,
        noise_seed=noise_seed,
        # On a busy machine two threads that wait for each other were seen to take twice as long as one.
        threads=1,
    )
    return with_fitted_step(contract, task, settings)
