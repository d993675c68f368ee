"""--rules and --write-rules: one file of settings for every command that plans, and one way from it to a mechanism."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jsam.mechanism.rules import Rules
from tests.cli.conftest import EXAMPLE, UNIFORM, Run, WriteClients
from tests.conftest import require

FOUR = "id,sensitivity\na,0.1\nb,0.3\nc,0.5\nd,0.9\n"
TWENTY = "id,sensitivity\n" + "".join(f"c{k},{0.03 + 0.04 * k:.2f}\n" for k in range(20))
RULES = Rules(
    mechanism="fsbm-12",
    prior="uniform:0,2",
    loss_weight=7.0,
    noise_weight=2.0,
    bias_weight=0.5,
    max_selection_prob=0.1,
    max_epsilon=4.0,
    seed=3,
)
FLAGS = tuple(
    part
    for name, value in RULES.as_dict().items()
    if value is not None
    for part in (f"--{name.replace('_', '-')}", str(value))
)


def written(tmp_path: Path, rules: Rules = RULES) -> Path:
    path = tmp_path / "rules.toml"
    path.write_text(rules.to_toml())
    return path


def result_of(run: Run, *arguments: str | Path) -> dict[str, Any]:
    result = run(*arguments, "--format", "json")
    assert (result.code, result.err) == (0, "")
    content: dict[str, Any] = json.loads(result.out)
    return content


@pytest.mark.parametrize("command", ["plan", "audit"])
def test_a_file_gives_what_the_same_options_give(command: str, run: Run, clients: WriteClients, tmp_path: Path) -> None:
    path = clients(TWENTY)
    assert result_of(run, command, path, "--rules", written(tmp_path)) == result_of(run, command, path, *FLAGS)


@pytest.mark.parametrize(
    ("options", "changes"),
    [
        (("--mechanism", "jsam"), {"mechanism": "jsam"}),
        (("--loss-weight", "20", "--max-epsilon", "9"), {"loss_weight": 20.0, "max_epsilon": 9.0}),
        (("--noise-weight", "1"), {"noise_weight": 1.0}),
        (("--budget", "5"), {"budget": 5.0, "loss_weight": None}),
    ],
)
def test_an_option_takes_the_place_of_the_files_setting(
    options: tuple[str, ...], changes: dict[str, Any], run: Run, tmp_path: Path
) -> None:
    """Also one that happens to be the default, and a budget that of a loss weight."""
    there = tmp_path / "used.toml"
    result = run("plan", EXAMPLE, "--rules", written(tmp_path), *options, "--write-rules", there, "--no-payments")
    assert result.code == 0
    assert Rules.load(there) == replace(RULES, **changes)


@pytest.mark.parametrize("command", ["plan", "audit", "compare"])
def test_what_was_used_can_be_written_and_read_again(
    command: str, run: Run, clients: WriteClients, tmp_path: Path
) -> None:
    path = clients(FOUR)
    used, again = tmp_path / "used.toml", tmp_path / "again.toml"
    options = (*UNIFORM, "--max-epsilon", "6", "--seed", "4")
    first = run(command, path, *options, "--write-rules", used, "--format", "json")
    second = run(command, path, "--rules", used, "--write-rules", again, "--format", "json")
    assert (first.code, second.code) == (0, 0)
    assert first.out == second.out
    assert Rules.load(used) == Rules(prior="uniform:0,1", loss_weight=5.0, max_epsilon=6.0, seed=4)
    assert used.read_bytes() == again.read_bytes()


def test_comparing_takes_in_the_files_mechanism(run: Run, clients: WriteClients, tmp_path: Path) -> None:
    path = clients(TWENTY)
    rows = result_of(run, "compare", path, "--rules", written(tmp_path))["mechanisms"]
    assert [row["mechanism"] for row in rows] == [
        "jsam-even",
        "jsam",
        "jsam-ci",
        "usbm",
        "fsbm-10",
        "fsbm-15",
        "fsbm-12",
    ]
    assert rows[-1]["total_payment"] == result_of(run, "plan", path, "--rules", written(tmp_path))["total_payment"]


BAD_FILES = {
    "not TOML": ("mechanism = ", "rules.toml is not TOML"),
    "unknown setting": (
        "loss_weight = 1.0\nnoise_wieght = 2.0\n",
        "unknown setting 'noise_wieght'; allowed: mechanism",
    ),
    "a word for a number": ('loss_weight = "5"\n', "rules.toml: loss_weight is '5'; it must be a number"),
    "a weight out of range": (
        "loss_weight = 1.0\nnoise_weight = -1\n",
        "rules.toml: noise_weight is -1.0; it must be a positive",
    ),
    "both": ("loss_weight = 1.0\nbudget = 1.0\n", "rules.toml: give loss_weight or budget, and not both"),
    "neither": ('mechanism = "jsam"\n', "give --loss-weight (as in --loss-weight 5) or --budget"),
    "unknown mechanism": (
        'mechanism = "magic"\nloss_weight = 1.0\nprior = "uniform:0,1"\n',
        "unknown mechanism 'magic'",
    ),
    "probability alone": ("loss_weight = 1.0\nbudget_probability = 0.5\n", "--budget-probability needs --budget"),
}


@pytest.mark.parametrize(
    ("command", "case"),
    [
        (command, case)
        for command in ("plan", "audit", "compare", "demo", "simulate", "deploy-local")
        for case in BAD_FILES
        # These two have a loss weight or a budget of their own, and a demo compares mechanisms of its own.
        if (command, case) not in (("deploy-local", "neither"), ("demo", "neither"), ("demo", "unknown mechanism"))
    ],
)
def test_a_file_that_cannot_be_used_is_refused_in_one_line(command: str, case: str, run: Run, tmp_path: Path) -> None:
    if command in ("demo", "simulate"):
        require("torch", extra="train")
        require("sklearn", extra="train")
    if command == "deploy-local":
        require("flwr", extra="flower")
    text, wanted = BAD_FILES[case]
    path = tmp_path / "rules.toml"
    path.write_text(text)
    arguments: tuple[str | Path, ...] = (command, EXAMPLE)
    if command in ("demo", "simulate"):
        arguments = (command, "--dataset", "digits", "--output", tmp_path / "run")
    elif command == "deploy-local":
        arguments = (command, "--output", tmp_path / "run")
    result = run(*arguments, "--rules", path)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert wanted in result.err
    assert [place.name for place in tmp_path.iterdir()] == ["rules.toml"]


def test_a_file_that_is_not_there(run: Run, tmp_path: Path) -> None:
    result = run("plan", EXAMPLE, "--rules", tmp_path / "nowhere.toml")
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert "cannot be read" in result.err


def test_a_bad_option_beside_a_file_is_named_as_an_option(run: Run, tmp_path: Path) -> None:
    result = run("plan", EXAMPLE, "--rules", written(tmp_path), "--noise-weight", "-1")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "the options beside it: --noise-weight is -1" in result.err


def test_rules_are_never_written_over_what_is_read(run: Run, clients: WriteClients, tmp_path: Path) -> None:
    path, rules = clients("id,sensitivity\na,0.2\nb,0.5\nc,0.9\n"), written(tmp_path)
    for target in (path, rules):
        result = run("plan", path, "--rules", rules, "--write-rules", target)
        assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
        assert f"--write-rules {str(target)!r} would overwrite" in result.err
    result = run("plan", path, *UNIFORM, "--write-rules", tmp_path / "x.json", "--output", tmp_path / "x.json")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "--output and --write-rules both name" in result.err
    assert Rules.load(rules) == RULES


# Each way from settings to a plan, for 20 clients.
WAYS = {
    "plan": ("plan", "{clients}"),
    "audit": ("audit", "{clients}"),
    "compare": ("compare", "{clients}", "--mechanism", "fsbm-10"),
    "simulate from a file": ("simulate", "--dataset", "digits", "--clients", "{clients}", "--output", "{folder}"),
    "simulate": ("simulate", "--dataset", "digits", "--clients", "20", "--output", "{folder}"),
    "deploy-local": ("deploy-local", "--clients", "20", "--output", "{folder}"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("asked", ["by options", "by a file"])
def test_a_cap_that_a_mechanism_cannot_keep_is_refused_by_every_way_in(
    asked: str, way: str, run: Run, clients: WriteClients, tmp_path: Path
) -> None:
    """fsbm-10 draws each of its ten clients with probability 0.1, above a cap of 0.05."""
    if way.startswith("simulate"):
        require("torch", extra="train")
        require("sklearn", extra="train")
    if way == "deploy-local":
        require("flwr", extra="flower")
    rules = Rules(mechanism="fsbm-10", prior="uniform:0,1", loss_weight=5.0, max_selection_prob=0.05)
    options: tuple[str, ...] = ("--rules", str(written(tmp_path, rules)))
    if asked == "by options":
        options = (*UNIFORM, "--max-selection-prob", "0.05")
        options += () if way == "compare" else ("--mechanism", "fsbm-10")
    path, folder = clients(TWENTY), tmp_path / "run"
    result = run(*(part.format(clients=path, folder=folder) for part in WAYS[way]), *options)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert "fsbm-10 selects" in result.err
    assert "above --max-selection-prob 0.05" in result.err
    assert not folder.exists()


def test_a_run_keeps_its_rules_and_they_give_the_same_contract(run: Run, tmp_path: Path) -> None:
    require("torch", extra="train")
    require("sklearn", extra="train")
    small = ("simulate", "--dataset", "digits", "--clients", "8", "--rounds", "2", "--threads", "1")
    options = ("--loss-weight", "60", "--max-epsilon", "10", "--mechanism", "usbm", "--seed", "2")
    assert run(*small, *options, "--output", tmp_path / "a").code == 0
    rules = tmp_path / "a" / "rules.toml"
    kept = Rules.load(rules)
    assert kept.noise_weight > 1  # it follows from the model and the data
    given = {"mechanism": "usbm", "prior": "uniform:0,1", "loss_weight": 60.0, "max_epsilon": 10.0, "seed": 2}
    assert kept == Rules(**given, noise_weight=kept.noise_weight, heterogeneity=kept.heterogeneity)  # type: ignore[arg-type]
    assert run(*small, "--rules", rules, "--output", tmp_path / "b").code == 0
    assert (tmp_path / "b" / "rules.toml").read_bytes() == rules.read_bytes()
    assert (tmp_path / "b" / "contract.json").read_bytes() == (tmp_path / "a" / "contract.json").read_bytes()


def test_rules_beside_a_contract_are_refused(run: Run, tmp_path: Path) -> None:
    require("torch", extra="train")
    result = run("simulate", "--contract", "c.json", "--rules", written(tmp_path), "--output", tmp_path / "run")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "give --contract or --rules, not both" in result.err


OWN = "tests.mechanism.own_mechanisms:EqualShares"
COMMANDS = {
    "plan": ("plan", "{clients}", "--format", "json"),
    "audit": ("audit", "{clients}"),
    "compare": ("compare", "{clients}", "--format", "json"),
    "simulate": (
        "simulate", "--dataset", "digits", "--clients", "8", "--rounds", "1", "--threads", "1", "--output", "{folder}",
    ),
}  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("asked", ["by an option", "by a file"])
def test_a_mechanism_of_the_users_own_works_in_every_command(
    asked: str, command: str, run: Run, clients: WriteClients, tmp_path: Path
) -> None:
    if command == "simulate":
        require("torch", extra="train")
        require("sklearn", extra="train")
    rules = Rules(mechanism=OWN, prior="uniform:0,1", loss_weight=60.0, max_epsilon=10.0)
    options: tuple[str, ...] = ("--rules", str(written(tmp_path, rules)))
    if asked == "by an option":
        options = ("--prior", "uniform:0,1", "--loss-weight", "60", "--max-epsilon", "10", "--mechanism", OWN)
    path, folder = clients(FOUR), tmp_path / "run"
    result = run(*(part.format(clients=path, folder=folder) for part in COMMANDS[command]), *options)
    assert result.code == 0, result.err
    if command == "compare":
        rows = {row["mechanism"]: row for row in json.loads(result.out)["mechanisms"]}
        assert rows[OWN]["error"] is None
    elif command == "plan":
        content = json.loads(result.out)
        assert content["mechanism"] == OWN
        assert [client["selection_prob"] for client in content["clients"]] == [0.25] * 4


def test_a_mechanism_that_cannot_be_imported_is_refused_in_one_line(run: Run) -> None:
    for name, wanted in (("nowhere.at_all:Class", "cannot import"), ("odd:", "must be written package.module:Class")):
        result = run("plan", EXAMPLE, *UNIFORM, "--mechanism", name)
        assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
        assert wanted in result.err


def test_a_heterogeneity_without_a_noise_weight_is_warned_about(run: Run, clients: WriteClients) -> None:
    """The bias is then in squares of the clipping norm, and the noise must be too."""
    arguments = ["plan", clients(TWENTY), *UNIFORM, "--heterogeneity", "classes:2/10"]
    assert "--noise-weight 1.66" in run(*arguments).err
    assert "warning" not in run(*arguments, "--noise-weight", "1.66").err
