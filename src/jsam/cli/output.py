"""The one place where the command line speaks: results, notes, progress and errors."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from jsam.errors import InputError, install_hint
from jsam.report.output_files import check_target, writing

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import Progress
    from rich.table import Table

EXIT_VIOLATION = 1
EXIT_BAD_INPUT = 2
EXIT_BUG = 70  # EX_SOFTWARE of sysexits.h
EXIT_STOPPED = 130  # as shells report an interrupt
EXIT_PIPE_CLOSED = 141  # as shells report a closed pipe


class PageFormat(StrEnum):
    """What a result of more than one table is written as."""

    TABLE = "table"
    JSON = "json"


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


def check_folder(output: Path) -> None:
    """Refuse a folder that cannot be made, and the one that the user is in, before anything is computed."""
    _refuse_own(output)
    if output.exists() and not output.is_dir():
        raise InputError(f"--output {str(output)!r} is a file; name a folder")
    check_target(output / "config.json")
    # Permissions are not all: only who has made a folder there knows that it can be made.
    made = [place for place in (output, *output.parents) if not place.exists()]
    try:
        output.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=output).close()
    except OSError as error:
        raise unusable_folder(output, error) from error
    finally:
        for place in made:
            with contextlib.suppress(OSError):
                place.rmdir()


def free_folder(output: Path, in_use: Callable[[Path], bool]) -> Path:
    """The folder asked for, or the next free one beside it (out/demo-2): nothing is written over."""
    _refuse_own(output)
    for number in range(1, 1000):
        folder = output if number == 1 else output.with_name(f"{output.name}-{number}")
        try:
            if not in_use(folder):
                return folder
        except OSError as error:
            raise unusable_folder(folder, error) from error
    raise InputError(f"--output {output}: a thousand such folders are there already; choose another name")


def unusable_folder(folder: Path, error: OSError) -> InputError:
    return InputError(f"--output {str(folder)!r} cannot be used: {error.strerror or error}; name another folder")


def _refuse_own(output: Path) -> None:
    if output == Path():  # what an empty name means too, as of a variable that is not set
        raise InputError("--output is empty, or the folder you are in; name a new one")


def require(what: str, extra: str, **modules: str) -> None:
    """One line instead of a traceback where an extra is not installed; `modules` has its modules and what they are."""
    if any(importlib.util.find_spec(module) is None for module in modules):
        names, are = " and ".join(modules.values()), "is" if len(modules) == 1 else "are"
        raise InputError(f"{what} needs {names}, which {are} not installed: {install_hint(extra)}")


def require_torch() -> None:
    require("training", "train", torch="torch")


def require_flower(command: str) -> None:
    """The extra brings torch too."""
    require(command, "flower", flwr="Flower", torch="torch")


def rendered(*parts: RenderableType, to_file: bool = False) -> str:
    """Tables as text, coloured if and only if they go to a terminal."""
    from rich.console import Console

    encoding = "utf-8" if to_file else getattr(sys.stdout, "encoding", None) or "utf-8"
    # Not straight to standard output: rich would decide what becomes of a closed pipe. The encoding picks the borders.
    page = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="replace", newline="")
    terminal = not to_file and sys.stdout is not None and sys.stdout.isatty()
    # What is shown may be a name that somebody else chose: it is text, never markup.
    console = Console(file=page, force_terminal=terminal, width=100 if to_file else None, markup=False, emoji=False)
    for part in parts:
        console.print(part, highlight=False)
    page.flush()
    page.seek(0)
    return page.read()


def plain_table(*columns: str, **look: Any) -> Table:
    """A table with a line under its head and no other."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in columns:
        table.add_column(name, **look)
    return table


def deliver(text: str, output: Path | None, beside: Mapping[Path, bytes] | None = None) -> None:
    """Hand over a result, to the file or to standard output, and the files beside it: all of it, or no file at all."""
    files = dict(beside or {})
    printed = output is None or str(output) == "-"
    if output is not None and not printed:
        files[output] = text.encode()
    with writing(files):
        gone = printed and not _print(text)
    for path in files:
        say(f"wrote {path}")
    if gone:
        raise typer.Exit(EXIT_PIPE_CLOSED)


def _print(text: str) -> bool:
    """Whether the reader of standard output was still there."""
    if sys.stdout is None:
        raise InputError("standard output is closed; open it, or name a file with --output")
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        # Python would complain once more when it flushes the stream on its way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return False
        raise InputError(f"cannot write to standard output: {error.strerror or error}") from error
    return True


class Bar:
    """A progress bar that shows up only when the work turns out to be long."""

    def __init__(self, label: str, total: float | None, after: float) -> None:
        self._label, self._total = label, total
        self._done = 0.0
        self._progress: Progress | None = None
        self._over = False
        self._lock = threading.Lock()
        # A clock of its own: work that is silent for long should show that it goes on.
        self._timer = threading.Timer(after, self._start)
        self._timer.daemon = True
        if not sys.stderr.isatty():
            return
        if after > 0:
            self._timer.start()
        else:
            self._start()

    def advance(self, amount: float) -> None:
        """So much more is done."""
        self.reach(self._done + amount)

    def reach(self, done: float) -> None:
        """So much is done altogether."""
        self._done = done
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], completed=done)

    def _start(self) -> None:
        from rich.console import Console
        from rich.progress import Progress

        with self._lock:
            if self._over:
                return
            progress = Progress(console=Console(stderr=True), transient=True)
            progress.update(progress.add_task(self._label, total=self._total), completed=self._done)
            progress.start()
            self._progress = progress

    def stop(self) -> None:
        self._timer.cancel()
        with self._lock:
            self._over = True
            if self._progress is not None:
                self._progress.stop()


@contextlib.contextmanager
def progress_bar(label: str, total: float | None = 1.0, *, after: float = 1.0) -> Iterator[Bar]:
    """A bar on standard error, only on a terminal and only for work of more than `after` seconds."""
    bar = Bar(label, total, after)
    try:
        yield bar
    finally:
        bar.stop()
