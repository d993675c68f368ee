"""The command line: what it asks for, how it complains, and what it says of the time that training will take."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import require

if not TYPE_CHECKING:
    require("torch", extra="train")
    require("sklearn", extra="train")

from reproduction.__main__ import main
from reproduction.paths import Places
from tests.reproduction.conftest import CHOSEN, SPEC

SLOW = "this trains on the CPU, where a run takes minutes on MNIST and hours on CIFAR-10"


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    """A small experiment, whose runs are not trained."""

    def nothing(*_: Any, **__: Any) -> Iterator[Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr("reproduction.running.run_trials", nothing)
    for folder, name, text in (("reproduction/specs", "small.toml", SPEC), ("results/paper", "chosen.toml", CHOSEN)):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / name).write_text(text)
    return Places.of(tmp_path)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run a command; its exit code, what it wrote to standard output, and to standard error."""

    def run_command(*arguments: str | Path) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return run_command


Run = Callable[..., tuple[int, str, str]]


def test_everything_is_run_only_if_asked_for(run: Run, places: Places) -> None:
    where = ("--root", places.home)
    for arguments, wanted in (
        ((), "give an ID or --all; there are: small"),
        (("--only", "*seed0"), "give an ID or --all; there are: small"),
        (("small", "--all"), "give either ID or --all, not both"),
    ):
        code, _, err = run("run", *arguments, *where)
        assert (code, err[8:]) == (2, f" error: {wanted}\n")
    assert "small: 8 runs to make" in run("run", "--all", *where)[2]


def test_how_long_a_cpu_takes_is_said_before_anything_is_trained(run: Run, places: Places) -> None:
    _, _, err = run("run", "small", "--root", places.home)
    first, second, *_ = err.splitlines()
    assert SLOW in first
    assert second.endswith("small: 8 runs to make")


def test_nothing_is_said_of_a_cpu_where_it_does_not_train(
    run: Run, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = "2 runs made in 1 s, 0 left"

    def run_specs(*_: Any, device: str, tell: Any, **__: Any) -> str:
        tell("small: 2 runs to make" if device == "cuda" else "small: 2 runs are those of stored ones")
        return done

    monkeypatch.setattr("reproduction.running.run_specs", run_specs)
    for device in ("cpu", "cuda"):
        code, _, err = run("run", "small", "--device", device, "--root", places.home)
        assert code == 0
        assert done in err
        assert "CPU" not in err


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ((), "COMMAND; see python -m reproduction --help"),
        (("lst",), "invalid choice: 'lst' (choose from 'list', 'plan', 'run'"),
        (("list", "--outptu", "x"), "unrecognized arguments: --outptu"),
        (("run", "small", "--limit-seconds", "x"), "invalid float value: 'x'; see python -m reproduction run --help"),
        (("table", "small", "--format", "xml"), "invalid choice: 'xml'"),
    ],
)
def test_a_line_that_cannot_be_read_says_where_to_look(arguments: tuple[str, ...], wanted: str, run: Run) -> None:
    code, out, err = run(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert wanted in err


def test_a_reader_that_goes_away_is_no_error(places: Places) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "reproduction", "list", "--root", str(places.home)]
    with os.fdopen(writer, "wb") as gone:
        done = subprocess.run(
            command, cwd=Path(__file__).parents[2], stdout=gone, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (141, "")
