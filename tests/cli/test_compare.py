"""`jsam compare`: every mechanism on the same clients, none of them able to spoil the rest."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from jsam.cli.compare import COLUMNS
from tests.cli.conftest import EXAMPLE, EXAMPLE_WITH_LOSS, UNIFORM, Run, WriteClients
from tests.conftest import require


def compared(run: Run, *arguments: str | Path) -> dict[str, Any]:
    result = run("compare", *arguments, "--format", "json")
    assert result.code == 0, result.err
    content: dict[str, Any] = json.loads(result.out)
    return content


def test_all_mechanisms_at_one_loss_weight(run: Run) -> None:
    content = compared(run, EXAMPLE_WITH_LOSS, *UNIFORM)
    rows = {row["mechanism"]: row for row in content["mechanisms"]}
    assert list(rows) == ["jsam-even", "jsam", "jsam-ci", "usbm", "fsbm-50", "fsbm-75", "bbm-50"]
    assert all(list(row) == list(COLUMNS) for row in rows.values())
    for name, row in rows.items():
        plan = json.loads(run("plan", EXAMPLE_WITH_LOSS, *UNIFORM, "--mechanism", name, "--format", "json").out)
        for key in ("num_selected", "expected_cost", "total_payment", "loss_bound", "objective", "loss_weight"):
            assert row[key] == plan[key]
    # jsam-even counts less of the same bias, and jsam-ci pays less.
    comparable = (row for name, row in rows.items() if name not in ("jsam-even", "jsam-ci"))
    least = min(comparable, key=lambda row: row["objective"])
    assert least["mechanism"] == "jsam"


def test_without_losses_bbm_is_left_out_with_a_note(run: Run) -> None:
    content = compared(run, EXAMPLE, *UNIFORM)
    names = [row["mechanism"] for row in content["mechanisms"]]
    assert names == ["jsam-even", "jsam", "jsam-ci", "usbm", "fsbm-50", "fsbm-75"]
    assert len(content["notes"]) == 1
    assert "bbm-50 is left out" in content["notes"][0]
    assert "bbm-50 is left out" in run("compare", EXAMPLE, *UNIFORM).out


def test_one_budget_gives_each_mechanism_its_own_loss_weight(run: Run, clients: WriteClients) -> None:
    path = clients("id,sensitivity\n" + "".join(f"k{i},{(i + 0.5) / 8}\n" for i in range(8)))
    options = ("--prior", "uniform:0,1", "--budget", "1")
    rows = {row["mechanism"]: row for row in compared(run, path, *options)["mechanisms"]}
    assert len({row["loss_weight"] for row in rows.values()}) == len(rows)
    for name in ("jsam", "usbm"):
        plan = json.loads(run("plan", path, *options, "--mechanism", name, "--format", "json").out)
        assert rows[name]["loss_weight"] == plan["loss_weight"]
        assert plan["budget_plan"]["expected_cost"] == pytest.approx(1.0, rel=0.02)


def test_a_mechanism_that_cannot_be_run_says_why_in_its_row(run: Run, clients: WriteClients) -> None:
    """USBM's payments diverge under a heavy tail; the others' do not."""
    path = clients("id,sensitivity\na,0.2\nb,0.5\nc,0.9\nd,2.0\n")
    options = ("--prior", "halfcauchy", "--loss-weight", "5")
    rows = {row["mechanism"]: row for row in compared(run, path, *options)["mechanisms"]}
    assert "diverge" in rows["usbm"]["error"]
    assert rows["usbm"]["objective"] is None
    assert rows["jsam"]["error"] is None
    table = run("compare", path, *options)
    assert table.code == 0
    assert "usbm: the prior's tail makes payments diverge" in table.out


def test_chosen_mechanisms_as_csv(run: Run) -> None:
    result = run("compare", EXAMPLE, *UNIFORM, "--mechanism", "jsam", "--mechanism", "fsbm-20", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(result.out)))
    assert [(row["mechanism"], row["error"]) for row in rows] == [("jsam", ""), ("fsbm-20", "")]
    assert rows[1]["num_selected"] == "20"


def test_an_unknown_mechanism_is_bad_input_for_the_whole_comparison(run: Run) -> None:
    result = run("compare", EXAMPLE, *UNIFORM, "--mechanism", "jsam", "--mechanism", "magic")
    assert (result.code, result.out) == (2, "")


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_clients(count: int, run: Run, clients: WriteClients) -> None:
    """Half and three quarters of so few are still one client at least, and no mechanism is named twice."""
    path = clients("id,sensitivity\n" + "".join(f"k{i},{0.2 + 0.3 * i}\n" for i in range(count)))
    names = [row["mechanism"] for row in compared(run, path, *UNIFORM)["mechanisms"]]
    assert len(set(names)) == len(names)


def test_a_picture_and_the_sweep_behind_it(run: Run, tmp_path: Path) -> None:
    require("matplotlib", extra="plot")
    content = compared(run, EXAMPLE_WITH_LOSS, *UNIFORM, "--plot", tmp_path / "compare.png")
    assert (tmp_path / "compare.png").read_bytes().startswith(b"\x89PNG\r\n")
    assert (tmp_path / "compare.png").stat().st_size > 50_000
    sweep = [r for r in content["sweep"] if r["mechanism"] == "jsam" and r["noise_weight"] == 1.0]
    costs, weights = ([r[name] for r in sweep] for name in ("expected_cost", "loss_weight"))
    assert costs == sorted(costs)
    assert min(weights) < 5 < max(weights)


def test_each_mechanism_has_a_row_of_how_even_it_is(run: Run) -> None:
    names = ("--mechanism", "jsam", "--mechanism", "jsam-even")
    rows = compared(run, EXAMPLE, *UNIFORM, *names)["fairness"]
    assert [row["mechanism"] for row in rows] == ["jsam", "jsam-even"]
    for row in rows:
        plan = json.loads(run("plan", EXAMPLE, *UNIFORM, "--mechanism", row["mechanism"], "--format", "json").out)
        assert {name: value for name, value in row.items() if name != "mechanism"} == plan["fairness"]
    assert "Gini, kept" in run("compare", EXAMPLE, *UNIFORM, *names).out
