"""Tables, figures and the page show what is stored, say what is missing, and run nothing."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from jsam.cli import main
from jsam.experiments.places import Places
from jsam.experiments.tabulate import COLUMNS
from tests.conftest import require
from tests.experiments.made_up import copied_places, store

require("matplotlib", extra="plot")


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("something was run")

    monkeypatch.setattr("jsam.training.trials.run_trials", never)
    monkeypatch.setattr("jsam.experiments.planning.loss_weight_for_budget", never)
    monkeypatch.setattr("jsam.experiments.tasks.load_dataset", never)
    found = copied_places(tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "reproduction.md").write_text(
        "# R\n\n<!-- table-mnist -->\nold\n<!-- end -->\n\n"
        "<!-- figure panels-mnist -->\nold\n<!-- end -->\n<!-- figure straggler -->\nold\n<!-- end -->\n\nlast\n"
    )
    store(found, "table-mnist", lambda c: 0.98 if c.seed < 2 else None)
    store(found, "panels-mnist", lambda c: 0.9 if c.similarity == 100 else None)
    return found


def test_render_writes_figures_the_page_and_the_documentation(
    places: Places, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "render", "--root", str(places.home)]) == 0
    names = {path.name for path in (places.results / "figures").iterdir()}
    assert {"panels-mnist.png", "bound-mnist.png"} <= names
    assert not {"panels-cifar10.png", "straggler.png"} & names
    page = (places.results / "index.html").read_text()
    assert "data:image/png;base64," in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page
    text = (places.home / "docs" / "reproduction.md").read_text()
    assert "old" not in text
    assert "| jsam | 100 | 590.5 | 590.5 | 98.00 ± 0.00 | 99.05 | -1.05 | 2 | 7 |" in text
    assert "(../results/paper/figures/panels-mnist.png)\n<!-- end -->" in text
    assert text.endswith("<!-- figure straggler -->\n*Not run yet.*\n<!-- end -->\n\nlast\n")
    assert main(["reproduce", "render", "--root", str(places.home)]) == 0
    assert (places.home / "docs" / "reproduction.md").read_text() == text


def test_table_as_json_csv_and_text(places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--root", str(places.home)]
    assert main(["reproduce", "table", "table-mnist", "--format", "json", *where]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 24
    first = rows[0]
    assert tuple(first) == COLUMNS
    assert (first["dataset"], first["mechanism"], first["similarity"], first["seeds"]) == ("mnist", "jsam", 100.0, 2)
    assert (first["accuracy_mean"], first["paper_accuracy"], first["paper_cost"]) == (98.0, 99.05, 590.5221)
    assert main(["reproduce", "table", "table-mnist", "--format", "csv", *where]) == 0
    assert len(list(csv.DictReader(io.StringIO(capsys.readouterr().out)))) == 24
    assert main(["reproduce", "table", "table-mnist", *where]) == 0
    assert "98.00 ± 0.00" in capsys.readouterr().out
    assert main(["reproduce", "table", "--format", "json", *where]) == 0
    everything = json.loads(capsys.readouterr().out)
    assert {row["noise"] for row in everything} == {"lemma1", "exact"}


def test_list_and_merge(places: Places, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--root", str(places.home)]
    assert main(["reproduce", "list", *where]) == 0
    assert "48 of 72" in capsys.readouterr().out
    other = copied_places(tmp_path / "other")
    store(other, "table-mnist", lambda c: 0.97)
    assert main(["reproduce", "merge", str(other.results), *where]) == 0
    assert "24 runs are new, 48 were known" in capsys.readouterr().err
    assert main(["reproduce", "choose", *where]) == 0
    assert "provisional" in capsys.readouterr().err


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "list", "--root", str(tmp_path)]) == 2
    assert "has no folder experiments/paper" in capsys.readouterr().err
    assert main(["reproduce", "table", "nothing"]) == 2
    assert "there is no experiment 'nothing'" in capsys.readouterr().err


def test_rows_without_runs_show_the_cost_that_was_set(places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "table", "panels-mnist", "--root", str(places.home)]) == 0
    out = capsys.readouterr().out
    assert "(1)" in out
    assert main(["reproduce", "table", "panels-mnist", "--format", "json", "--root", str(places.home)]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert all(row["nominal_cost"] > 0 for row in rows if row["seeds"] == 0)


def test_a_planner_experiment_says_that_it_has_no_table(places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "table", "structure", "--root", str(places.home)]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "structure has no table" in err


def test_render_without_matplotlib_is_one_line(
    places: Places, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["reproduce", "render", "--root", str(places.home)]) == 2
    err = capsys.readouterr().err
    assert "reproduce render needs matplotlib" in err
    assert "pip install '.[plot]'" in err
    assert err.count("\n") == 1
