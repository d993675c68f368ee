"""`jsam demo --rules`: what a file says holds for all mechanisms that are compared, and else it is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from jsam.cli.demo import MECHANISMS
from jsam.mechanism.rules import Rules
from tests.cli.conftest import Run
from tests.conftest import require

pytestmark = pytest.mark.usefixtures("_needs")
SHORT = ("demo", "--dataset", "digits", "--rounds", "1")


@pytest.fixture
def _needs() -> None:
    require("torch", extra="train")
    require("sklearn", extra="train")


def used(folder: Path) -> dict[str, Rules]:
    """The rules that each mechanism's folder says were used."""
    return {name: Rules.load(folder / name / "rules.toml") for name in MECHANISMS}


def file_of(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "rules.toml"
    path.write_text(text)
    return path


def test_a_file_gives_what_the_same_options_give(run: Run, tmp_path: Path) -> None:
    rules = file_of(tmp_path, "budget = 5.0\nseed = 2\nmax_epsilon = 3.0\n")
    options = ("--budget", "5", "--seed", "2", "--max-epsilon", "3")
    assert run(*SHORT, *options, "--output", tmp_path / "a").code == 0
    assert run(*SHORT, "--rules", rules, "--output", tmp_path / "b").code == 0
    for name in MECHANISMS:
        for file in ("rules.toml", "contract.json"):
            assert (tmp_path / "b" / name / file).read_bytes() == (tmp_path / "a" / name / file).read_bytes()


def test_all_settings_of_a_file_hold_for_every_mechanism(run: Run, tmp_path: Path) -> None:
    """Also weights, which each mechanism else has of its own; and a file without a cap on ε means no cap."""
    rules = Rules(mechanism="usbm", prior="beta:2,5", budget=4.0, noise_weight=9.0, heterogeneity="2.25", seed=6)
    path = file_of(tmp_path, rules.to_toml())
    result = run(*SHORT, "--rules", path, "--seed", "7", "--output", tmp_path / "demo")
    assert result.code == 0, result.err
    assert used(tmp_path / "demo") == {name: replace(rules, mechanism=name, seed=7) for name in MECHANISMS}
    names = "jsam-even, jsam, usbm"
    assert f"the settings of {path} hold for all of {names}, and not only for its mechanism usbm\n" in result.err
    shown = " ".join(result.out.split())
    assert "All weigh noise by Q = 9. All weigh how clients differ by 2.25." in shown


def test_weights_that_a_file_leaves_out_are_those_of_a_demo_without_one(run: Run, tmp_path: Path) -> None:
    assert run(*SHORT, "--output", tmp_path / "a").code == 0
    result = run(*SHORT, "--rules", file_of(tmp_path, "max_epsilon = 10.0\n"), "--output", tmp_path / "b")
    assert result.code == 0
    weights = used(tmp_path / "b")
    assert weights == used(tmp_path / "a")
    assert [weights[name].noise_weight for name in ("jsam", "usbm")] == [200.0, 200.0]
    assert weights["jsam-even"].noise_weight not in (1.0, 200.0)
    shown = " ".join(result.out.split())
    assert "this follows from the task. The others have Q = 200." in shown
    assert "this follows from the task. The others have a bias weight of 1." in shown


def test_the_rules_that_a_demo_wrote_can_be_given_to_the_next(run: Run, tmp_path: Path) -> None:
    assert run(*SHORT, "--output", tmp_path / "a").code == 0
    rules = tmp_path / "a" / "jsam" / "rules.toml"
    assert run(*SHORT, "--rules", rules, "--output", tmp_path / "b").code == 0
    assert used(tmp_path / "b") == {name: replace(Rules.load(rules), mechanism=name) for name in MECHANISMS}
    assert (tmp_path / "b/jsam/contract.json").read_bytes() == (tmp_path / "a/jsam/contract.json").read_bytes()


REFUSED = {
    "another mechanism": ('mechanism = "fsbm-5"\n', "mechanism is 'fsbm-5', and the demo compares jsam-even, jsam"),
    "a loss weight": ("loss_weight = 5.0\n", "loss_weight does not fix; leave it out, or give --budget beside"),
    "a probability": ("budget = 5.0\nbudget_probability = 0.9\n", "budget_probability does not fix; leave it out"),
    "halves": ('prior = "halves"\n', "prior halves is learned from the reports in a file of clients"),
    "lots": ("lot = 5\n", "--lot counts noise and bias by lots"),
    "lots with weights": ("lot = 5\nnoise_weight = 9.0\nbias_weight = 1.0\n", "and these clients state none"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_demo_cannot_honour_is_refused_in_one_line(case: str, run: Run, tmp_path: Path) -> None:
    text, wanted = REFUSED[case]
    result = run(*SHORT, "--rules", file_of(tmp_path, text), "--output", tmp_path / "demo")
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert wanted in result.err
    assert [place.name for place in tmp_path.iterdir()] == ["rules.toml"]


def test_a_budget_beside_the_file_takes_the_place_of_its_loss_weight(run: Run, tmp_path: Path) -> None:
    rules = file_of(tmp_path, "loss_weight = 5.0\n")
    assert run(*SHORT, "--rules", rules, "--budget", "6", "--output", tmp_path / "demo").code == 0
    assert {kept.budget for kept in used(tmp_path / "demo").values()} == {6.0}
