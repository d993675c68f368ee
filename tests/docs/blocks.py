"""Runs the code blocks of the documentation in order and compares what they print with what is shown.

A `python` block runs in one namespace a page; a `text` block right after it is what it prints. A `console` block holds
commands after `$ ` and what each prints; a shown line `…` alone means that the rest is left out. `jsam` runs in this
process. Other fences, such as `shell`, are not run.

After a change that alters outputs on purpose: .venv/bin/python -m tests.docs.blocks rewrites them.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jsam.cli import main as jsam_command

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "docs/tutorial.md", "docs/how-to/add-a-mechanism.md", "docs/how-to/priors.md")
IN_A_CHECKOUT = ("README.md",)  # the others begin in an empty folder
CUT = "…"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Step:
    """Something to run, and the place in the page of what it should print (None: nothing is shown)."""

    command: str
    python: bool
    line: int
    shown: tuple[int, int] | None


@dataclass(kw_only=True)
class Session:
    """One reader going through one page."""

    folder: Path
    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})
    exit_code: int = 0

    def run(self, step: Step) -> str:
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            if step.python:
                exec(compile(step.command, f"line {step.line}", "exec"), self.names)  # noqa: S102
            elif step.command == "echo $?":
                return f"{self.exit_code}\n"
            elif step.command.startswith("jsam "):
                self.exit_code = jsam_command(step.command.split()[1:])
            else:
                done = subprocess.run(
                    step.command, shell=True, cwd=self.folder, capture_output=True, text=True, check=True
                )
                return done.stdout
        return out.getvalue()


def steps(text: str) -> Iterator[Step]:
    """All runnable steps of a page, with the spans of the outputs that it shows."""
    fences = list(FENCE.finditer(text))
    for i, fence in enumerate(fences):
        line = text.count("\n", 0, fence.start()) + 2
        if fence[1] == "python":
            after = fences[i + 1] if i + 1 < len(fences) else None
            follows = after is not None and after[1] == "text" and not text[fence.end() : after.start()].strip()
            yield Step(command=fence[2], python=True, line=line, shown=after.span(2) if after and follows else None)
        elif fence[1] == "console":
            commands = list(re.finditer(r"^\$ (.*)\n", fence[2], re.MULTILINE))
            for j, command in enumerate(commands):
                end = commands[j + 1].start() if j + 1 < len(commands) else len(fence[2])
                span = (fence.start(2) + command.end(), fence.start(2) + end)
                yield Step(command=command[1], python=False, line=line, shown=span)


def tidy(output: str) -> list[str]:
    """Lines without trailing blanks, and without empty ones around them."""
    return "\n".join(line.rstrip() for line in output.splitlines()).strip("\n").split("\n")


def agrees(shown: str, printed: str) -> bool:
    expected, found = tidy(shown), tidy(printed)
    if expected[-1] == CUT:
        return found[: len(expected) - 1] == expected[:-1] and len(found) >= len(expected)
    return found == expected


@contextlib.contextmanager
def reader(page: str, folder: Path) -> Iterator[tuple[str, Session]]:
    """The page's text and a session in a folder that holds the example files, if the page speaks of a checkout."""
    if page in IN_A_CHECKOUT:
        shutil.copytree(ROOT / "examples", folder / "examples")
    before, terminal = Path.cwd(), dict(os.environ)
    os.environ.update(COLUMNS="100", XDG_CACHE_HOME=str(folder / "cache"), NO_COLOR="1", TERM="dumb")
    os.chdir(folder)
    try:
        yield (ROOT / page).read_text(encoding="utf-8"), Session(folder=folder)
    finally:
        os.chdir(before)
        os.environ.clear()
        os.environ.update(terminal)


def rewrite(page: str) -> None:
    """Put what the blocks print now into the page."""
    with tempfile.TemporaryDirectory() as folder, reader(page, Path(folder)) as (text, session):
        new, done = [], 0
        for step in steps(text):
            printed = session.run(step)
            if step.shown is None:
                continue
            start, end = step.shown
            lines, old = tidy(printed), tidy(text[start:end])
            if old[-1] == CUT:
                lines = [*lines[: len(old) - 1], CUT]
            new += [text[done:start], "\n".join(lines) + "\n" if lines != [""] else ""]
            done = end
        (ROOT / page).write_text("".join([*new, text[done:]]), encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:] or PAGES:
        rewrite(name)
