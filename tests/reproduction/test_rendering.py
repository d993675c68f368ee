"""Tables, figures and the page show what is stored, say what is missing, and run nothing."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reproduction.__main__ import main
from reproduction.choosing import choose
from reproduction.claims import all_claims
from reproduction.config import RunConfig
from reproduction.paths import Places
from reproduction.pictures import _tuning, _variants, noise_weight_panels, pictures_of
from reproduction.rendering import rows_of
from reproduction.results import Results
from reproduction.spec import load_specs
from reproduction.tabulate import COLUMNS
from reproduction.tuned_settings import Chosen
from tests.conftest import require
from tests.reproduction.made_up import copied_places, store

require("matplotlib", extra="plot")

SETTING = (
    "experiment", "dataset", "mechanism", "similarity", "nominal_cost", "noise", "straggler_epsilon",
    "max_selection_prob", "noise_weight", "max_epsilon", "heterogeneity",
)  # fmt: skip


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("something was run")

    monkeypatch.setattr("jsam.training.trials.run_trials", never)
    monkeypatch.setattr("jsam.mechanism.rules.loss_weight_for_budget", never)
    monkeypatch.setattr("reproduction.tasks.load_dataset", never)
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
    assert main(["render", "--root", str(places.home)]) == 0
    names = {path.name for path in (places.results / "figures").iterdir()}
    assert {"panels-mnist.png", "bound-mnist.png"} <= names
    assert not {"panels-cifar10.png", "straggler.png"} & names
    page = (places.results / "index.html").read_text()
    assert "data:image/png;base64," in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page
    text = (places.home / "docs" / "reproduction.md").read_text()
    assert "stale" not in text
    assert "| jsam | 100 | 590.5 | 590.5 | 98.00 ± 0.00 | 99.05 | -1.05 | 2 | 7 |" in text
    assert "(../results/paper/figures/panels-mnist.png)\n<!-- end -->" in text
    assert text.endswith("<!-- figure straggler -->\n*Not run yet.*\n<!-- end -->\n\nlast\n")
    assert main(["render", "--root", str(places.home)]) == 0
    assert (places.home / "docs" / "reproduction.md").read_text() == text


def test_table_as_json_csv_and_text(places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--root", str(places.home)]
    assert main(["table", "table-mnist", "--format", "json", *where]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 24
    first = rows[0]
    assert tuple(first) == COLUMNS
    assert (first["dataset"], first["mechanism"], first["similarity"], first["seeds"]) == ("mnist", "jsam", 100.0, 2)
    assert (first["accuracy_mean"], first["paper_accuracy"], first["paper_cost"]) == (98.0, 99.05, 590.5221)
    assert main(["table", "table-mnist", "--format", "csv", *where]) == 0
    assert len(list(csv.DictReader(io.StringIO(capsys.readouterr().out)))) == 24
    assert main(["table", "table-mnist", *where]) == 0
    assert "98.00 ± 0.00" in capsys.readouterr().out
    assert main(["table", "--all", "--format", "json", *where]) == 0
    everything = json.loads(capsys.readouterr().out)
    assert {row["noise"] for row in everything} == {"lemma1", "exact"}


def test_list_and_merge(places: Places, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--root", str(places.home)]
    assert main(["list", *where]) == 0
    assert "48 of 72" in capsys.readouterr().out
    other = copied_places(tmp_path / "other")
    store(other, "table-mnist", lambda c: 0.97)
    assert main(["merge", str(other.results), *where]) == 0
    assert "24 runs are new, 48 were known" in capsys.readouterr().err
    assert main(["choose", *where]) == 0
    assert "provisional" in capsys.readouterr().err


def test_table_asks_for_an_experiment_in_one_line(places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--root", str(places.home)]
    assert main(["table", *where]) == 2
    err = capsys.readouterr().err
    assert "give an ID or --all; there are: tuning-mnist" in err
    assert "structure" not in err  # it has no table
    assert err.count("\n") == 1
    assert main(["table", "table-mnist", "--all", *where]) == 2
    assert "not both" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["list", "run", "table", "render"])
def test_help_shows_an_example_and_says_what_an_id_is(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # so that no line is broken
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"python -m reproduction {command}" in out.split("Examples")[1]
    assert "ID is an experiment's name, or a pattern as in 'panels-*'" in out
    assert "(default: the one you are in, else the one that this program is part of)" in out


OUTPUTS = {
    **dict.fromkeys(("list", "choose", "table", "claims"), "count what"),
    "render": "where figures and page",
    "run": "where new results",
}


@pytest.mark.parametrize("command", ["list", "plan", "run", "merge", "choose", "table", "render", "claims"])
def test_output_is_offered_where_it_does_something_and_says_what(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        main([command, "--help"])
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    options = [line for line in lines if line.startswith("--output ")]
    assert len(options) == (command in OUTPUTS)
    assert all(line.startswith(f"--output DIR {OUTPUTS[command]}") for line in options)


def test_the_exact_epsilon_of_every_setting_is_in_one_file(places: Places) -> None:
    assert main(["render", "--root", str(places.home)]) == 0
    rows = list(csv.DictReader(io.StringIO((places.results / "rows.csv").read_text())))
    panels = [row for row in rows if row["experiment"] == "panels-mnist"]
    assert len(panels) == 144
    assert {(row["accuracy_mean"], row["seeds"], row["epsilon_exact_max"]) for row in panels} == {
        ("90.0", "3", "7.0"),
        ("", "0", ""),
    }
    settings = [tuple(row[name] for name in SETTING) for row in rows]
    assert len(set(settings)) == len(settings)
    assert 'href="rows.csv"' in (places.results / "index.html").read_text()


def test_the_largest_epsilon_stands_in_the_documents_for_every_cost_and_mechanism(places: Places) -> None:
    sold = {"jsam": 1234.5, "usbm": 0.25}
    store(
        places,
        "exact-mnist",
        lambda c: 0.9,
        changes=lambda c: {"epsilon_sold_max": sold.get(c.mechanism, 2.0) + (c.seed and 1)},
    )
    page = places.home / "docs" / "reproduction.md"
    page.parent.mkdir(exist_ok=True)
    page.write_text("<!-- sold -->\nstale\n<!-- end -->\n<!-- other-weights -->\nstale\n<!-- end -->\n")
    (spec,) = load_specs(places, ["exact-mnist"])
    runs = spec.runs(Chosen.load(places.chosen))
    other = [config.changed(noise_weight=7.0) for config in runs if config.seed == 0]
    store(places, "exact-cifar10", lambda c: 0.5, runs=other, changes=lambda c: {"epsilon_sold_max": 3.0})
    assert main(["render", "--root", str(places.home)]) == 0
    text = page.read_text()
    assert "stale" not in text
    assert "| MNIST | 30 | 1,236 | 3 | 1.2 | 3 | 3 | 3 |" in text
    assert "| MNIST | 100 | 30 | Q = 7: 50.0% (ε 3); Q = " in text


def test_the_last_column_of_the_summary_is_of_the_runs_with_a_step_for_each(places: Places) -> None:
    def ahead(points: float) -> Callable[[RunConfig], float]:
        return lambda c: 0.5 + (points / 100 if c.mechanism == "jsam" else 0.0) + 0.01 * c.seed

    document = places.home / "docs" / "reproduction.md"
    document.write_text("<!-- summary -->\n<!-- end -->\n")
    store(places, "tuning-steps-lemma1-mnist", lambda c: 0.9 if c.learning_rate == 0.05 else 0.4)
    choose(places)
    store(places, "panels-mnist", ahead(20))
    store(places, "own-steps-mnist", ahead(3))
    assert main(["render", "table-mnist", "--root", str(places.home)]) == 0
    rows = [line.strip("| ").split(" | ") for line in document.read_text().splitlines() if "| MNIST" in line]
    assert [row[1] for row in rows] == ["100", "70", "30", "0"]
    assert {tuple(row[-2:]) for row in rows} == {("+20.0 ± 0.0", "+3.0 ± 0.0")}


def test_a_level_that_was_not_reached_is_told_from_one_that_was_not_run(places: Places) -> None:
    def accuracy(config: RunConfig) -> float | None:
        if config.mechanism == "bbm-50" or config.cost == 1000:
            return None
        return 0.92 if config.mechanism == "jsam" and config.cost >= 30 else 0.5

    store(places, "exact-mnist", accuracy)
    document = places.home / "docs" / "reproduction.md"
    document.write_text("<!-- reached -->\n<!-- end -->\n")
    assert main(["render", "--root", str(places.home)]) == 0
    lines = [line for line in document.read_text().splitlines() if line.startswith("| MNIST")]
    assert lines[1] == "| MNIST | 100 | 90% | 30 | >300 | >300 | >300 | >300 | – |"
    assert [line.split(" | ")[1] for line in lines] == ["100"] * 3 + ["70"] * 3 + ["30"] * 3 + ["0"] * 3


def test_the_figure_of_q_takes_every_held_out_run_that_differs_in_q_alone(places: Places) -> None:
    document = places.home / "docs" / "reproduction.md"
    document.write_text("<!-- figure tuning-noise-weight -->\n<!-- end -->\n")
    weights = [1.0, 9.0, 30.0]
    (spec,) = load_specs(places, ["tuning-mnist"])
    last = spec.runs(Chosen.load(places.chosen))[-1]
    same = [last.changed(noise_weight=weight, cost=3.0, similarity=100.0) for weight in weights]
    other = [same[0].changed(momentum=0.5), same[0].changed(held_out=False)]
    store(places, "tuning-mnist", lambda c: 0.9, runs=[*same, *other])
    (panel,) = noise_weight_panels(Results(places))
    assert panel.title == "s = 100"
    assert [point.x for point in panel.curves["cost 3"]] == weights
    assert main(["render", "tuning-mnist", "--root", str(places.home)]) == 0
    assert "(../results/paper/figures/tuning-noise-weight.png)" in document.read_text()


def test_panels_say_whose_cost_is_drawn_and_the_bound_how_few_runs_there_are(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: dict[str, list[str]] = {"panels_picture": [], "scatter_picture": []}

    def kept(name: str) -> Callable[..., bytes]:
        def draw(content: Any, *, x_label: str, **_: object) -> bytes:
            drawn[name] += [x_label] if name == "panels_picture" else list(content)
            return b""

        return draw

    for name in drawn:
        monkeypatch.setattr(f"reproduction.pictures.{name}", kept(name))
    store(places, "panels-mnist", lambda c: 0.9 - c.cost / 100 if c.similarity == 100 or c.cost == 1 else None)
    pictures_of(Results(places))
    assert set(drawn["panels_picture"]) == {"cost of the drawn clients\n(mean over seeds)"}
    few = [f"s = {s}, only 18 runs" for s in (70, 30, 0)]
    assert drawn["scatter_picture"] == ["s = 100, ρ = -1.00", *few, "s = 100, ρ = +1.00", *few]


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--root", str(tmp_path)]) == 2
    assert "has no folder reproduction/specs" in capsys.readouterr().err
    assert main(["table", "nothing"]) == 2
    assert "there is no experiment 'nothing'" in capsys.readouterr().err


def test_claims_are_shown_as_a_table_and_as_json(places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--root", str(places.home)]
    assert main(["claims", "--format", "json", *where]) == 0
    rows = json.loads(capsys.readouterr().out)
    claims = all_claims(Results(places))
    assert [(row["statement"], row["verdict"]) for row in rows] == [(c.statement, c.verdict) for c in claims]
    assert main(["claims", *where]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [lines[0].split(), len(lines)] == [["source", "statement", "verdict", "numbers"], len(claims) + 2]


def test_rows_without_runs_show_the_cost_that_was_set(places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["table", "panels-mnist", "--root", str(places.home)]) == 0
    out = capsys.readouterr().out
    assert "(1)" in out
    assert main(["table", "panels-mnist", "--format", "json", "--root", str(places.home)]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert all(row["nominal_cost"] > 0 for row in rows if row["seeds"] == 0)


def test_a_planner_experiment_says_that_it_has_no_table(places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["table", "structure", "--root", str(places.home)]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "structure has no table" in err


def test_render_without_matplotlib_is_one_line(
    places: Places, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["render", "--root", str(places.home)]) == 2
    err = capsys.readouterr().err
    assert "render needs matplotlib" in err
    assert "pip install '.[plot]'" in err
    assert err.count("\n") == 1


def test_caps_are_drawn_beside_the_panels_once_one_was_tried(places: Places) -> None:
    store(places, "tuning-steps-variants-mnist", lambda c: c.learning_rate / 10)
    choose(places)
    store(places, "exact-mnist", lambda c: 0.5)
    assert "variants-mnist" not in {picture.name for picture in pictures_of(Results(places))}
    store(places, "variants-mnist", lambda c: 0.6 if c.max_selection_prob == 0.05 else None)
    assert "variants-mnist" in {picture.name for picture in pictures_of(Results(places))}
    labels = {cells[0] for cells in rows_of(Results(places), "variants-mnist")}
    assert labels == {"jsam, p ≤ 0.05", "fsbm-25"}
    curves = _variants(Results(places))
    assert list(curves) == ["jsam", "fsbm-50", "jsam with p ≤ 0.05", "fsbm-25"]
    places_of = [
        {(cell.config.cost, cell.config.similarity) for cell in curves[name]}
        for name in ("fsbm-50", "jsam with p ≤ 0.05")
    ]
    assert places_of[0] == places_of[1]


def test_what_was_not_tuned_is_a_gap_in_the_curves_and_no_line_across(places: Places) -> None:
    (spec,) = load_specs(places, ["tuning-mnist"])
    runs = spec.runs(Chosen.load(places.chosen))
    last = runs[-1]
    tuned = {1.0: (1.0, 3.0, 9.0), 3.0: (1.0, 9.0), 2.0: (9.0,)}  # Q by cost
    same = [last.changed(noise_weight=w, cost=c, similarity=100.0) for c in tuned for w in tuned[c]]
    store(places, "tuning-mnist", lambda c: 0.9, runs=same)
    (panel,) = noise_weight_panels(Results(places))
    drawn = {name: [point.mean for point in points] for name, points in panel.curves.items()}
    assert drawn == {"cost 1": [90.0, 90.0, 90.0], "cost 3": [90.0, None, 90.0]}  # one Q says nothing of Q
    steps = sorted({c.learning_rate for c in runs if c.momentum})
    store(places, "tuning-mnist", lambda c: None if c.learning_rate == steps[1] or c.c2 == 0.1 else 0.9)
    curves = [panel.curves for panel in _tuning(Results(places), "mnist")]
    assert any(point.mean is None for by_name in curves for points in by_name.values() for point in points)
    assert all(any(p.mean is not None for p in points) for by_name in curves for points in by_name.values())
    assert not any(name.startswith("c₂ = 0.1,") or name == "c₂ = 0.1" for by_name in curves for name in by_name)
