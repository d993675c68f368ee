"""What the commands that train share: progress on the screen, warnings as lines, the settlement at the end."""

from __future__ import annotations

import contextlib
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from jsam.cli.output import EXIT_VIOLATION, deliver, rendered, say
from jsam.cli.wording import in_options
from jsam.errors import NotSupportedError

if TYPE_CHECKING:
    from rich.text import Text

    from jsam.mechanism.rules import Rules
    from jsam.runs.noise_plan import NoisePlan
    from jsam.runs.settings import TrainingSettings
    from jsam.runs.settlement import Settlement
    from jsam.training.label_survey import LabelSurvey
    from jsam.training.recorded_run import RunResult
    from jsam.training.task import Task
    from jsam.training.tensorboard import TensorBoard


FEATURES_LABEL = "Computing features"
_UNSEEN_SECONDS = 2.0


@contextlib.contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Warnings of the library, one line each on standard error."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        say(f"warning: {in_options(str(message))}")

    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = show
        yield


class RoundProgress:
    """A bar of rounds with the latest accuracy on a terminal; elsewhere a line at every evaluation."""

    def __init__(self, label: str, rounds: int) -> None:
        self._label, self._rounds, self._progress = label, rounds, None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[accuracy]}"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
            )
            self._task = self._progress.add_task(label, total=rounds, accuracy="")

    def __enter__(self) -> RoundProgress:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def __call__(self, record: dict[str, Any]) -> None:
        accuracy = f"accuracy {record['accuracy']:.1%}" if "accuracy" in record else None
        if self._progress is None:
            if accuracy is not None:
                say(f"{self._label}: round {record['round']} of {self._rounds}, {accuracy}")
            return
        changes: dict[str, Any] = {"accuracy": accuracy} if accuracy is not None else {}
        self._progress.update(self._task, completed=record["round"], **changes)


@contextlib.contextmanager
def counting(label: str, *, bar: bool = True) -> Iterator[Callable[[int, int], None]]:
    """Show how far something is that takes over two seconds: by a bar on a terminal, elsewhere by one line.

    The function inside is called with the number of records that are done, and with that of all.
    """
    begun = time.monotonic()
    shown: list[Callable[[int], None]] = []
    with contextlib.ExitStack() as stack:

        def heard(done: int, total: int) -> None:
            if not shown and time.monotonic() - begun > _UNSEEN_SECONDS:
                if bar and sys.stderr.isatty():
                    shown.append(_bar(stack, label, total))
                else:
                    say(f"{label} of {total:,} records, once for this data set")
                    shown.append(lambda _: None)
            for show in shown:
                show(done)

        yield heard


def _bar(stack: contextlib.ExitStack, label: str, total: int) -> Callable[[int], None]:
    from rich.console import Console
    from rich.progress import Progress

    progress = stack.enter_context(Progress(console=Console(stderr=True), transient=True))
    task = progress.add_task(label, total=total)
    return lambda done: progress.update(task, completed=done)


@contextlib.contextmanager
def resumable(folder: Path) -> Iterator[None]:
    """Tell the one who presses Ctrl-C how to go on, if the run has begun."""
    from jsam.runs.run_folder import RunFolder

    try:
        yield
    except KeyboardInterrupt:
        if RunFolder(folder).config.exists():
            say(f"interrupted; go on with: jsam resume {folder}")
        else:
            say(f"interrupted before the run began; nothing is in {folder} to go on with")
        raise


@contextlib.contextmanager
def tracking(folder: Path, wanted: bool) -> Iterator[TensorBoard | None]:
    if not wanted:
        yield None
        return
    from jsam.training.tensorboard import TensorBoard

    with contextlib.closing(TensorBoard(folder / "tensorboard")) as tracker:
        yield tracker


def trained(
    plan: NoisePlan,
    task: Task,
    folder: Path,
    *,
    rules: Rules | None = None,
    survey: LabelSurvey | None = None,
    tracker: TensorBoard | None = None,
) -> RunResult:
    """Train into the folder with progress on the screen; the rules that the contract follows are written there too.

    `survey` is what the folder was begun with, where label counts were bought for the contract.
    """
    from jsam.training.recorded_run import train

    contract, settings = plan.contract, plan.settings
    with RoundProgress(f"Training ({contract.mechanism})", settings.rounds) as progress:
        return train(
            contract,
            task,
            settings,
            folder,
            plan=plan,
            rules=rules,
            survey=survey,
            progress=progress,
            tracker=tracker,
        )


def finish(folder: Path, *, strict: bool) -> None:
    """Settle and show; with Lemma 1's noise overspending is what was asked for, so it alone is said but no failure."""
    settlement, page = settled(folder)
    deliver(rendered(*run_lines(folder, settlement, page)), None)
    if settlement.problems or (strict and not settlement.kept):
        raise typer.Exit(EXIT_VIOLATION)


def settled(folder: Path) -> tuple[Settlement, Path]:
    """Audit a run's ledger by both accountants and write its page."""
    from jsam.report.run_html import write_run_page
    from jsam.runs.settlement import settle

    try:
        settlement = settle(folder)
    except NotSupportedError as error:
        say(f"warning: {error}; only the exact accountant was asked")
        settlement = settle(folder, second_opinion=False)
    return settlement, write_run_page(folder)


def stop_unless_kept(settlement: Settlement, *more: str) -> None:
    """End with a violation, and say which, if a contract of the run was not kept; `more` are lines after that."""
    if settlement.kept:
        return
    for line in (*settlement.lines(), *more):
        say(line)
    raise typer.Exit(EXIT_VIOLATION)


def run_lines(folder: Path, settlement: Settlement, page: Path) -> list[Text]:
    """The end of a run on one screen."""
    from rich.text import Text

    from jsam.report.run_data import RunData

    run = RunData.load(folder)
    contract, accuracy = settlement.contract, run.accuracy
    lines = [
        ("test accuracy", "–" if accuracy is None else f"{accuracy:.1%}"),
        ("rounds", f"{settlement.rounds_recorded} of {settlement.settings.rounds} in the ledger"),
        ("clients", f"{contract.num_selected} of {contract.num_clients} under contract ({contract.mechanism})"),
        ("paid", "payments were left out" if run.total_payment is None else f"{run.total_payment:.6g} in total"),
        *([] if settlement.labels is None else [("label counts", settlement.labels.words)]),
        ("noise", settlement.noise),
        ("report", str(page)),
    ]
    verdict = [Text(line, style="green" if settlement.kept else "bold red") for line in settlement.lines()]
    return [*(Text(f"{name:<14} {value}") for name, value in lines), *verdict]


def say_noise(settings: TrainingSettings) -> None:
    """Warn that the run will not be private if its noise follows from a seed."""
    from jsam.runs.settings import NOT_PRIVATE

    if settings.noise_seed is not None:
        say(f"{NOT_PRIVATE} (--noise-seed {settings.noise_seed})")
