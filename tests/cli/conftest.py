"""Run commands in this process, on files made for one test, with a cache folder of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from jsam.cli import main

EXAMPLE = Path(__file__).parents[2] / "examples" / "clients.csv"
EXAMPLE_WITH_LOSS = EXAMPLE.with_name("clients-with-loss.csv")
UNIFORM = ("--prior", "uniform:0,1", "--loss-weight", "5")


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


Run = Callable[..., Result]
WriteClients = Callable[[str | bytes], str]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Run `jsam` with these arguments."""

    def run_command(*arguments: str | Path) -> Result:
        code = main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return Result(code, out, err)

    return run_command


@pytest.fixture
def clients(tmp_path: Path) -> WriteClients:
    """Write a CLIENTS.csv and return its path."""

    def write(content: str | bytes) -> str:
        path = tmp_path / "clients.csv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write
