"""Runs that want a learning rate of their own wait until one is chosen, and say what to run first."""

from __future__ import annotations

from pathlib import Path

import pytest

from reproduction.__main__ import main
from reproduction.paths import Places
from reproduction.prerequisites import waiting_lines
from reproduction.running import run_specs
from reproduction.spec import load_specs
from reproduction.tabulate import progress_of
from reproduction.tuned_settings import STEPS, Chosen, toml_text
from tests.reproduction.conftest import PLANNER
from tests.reproduction.made_up import store

SHARED = """
order = {order}
title = "Digits"
kind = "{kind}"
shows = "nothing of the paper"

[settings]
dataset = "digits"
similarity = 100
noise = "exact"
noise_weight = 9
clip_norm = 1
cost = [1, 3]
mechanism = ["jsam", "usbm"]
"""
OWN = SHARED.format(order=2, kind="training") + 'learning_rate = "own"\n[[grid]]\nseed = [0, 1, 2]\n'
TUNING = SHARED.format(order=1, kind="tuning") + "held_out = true\n[[grid]]\nseed = 0\nlearning_rate = [0.1, 0.3]\n"
FIRST = "first python -m reproduction run tuning-steps-digits, then python -m reproduction choose"
WAITS = f"own: 12 runs wait for learning rates that are not chosen yet; {FIRST}"
JSAM, USBM = {"1": 0.1, "3": 0.1}, {"1": 0.3, "3": 0.3}


def choose_steps(places: Places, **steps: dict[str, float]) -> None:
    """These learning rates by mechanism and cost, and no others."""
    places.results.mkdir(parents=True, exist_ok=True)
    places.chosen.write_text(toml_text({"exact": {"digits": {STEPS: steps}}}))


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """An experiment whose runs want their own learning rates, one that tunes them, and one that needs none."""
    folder = tmp_path / "reproduction" / "specs"
    folder.mkdir(parents=True)
    for name, text in (("own", OWN), ("tuning-steps-digits", TUNING), ("planner", PLANNER.replace('"chosen"', "9"))):
        (folder / f"{name}.toml").write_text(text)
    found = Places.of(tmp_path)
    choose_steps(found)
    return found


def progress(places: Places) -> str:
    return str(progress_of(load_specs(places), places)["own"])


def line(places: Places) -> str:
    return waiting_lines(load_specs(places), Chosen.load(places.chosen), places)["own"]


def test_list_says_what_waits(places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--root", str(places.home)]) == 0
    out = capsys.readouterr().out
    assert "waits for steps" in out
    assert "0 of 0" not in out
    choose_steps(places, jsam=JSAM)
    assert progress(places) == "0 of 6, 6 wait for steps"
    choose_steps(places, jsam=JSAM, usbm=USBM)
    assert progress(places) == "0 of 12"
    assert waiting_lines(load_specs(places), Chosen.load(places.chosen), places) == {}


@pytest.mark.parametrize("only", [(), ("--only", "*/jsam/*")])
def test_run_says_what_to_run_first(only: tuple[str, ...], places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "own", *only, "--root", str(places.home)]) == 2
    err = capsys.readouterr().err
    assert err.endswith(f"error: {WAITS}\n")
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", ["plan", "table"])
def test_plan_and_table_say_so_too(command: str, places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "own", "--root", str(places.home)]) == 0
    assert WAITS in capsys.readouterr().err


def test_what_can_be_made_is_made_beside_what_waits(places: Places) -> None:
    said: list[str] = []
    run_specs(load_specs(places, ["own", "planner"]), places, tell=said.append)
    assert said == [WAITS, "planner: computing"]


def test_what_comes_first_follows_from_what_is_stored(places: Places) -> None:
    choose_steps(places, jsam=JSAM, usbm={"1": 0.3})
    few = "own: 3 runs wait for learning rates that are not chosen yet"
    store(places, "tuning-steps-digits", lambda config: 0.9 if config.cost == 1 else None)
    assert line(places) == f"{few}; {FIRST}"
    # A cost that is tuned in part is to be tuned in full: there nothing is chosen for any mechanism.
    store(places, "tuning-steps-digits", lambda config: 0.9 if config.mechanism == "usbm" else None)
    assert line(places) == f"{few}; {FIRST}"
    store(places, "tuning-steps-digits", lambda config: 0.9 if config.cost == 3 else None)
    assert line(places) == f"{few}; first python -m reproduction choose"
    (places.specs / "tuning-steps-digits.toml").unlink()
    assert line(places) == f"{few}; no experiment tunes them"
