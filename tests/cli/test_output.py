"""Help, notes and progress."""

from __future__ import annotations

import io

import pytest

from jsam.cli.output import progress_bar
from tests.cli.conftest import Run


@pytest.mark.parametrize("command", ["plan", "audit", "compare"])
def test_help_shows_every_shared_option_and_examples(command: str, run: Run) -> None:
    result = run(command, "--help")
    assert (result.code, result.err) == (0, "")
    for option in (
        "--prior", "--mechanism", "--loss-weight", "--budget", "--budget-probability", "--noise-weight",
        "--bias-weight", "--max-selection-prob", "--max-epsilon", "--seed", "--format", "--output",
    ):  # fmt: skip
        assert option in result.out
    assert f"jsam {command} clients.csv --prior uniform:0,1" in result.out
    assert "Exit codes: 0" in result.out


def test_the_program_alone_lists_its_commands(run: Run) -> None:
    result = run()
    assert result.code == 0
    for command in ("plan", "audit", "compare"):
        assert command in result.out


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_long_work_shows_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", terminal)
    with progress_bar("Payments", 10, after=0) as bar:
        bar.advance(4)
        bar.advance(6)
    assert "Payments" in terminal.getvalue()
    assert "100%" in terminal.getvalue()


def test_short_work_shows_none(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with progress_bar("Payments", 10, after=3600) as bar:
        bar.advance(10)
    assert terminal.getvalue() == ""


def test_a_file_gets_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    with progress_bar("Budget", after=0) as bar:
        bar.reach(0.5)
    assert stream.getvalue() == ""
