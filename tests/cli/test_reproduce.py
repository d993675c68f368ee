"""`jsam reproduce run`: what it asks for before it begins, and what it says of the time that it will take."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.cli.conftest import Run
from tests.conftest import require

if not TYPE_CHECKING:
    require("torch", extra="train")
    require("sklearn", extra="train")

from reproduction.paths import Places
from tests.reproduction.conftest import CHOSEN, SPEC

SLOW = "this trains on the CPU, where a run takes minutes on MNIST and hours on CIFAR-10"


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    """A small experiment, whose runs are not trained."""

    def nothing(*_: Any, **__: Any) -> Iterator[Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr("reproduction.running.run_trials", nothing)
    for folder, name, text in (("experiments/paper", "small.toml", SPEC), ("results/paper", "chosen.toml", CHOSEN)):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / name).write_text(text)
    return Places.of(tmp_path)


def test_everything_is_run_only_if_asked_for(run: Run, places: Places) -> None:
    where = ("--root", places.home)
    for arguments, wanted in (
        ((), "give an ID or --all; there are: small"),
        (("--only", "*seed0"), "give an ID or --all; there are: small"),
        (("small", "--all"), "give either ID or --all, not both"),
    ):
        result = run("reproduce", "run", *arguments, *where)
        assert (result.code, result.err) == (2, f"jsam: error: {wanted}\n")
    assert "small: 8 runs to make" in run("reproduce", "run", "--all", *where).err


def test_how_long_a_cpu_takes_is_said_before_anything_is_trained(run: Run, places: Places) -> None:
    result = run("reproduce", "run", "small", "--root", places.home)
    first, second, *_ = result.err.splitlines()
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
        result = run("reproduce", "run", "small", "--device", device, "--root", places.home)
        assert result.code == 0
        assert done in result.err
        assert "CPU" not in result.err
