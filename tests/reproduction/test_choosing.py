"""The rule that fixes what the paper leaves open, on made-up tuning runs."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reproduction.choosing import choose
from reproduction.config import RunConfig
from reproduction.paths import Places
from reproduction.spec import load_specs
from reproduction.tuned_settings import Chosen
from tests.reproduction.made_up import copied_places, store


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return copied_places(tmp_path)


def chosen(places: Places) -> dict[str, Any]:
    choose(places)
    return tomllib.loads(places.chosen.read_text())


def learns(most_c2: float, best_rate: float) -> Callable[[RunConfig], float]:
    """Reaches the tables up to this c₂, at this learning rate only; elsewhere five points less."""

    def accuracy(config: RunConfig) -> float:
        good = (config.c2 or 0) <= most_c2 and config.learning_rate == best_rate
        level = 0.99 if config.dataset == "mnist" else 0.77
        return level - (0.0 if good else 0.05) - (0.1 if config.cost == 1 else 0.0)

    return accuracy


def test_the_largest_c2_that_serves_all_data_sets_is_taken(places: Places) -> None:
    store(places, "tuning-mnist", learns(0.1, 0.2))
    assert chosen(places)["lemma1"]["c2"] == 0.1
    store(places, "tuning-cifar10", learns(0.03, 0.05))
    found = chosen(places)
    assert found["lemma1"]["c2"] == 0.03
    assert found["lemma1"]["mnist"]["learning_rate"] == 0.2
    assert found["lemma1"]["cifar10"]["learning_rate"] == 0.05


def test_the_table_comes_before_the_low_cost(places: Places) -> None:
    """A step that is better at cost 1 but misses the table loses."""

    def accuracy(config: RunConfig) -> float:
        if config.learning_rate == 0.4:
            return 0.95
        return 0.99 if config.cost > 1 else 0.6 + config.learning_rate

    store(places, "tuning-mnist", accuracy)
    assert chosen(places)["lemma1"]["mnist"]["learning_rate"] == 0.2


def test_a_step_whose_cells_are_not_all_run_is_not_taken(places: Places) -> None:
    def accuracy(config: RunConfig) -> float | None:
        if config.learning_rate == 0.4:
            return 0.999 if config.cost > 1 else None
        return 0.98 if config.learning_rate == 0.1 else 0.9

    store(places, "tuning-mnist", accuracy)
    assert chosen(places)["lemma1"]["mnist"]["learning_rate"] == 0.1


def test_exact_accounting_takes_the_best_mean(places: Places) -> None:
    store(places, "tuning-exact-mnist", lambda c: 0.9 if (c.clip_norm, c.learning_rate) == (0.3, 3.0) else 0.5)
    found = chosen(places)
    assert found["exact"]["mnist"]["clip_norm"] == 0.3
    assert found["exact"]["mnist"]["learning_rate"] == 3.0


def test_the_choice_is_provisional_while_any_grid_is_not_run_in_full(places: Places) -> None:
    grids = ("tuning-mnist", "tuning-cifar10", "tuning-exact-mnist", "tuning-exact-cifar10")
    for name in grids:
        store(places, name, learns(0.1, 0.2))
    for _ in range(2):  # what is chosen first moves the grid of Q
        choose(places)
        store(places, "tuning-mnist", learns(0.1, 0.2))
        for name in (spec.id for spec in load_specs(places, ["tuning-s*"])):
            store(places, name, learns(0.1, 0.2))
    assert chosen(places)["status"] == "by the rule"
    store(places, "tuning-cifar10", lambda c: None if c.c2 == 0.03 else learns(0.1, 0.2)(c))
    store(places, "tuning-exact-cifar10", lambda c: None)
    status = chosen(places)["status"]
    assert re.fullmatch(r"provisional: tuning-cifar10 (\d+) of (\d+) runs, tuning-exact-cifar10 (\d+) of (\d+)", status)
    assert Chosen.load(places.chosen).value("c2", noise="lemma1", dataset="mnist") > 0


def test_q_is_the_middle_of_those_that_fit_both_points(places: Places) -> None:
    before = chosen(places)["noise_weight"]
    places.planner.mkdir()
    stored = {"noise_weight_for_both": [4.0, 16.0]}
    (places.planner / "selected-clients.json").write_text(json.dumps(stored))
    assert chosen(places)["noise_weight"] == 8.0
    (places.planner / "selected-clients.json").write_text(json.dumps({"noise_weight_for_both": None}))
    assert chosen(places)["noise_weight"] == 8.0
    assert before == 9.0


def test_cells_that_few_were_run_in_are_not_asked_of_all(places: Places) -> None:
    """On CIFAR-10 s = 0 was looked at near the choice only; elsewhere s = 100 decides."""
    store(places, "tuning-cifar10", lambda c: learns(0.1, 0.2)(c) if c.similarity == 100 or c.c2 == 0.005 else None)
    found = chosen(places)["lemma1"]
    assert (found["c2"], found["cifar10"]["learning_rate"]) == (0.1, 0.2)


def test_exact_accounting_judges_clipping_norm_and_q_at_each_cells_best_step(places: Places) -> None:
    """With C = 1 one step is good everywhere; with C = 0.3 no step is, but the best of each cell is better."""

    def accuracy(c: RunConfig) -> float:
        if c.noise_weight != 50:
            return 0.1
        if c.clip_norm == 1:
            return 0.7 if c.learning_rate == 1 else 0.2
        good = 1.0 if c.cost == 30 else 3.0
        return 0.9 if (c.clip_norm, c.learning_rate) == (0.3, good) else 0.3

    store(places, "tuning-exact-mnist", accuracy)
    found = chosen(places)["exact"]["mnist"]
    assert (found["clip_norm"], found["noise_weight"]) == (0.3, 50.0)
    assert found["learning_rate"] in (1.0, 3.0)
    assert "learning_rate_at" not in found


def test_every_mechanism_has_its_own_step_at_every_cost_where_all_have_tried_all(places: Places) -> None:
    """Else one mechanism would be tuned better than another."""
    store(places, "tuning-exact-mnist", lambda c: 0.9 if (c.clip_norm, c.learning_rate) == (0.3, 3.0) else 0.5)
    choose(places)
    (steps,) = load_specs(places, ["tuning-steps-mnist"])
    runs = steps.runs(Chosen.load(places.chosen))
    assert {c.clip_norm for c in runs} == {0.3}

    def accuracy(c: RunConfig) -> float:
        best = {"jsam-ci": 1.0, "usbm": 0.3}.get(c.mechanism, 3.0) * (10 / 3 if c.cost == 300 else 1)
        return 0.9 if c.learning_rate == pytest.approx(best) else 0.4

    untried = next(c for c in runs if (c.mechanism, c.cost) == ("fsbm-50", 3.0))
    store(places, "tuning-steps-mnist", accuracy, runs=[c for c in runs if c is not untried])
    table = chosen(places)["exact"]["mnist"]["learning_rate_at"]
    assert (table["jsam-ci"]["30"], table["usbm"]["30"]) == (1.0, 0.3)
    assert table["usbm"]["300"] == 1.0
    assert all("3" not in steps for steps in table.values())
    (panels,) = load_specs(places, ["exact-mnist"])
    rates = {(c.mechanism, c.cost): c.learning_rate for c in panels.runs(Chosen.load(places.chosen))}
    assert rates["usbm", 30.0] == 0.3
    assert rates["fsbm-50", 3.0] == 3.0


def test_a_wider_grid_of_steps_counts_where_all_of_it_is_run(places: Places) -> None:
    store(places, "tuning-exact-mnist", lambda c: 0.9 if c.noise_weight == 50 else 0.5)
    choose(places)
    store(places, "tuning-steps-mnist", lambda c: 0.9 if c.learning_rate == 1 else 0.4)
    assert set(chosen(places)["exact"]["mnist"]["learning_rate_at"]["usbm"].values()) == {1.0}

    def wider(config: RunConfig) -> float | None:
        if config.cost == 30 and config.mechanism == "bbm-50" and config.learning_rate == 10:
            return None
        return 0.95 if config.learning_rate in (0.03, 10 if config.cost < 1000 else 30) else 0.4

    store(places, "tuning-steps-wide-mnist", wider)
    steps = chosen(places)["exact"]["mnist"]["learning_rate_at"]["usbm"]
    assert steps == {"3": 0.03, "10": 0.03, "30": 1.0, "100": 10.0, "300": 1.0, "1000": 30.0}
    store(places, "tuning-exact-mnist", lambda c: 0.9 if c.noise_weight == 9 else 0.5)
    assert "learning_rate_at" not in chosen(places)["exact"]["mnist"]


def test_the_choice_follows_from_the_runs_and_not_from_an_earlier_choice(places: Places) -> None:
    """Else nobody could find it again."""
    for name in ("tuning-mnist", "tuning-cifar10", "tuning-exact-mnist", "tuning-exact-cifar10"):
        store(places, name, learns(0.03, 0.2))
    first = chosen(places)
    text = places.chosen.read_text()
    assert "learning_rate_at" not in first["exact"]["mnist"]
    changed = text.replace("[exact.mnist]", "[exact.mnist.learning_rate_at.usbm]\n30 = 7.0\n\n[exact.mnist]")
    assert changed != text
    places.chosen.write_text(changed)
    assert chosen(places) == first


def test_runs_with_a_step_of_their_own_are_listed_once_it_is_chosen(places: Places) -> None:
    """Else the common step would be shown as their own."""
    (own,) = load_specs(places, ["own-steps-mnist"])
    choose(places)
    assert own.runs(Chosen.load(places.chosen)) == []
    best = {"jsam": 0.05, "usbm": 0.005}
    store(places, "tuning-steps-lemma1-mnist", lambda c: 0.9 if c.learning_rate == best.get(c.mechanism, 0.02) else 0.4)
    found = chosen(places)
    assert "learning_rate_at" not in found["exact"]["mnist"]
    rates = {c.mechanism: c.learning_rate for c in own.runs(Chosen.load(places.chosen))}
    assert rates == {"jsam": 0.05, "usbm": 0.005, "fsbm-50": 0.02, "fsbm-25": 0.02}
    (panels,) = load_specs(places, ["panels-mnist"])
    assert {c.learning_rate for c in panels.runs(Chosen.load(places.chosen))} == {
        found["lemma1"]["mnist"]["learning_rate"]
    }


def test_a_step_is_the_best_on_average_over_the_similarities_tried(places: Places) -> None:
    """The best at s = 100 may be bad at s = 0."""

    def accuracy(c: RunConfig) -> float:
        return {0.1: 0.9 if c.similarity else 0.2, 0.05: 0.7}.get(c.learning_rate, 0.1)

    store(places, "tuning-steps-lemma1-mnist", accuracy)
    assert set(chosen(places)["lemma1"]["mnist"]["learning_rate_at"]["jsam"].values()) == {0.05}


def test_a_cap_has_steps_of_its_own_and_no_say_in_anything_else(places: Places) -> None:
    """C and Q are JSAM's without a cap; the capped wait for nobody and nobody waits for them."""
    store(places, "tuning-exact-mnist", lambda c: 0.9 if (c.clip_norm, c.learning_rate) == (0.3, 3.0) else 0.5)
    before = chosen(places)["exact"]["mnist"]
    store(places, "tuning-steps-mnist", lambda c: 0.9 if c.learning_rate == 1 else 0.4)
    uncapped = chosen(places)["exact"]["mnist"]["learning_rate_at"]
    assert uncapped["jsam"]["10"] == 1.0
    capped: dict[float | None, float] = {0.05: 1.0, None: 3.0}
    store(places, "tuning-steps-variants-mnist", lambda c: 0.99 if c.learning_rate == capped[cap_of(c)] else 0.0)
    after = chosen(places)["exact"]["mnist"]
    assert {name: after[name] for name in before} == before
    assert {name: after["learning_rate_at"][name] for name in uncapped} == uncapped
    (panels,) = load_specs(places, ["variants-mnist"])
    rates = {(cap_of(c), c.cost): c.learning_rate for c in panels.runs(Chosen.load(places.chosen))}
    assert {cap: rates[cap, 10.0] for cap in capped} == capped


def cap_of(config: RunConfig) -> float | None:
    return config.max_selection_prob
