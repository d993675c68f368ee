"""Errors speak of options as they are typed, whatever the library calls its arguments."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import typer

from jsam.cli.app import app
from jsam.cli.wording import in_options, invoked
from jsam.errors import InputError
from tests.cli.conftest import EXAMPLE, UNIFORM, Run
from tests.conftest import require

PROGRAM = typer.main.get_command(app)


def commands(group: click.Command, *above: str) -> Iterator[tuple[str, ...]]:
    """The words of every command."""
    if isinstance(group, click.Group):
        for name, command in group.commands.items():
            yield from commands(command, *above, name)
    else:
        yield above


@pytest.mark.parametrize("words", list(commands(PROGRAM)), ids=" ".join)
def test_every_option_of_every_command_is_called_by_its_own_name(words: tuple[str, ...]) -> None:
    command = invoked(PROGRAM, [*words, "file", "--nothing"])
    assert command.name == words[-1]
    for parameter in command.params:
        if not isinstance(parameter, click.Option):
            continue
        said = in_options(f"{parameter.name} is 1; it must be another", command)
        assert said == f"{parameter.opts[0]} is 1; it must be another"


def test_words_that_are_not_options_are_left() -> None:
    plan = invoked(PROGRAM, ["plan"])
    for message in (
        "the budget is too small to train on",
        "budgets are small",
        "contract c.json is not a contract that jsam plan wrote: KeyError('loss_weight')",
        "runs/max_epsilon/a cannot be read",
        "max_epsilon.csv line 3: no sensitivity",
        "clients with different numbers of samples are not supported",
        "learning_rate is 0",
    ):
        assert in_options(message, plan) == message
    assert in_options("loss_weight is 0", PROGRAM) == in_options("loss_weight is 0") == "loss_weight is 0"


def test_what_an_offer_or_a_policy_calls_by_that_name_is_left() -> None:
    """TERMS.json has a loss_weight and POLICY.toml a check_loss_weight; neither is what the option is."""
    verify = invoked(PROGRAM, ["verify-contract"])
    for message in ("t.json: loss_weight is 0", "p.toml: check_loss_weight is 1", "t.json: samples is 0"):
        assert in_options(message, verify) == message


PLAN = ("plan", EXAMPLE, *UNIFORM)
SIMULATE = ("simulate", "--dataset", "digits", "--loss-weight", "5", "--max-epsilon", "10")
SPLIT = ("data", "partition", "digits", "--scheme", "dirichlet", "--clients", "100")


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ((*PLAN, "--max-selection-prob", "0.001"), "--max-selection-prob is 0.001: 100 clients cannot share"),
        ((*PLAN, "--mechanism", "fsbm-2", "--max-selection-prob", "0.1"), "above --max-selection-prob 0.1; raise"),
        (("audit", EXAMPLE, *UNIFORM, "--grid", "1"), "--grid is 1"),
        (("compare", EXAMPLE, *UNIFORM, "--noise-weight", "-1"), "--noise-weight is -1"),
        ((*SIMULATE, "--loss-weight", "0"), "--loss-weight is 0"),
        ((*SIMULATE, "--learning-rate", "nan"), "--learning-rate is nan"),
        ((*SIMULATE, "--noise", "lemma1"), "--noise is 'lemma1' without --c2"),
        ((*SIMULATE, "--clients", "3000"), "--clients is 3000, must be 1 to 1500"),
        ((*SIMULATE, "--clients", "7", "--similarity", "0"), "or set --similarity to 100"),
        ((*SPLIT, "--alpha", "0.01", "--min-size", "9"), "raise --alpha (0.01), or leave --min-size out"),
        (("calibrate", "--epsilon", "1", "--delta", "2"), "--delta is 2"),
        (("calibrate", "--epsilon", "nan"), "--epsilon is nan; it must be a finite number above 0"),
        (("deploy-local", "--loss-weight", "0"), "--loss-weight is 0"),
        ((*SIMULATE, "--mechanism", "usbm-compensated"), "which simulated clients do not have"),
        (("deploy-local", "--mechanism", "bbm-2"), "bbm-2 selects by local loss, which clients of a federation do not"),
        ((*PLAN[:4], "--budget", "3", "--budget-probability", "2"), "--budget-probability is 2; it must lie"),
        (("demo", "--dataset", "digits", "--seed", "9" * 30), "--seed is 9999"),
        (("deploy-local", "--clip-norm", "1e-300"), "--clip-norm is 1e-300"),
        (("demo", "--dataset", "digits", "--max-epsilon", "0"), "--max-epsilon is 0"),
        (("demo", "--dataset", "digits", "--max-selection-prob", "0.01"), "--max-selection-prob is 0.01: 10 clients"),
    ],
)
def test_bad_values_in_one_line(
    arguments: tuple[str | Path, ...], wanted: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if arguments[0] in ("simulate", "demo", "data", "deploy-local"):
        require("torch", extra="train")
    if arguments[0] == "deploy-local":
        require("flwr", extra="flower")
    monkeypatch.chdir(tmp_path)
    target = () if arguments[0] not in ("simulate", "demo", "deploy-local") else ("--output", "new")
    result = run(*arguments, *target)
    assert (result.code, result.out) == (2, "")
    assert wanted in result.err
    assert result.err.count("\n") == 1
    assert not re.search(r"\b[a-z]+_[a-z]+\b", result.err)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (("plan",), "Missing argument 'CLIENTS.csv'; see jsam plan --help"),
        (("data", "foo"), "No such command 'foo'; see jsam data --help"),
        (("calibrate", "--epsilon", "x"), "'x' is not a valid float; see jsam calibrate --help"),
        ((*PLAN, "--seed", "1.5"), "'1.5' is not a valid integer; see jsam plan --help"),
        ((*PLAN, "--wxyz", "red"), "; see jsam plan --help"),
        (("data", "lst"), "No such command 'lst'. Did you mean 'list'? See jsam data --help"),
        (("data", "partition", "--outptu", "x"), "Did you mean '--output'? See jsam data partition --help"),
        (("reproduce", "run", "--help"), "in a checkout, run python -m reproduction --help"),
    ],
)
def test_a_line_that_cannot_be_read_says_where_to_look(arguments: tuple[str, ...], wanted: str, run: Run) -> None:
    result = run(*arguments)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert wanted in result.err


def test_a_group_alone_lists_its_commands_and_complains_of_nothing(run: Run) -> None:
    result = run("data")
    assert (result.code, result.err) == (0, "")
    assert "Commands" in result.out


def test_an_option_that_is_missing_is_not_called_none() -> None:
    command = invoked(PROGRAM, ["data", "partition"])
    assert in_options("alpha is None, must be above 0", command) == "--alpha is missing, must be above 0"


def test_a_mechanism_that_cannot_be_compared_says_so_in_options(run: Run) -> None:
    result = run("compare", EXAMPLE, *UNIFORM, "--max-selection-prob", "0.015")
    assert result.code == 0
    assert "above --max-selection-prob 0.015" in " ".join(result.out.split())


def test_warnings_too(run: Run, tmp_path: Path) -> None:
    require("torch", extra="train")
    result = run(*SIMULATE, "--clients", "10", "--rounds", "1", "--delta", "0.1", "--output", tmp_path / "run")
    assert "warning: --delta is 0.1" in result.err


def test_python_still_hears_of_arguments() -> None:
    import jsam

    with pytest.raises(InputError, match=r"^loss_weight is 0"):
        jsam.JSAM(loss_weight=0)
