"""The one place where the command line speaks: results, notes, progress and errors."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from jsam.errors import InputError
from jsam.report.files import check_target, write_atomically

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import Progress

EXIT_BAD_INPUT = 2
EXIT_STOPPED = 130  # as shells report an interrupt
EXIT_PIPE_CLOSED = 141  # as shells report a closed pipe

PICTURES = (".png", ".pdf", ".svg")


class Format(StrEnum):
    """What a result is written as."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


def say(message: str) -> None:
    """One line on standard error, whatever the message holds."""
    with contextlib.suppress(OSError, AttributeError):
        sys.stderr.write(f"jsam: {' '.join(message.split())}\n")
        sys.stderr.flush()


def fail(message: str) -> int:
    """Tell the user what was wrong, in one line."""
    say(f"error: {message}")
    return EXIT_BAD_INPUT


def check_targets(output: Path | None, plot: Path | None = None) -> None:
    """Refuse what could never be written or drawn, before anything is computed."""
    if output is not None and str(output) != "-":
        check_target(output)
    if plot is None:
        return
    check_target(plot)
    if plot.suffix.lower() not in PICTURES:
        raise InputError(f"--plot {str(plot)!r}: the name must end in {' or '.join(PICTURES)}")
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise InputError("--plot needs matplotlib, which is not installed: pip install 'jsam[plot]'")


def chosen_format(chosen: Format | None, output: Path | None) -> Format:
    """The format asked for, or else the one that the file's name says, or else a table."""
    if chosen is not None:
        return chosen
    by_suffix = {".json": Format.JSON, ".csv": Format.CSV}
    return by_suffix.get(output.suffix.lower(), Format.TABLE) if output is not None else Format.TABLE


def rendered(*parts: RenderableType, to_file: bool = False) -> str:
    """Tables as text, coloured if and only if they go to a terminal."""
    from rich.console import Console

    console = Console(width=100, no_color=True, force_terminal=False) if to_file else Console()
    with console.capture() as captured:
        for part in parts:
            console.print(part, highlight=False)
    return captured.get()


def deliver(text: str, output: Path | None) -> None:
    """Hand over a result: all of it, to the file or to standard output."""
    if output is not None and str(output) != "-":
        write_atomically(output, text.encode())
        say(f"wrote {output}")
        return
    if sys.stdout is None:
        raise InputError("standard output is closed; open it, or name a file with --output")
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        # Python would complain once more when it flushes the stream on its way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise typer.Exit(EXIT_PIPE_CLOSED) from None
        raise InputError(f"cannot write to standard output: {error.strerror or error}") from error


class Bar:
    """A progress bar that shows up only when the work turns out to be long."""

    def __init__(self, label: str, total: float, after: float) -> None:
        self._label, self._total, self._after = label, total, after
        self._began = time.monotonic()
        self._done = 0.0
        self._progress: Progress | None = None

    def advance(self, amount: float) -> None:
        """So much more is done."""
        self.reach(self._done + amount)

    def reach(self, done: float) -> None:
        """So much is done altogether."""
        self._done = done
        if self._progress is None:
            if time.monotonic() - self._began < self._after or not sys.stderr.isatty():
                return
            self._start()
        assert self._progress is not None
        self._progress.update(self._progress.task_ids[0], completed=done)

    def _start(self) -> None:
        from rich.console import Console
        from rich.progress import Progress

        self._progress = Progress(console=Console(stderr=True), transient=True)
        self._progress.add_task(self._label, total=self._total)
        self._progress.start()

    def stop(self) -> None:
        if self._progress is not None:
            self._progress.stop()


@contextlib.contextmanager
def progress_bar(label: str, total: float = 1.0, *, after: float = 1.0) -> Iterator[Bar]:
    """A bar on standard error, only on a terminal and only for work of more than `after` seconds."""
    bar = Bar(label, total, after)
    try:
        yield bar
    finally:
        bar.stop()
