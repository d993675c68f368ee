"""Simulated clients that hold different amounts of data: the plan uses the sizes, and every source of them agrees."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.cli.conftest import Run
from tests.conftest import require

if not TYPE_CHECKING:
    require("torch", extra="train")
    require("sklearn", extra="train")
    require("dp_accounting", extra="train")

TRAINING = ("--dataset", "digits", "--rounds", "2", "--per-round", "3", "--threads", "1", "--noise-seed", "0")
EVEN = ("--mechanism", "jsam-even", "--loss-weight", "60", "--max-epsilon", "10")
DEALT = ("--scheme", "dirichlet", "--alpha", "1", "--min-size", "20")


def stored(folder: Path, name: str) -> Any:
    return json.loads((folder / f"{name}.json").read_text())


@pytest.mark.parametrize("way", [("--sizes", "lognormal:1"), ("--sizes", "zipf:1", "--similarity", "30"), DEALT])
def test_the_plan_uses_the_sizes_in_which_data_are_dealt_out(run: Run, tmp_path: Path, way: tuple[str, ...]) -> None:
    result = run("simulate", *TRAINING, *EVEN, "--clients", "8", *way, "--output", tmp_path / "run")
    assert result.code == 0
    assert "treats all of them alike" not in result.err
    sizes = np.array(stored(tmp_path / "run", "config")["data"]["samples"])
    assert sizes.min() < sizes.max()
    clients = stored(tmp_path / "run", "contract")["clients"]
    assert [client["data_share"] for client in clients] == pytest.approx(sizes / sizes.sum())
    p = np.array([client["selection_prob"] for client in clients])
    assert p[p > 0] == pytest.approx(sizes[p > 0] / sizes[p > 0].sum())


@pytest.mark.parametrize(
    ("economy", "why"),
    [
        (("--mechanism", "jsam", "--loss-weight", "60", "--max-epsilon", "10"), "has no cap on ε for clients"),
        (("--mechanism", "vcg", "--loss-weight", "60"), "vcg treats all clients alike"),
    ],
)
def test_what_knows_nothing_of_sizes_plans_for_all_alike_and_says_so(
    run: Run, tmp_path: Path, economy: tuple[str, ...], why: str
) -> None:
    result = run("simulate", *TRAINING, *economy, "--clients", "5", *DEALT, "--output", tmp_path / "run")
    assert result.code == 0
    (warning,) = [line for line in result.err.splitlines() if "treats all of them alike" in line]
    assert why in warning
    assert "data_share" not in stored(tmp_path / "run", "contract")["clients"][0]


@pytest.fixture
def hospitals(tmp_path: Path) -> str:
    path = tmp_path / "hospitals.csv"
    path.write_text("id,sensitivity,samples\na,0.2,30\nb,0.4,600\nc,0.5,200\n")
    return str(path)


def test_a_file_with_samples_says_how_data_are_dealt_out(run: Run, tmp_path: Path, hospitals: str) -> None:
    result = run("simulate", *TRAINING, *EVEN, "--clients", hospitals, "--output", tmp_path / "run")
    assert result.code == 0
    assert stored(tmp_path / "run", "config")["data"]["samples"] == [30, 600, 200]
    releases = [json.loads(line) for line in (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()[1:]]
    assert {(entry["client"], entry["samples"]) for entry in releases} <= {("a", 30), ("b", 600), ("c", 200)}
    contract = tmp_path / "run" / "contract.json"
    again = run("simulate", *TRAINING, "--contract", contract, "--output", tmp_path / "again")
    assert again.code == 0
    # The contract knows shares alone, so all 1,500 samples are dealt out by these.
    assert stored(tmp_path / "again", "config")["data"]["samples"] == [54, 1084, 362]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--mechanism", "jsam", "--max-epsilon", "3"), "has no cap on ε for clients with different numbers"),
        (("--sizes", "zipf:1"), "give --sizes or column 'samples'"),
        (DEALT, "which have sizes of their own"),
    ],
)
def test_what_does_not_agree_with_the_file_is_refused_in_one_line(
    run: Run, tmp_path: Path, hospitals: str, options: tuple[str, ...], said: str
) -> None:
    given = ("--clients", hospitals, "--loss-weight", "60", *options)
    result = run("simulate", *TRAINING, *given, "--output", tmp_path / "run")
    assert result.code == 2
    (error,) = [line for line in result.err.splitlines() if "error:" in line]
    assert said in error
    assert not (tmp_path / "run").exists()


def test_more_samples_than_there_are_are_refused(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "many.csv"
    path.write_text("id,sensitivity,samples\na,0.2,1000\nb,0.4,501\n")
    result = run("simulate", *TRAINING, *EVEN, "--clients", path, "--output", tmp_path / "run")
    assert result.code == 2
    assert "must come to at most 1500 samples" in result.err


def test_sizes_go_from_a_partition_to_a_file_and_back(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "shares.csv"
    first = run("data", "partition", "digits", "--clients", "12", "--sizes", "lognormal:1", "--output", file)
    assert first.code == 0
    again = run("data", "partition", "digits", "--sizes", file, "--format", "json")
    assert again.code == 0
    found = json.loads(again.out)
    sizes = [int(line.split(",")[1]) for line in file.read_text().splitlines()[1:]]
    assert [client["samples"] for client in found["clients"]] == sizes
    assert found["samples"]["largest"] == max(sizes)
    assert found["samples"]["share_of_largest_tenth"] == pytest.approx(max(sizes) / 1500)
    shown = run("data", "partition", "digits", "--sizes", file).out
    assert f"smallest {min(sizes)}" in shown
    assert "the largest tenth of clients" in shown


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("id\na\n", "no column 'samples'"),
        ("samples\n", "has a header but no clients"),
        ("samples\n3\n2.5\n", "line 3: samples is '2.5'"),
        ("samples\n0\n", "samples is '0'"),
    ],
)
def test_a_file_of_sizes_that_is_none_is_refused(run: Run, tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "sizes.csv").write_text(content)
    result = run("data", "partition", "digits", "--sizes", tmp_path / "sizes.csv")
    assert result.code == 2
    assert said in result.err
    assert result.err.count("\n") == 1


def test_reports_by_lots_are_drawn_from_the_prior_of_what_each_client_holds(run: Run, tmp_path: Path) -> None:
    weights = ("--noise-weight", "1", "--bias-weight", "1", "--lot", "100")
    result = run(
        "simulate", *TRAINING, *EVEN, *weights, "--clients", "6", "--sizes", "zipf:1", "--output", tmp_path / "run"
    )
    assert (result.code, "treats all of them alike" in result.err) == (0, False)
    sizes = np.array(stored(tmp_path / "run", "config")["data"]["samples"])
    clients = stored(tmp_path / "run", "contract")["clients"]
    prices = np.array([client["sensitivity"] for client in clients]) / (sizes / 100)
    assert 0 < prices.min() < prices.max() < 1
    # The prior of each is that of a lot times its lots, so v = 2c under U(0, 1) whatever it holds.
    assert [client["virtual_cost"] for client in clients] == pytest.approx(2 * prices * sizes / 100)
