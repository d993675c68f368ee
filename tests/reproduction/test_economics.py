"""The planner's experiments: what is known beforehand of their results."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from jsam.errors import InputError
from reproduction.choosing import fitting_noise_weight
from reproduction.economics import (
    cost_against_eta,
    cost_columns,
    read_planner,
    selected_clients,
    structure,
    who_costs_most,
)
from reproduction.results import Results
from reproduction.running import run_specs
from reproduction.spec import load_specs
from reproduction.tabulate import progress_of
from tests.reproduction.made_up import choose_noise_weight, copied_places, store_planner


def test_usbm_grows_like_a_root_and_jsam_first_convexly() -> None:
    found = cost_against_eta(
        {
            "mechanisms": ["jsam", "usbm"],
            "num_clients": 30,
            "draws": 20,
            "eta_max": 40.0,
            "points": 20,
            "noise_weight": 9,
        }
    )
    usbm = np.array(found["curves"]["usbm"]["mean"])
    assert np.allclose(usbm / np.sqrt(found["etas"]), usbm[0] / math.sqrt(found["etas"][0]))
    assert found["curves"]["usbm"]["convex_up_to"] is None
    assert found["curves"]["jsam"]["convex_up_to"] > found["etas"][0]


def test_one_noise_weight_serves_both_of_the_papers_points() -> None:
    found = selected_clients(
        {"num_clients": 100, "draws": 40, "points": 120, "noise_weight": 9.0, "other_noise_weights": [1.0]}
    )
    low, high = found["noise_weight_for_both"]
    assert low < 9 < high
    for point in found["at_chosen"]:
        assert point["band"][0] <= point["paper"] <= point["band"][2]
    mean = found["curves"]["9"]["mean"]
    assert all(a <= b for a, b in itertools.pairwise(mean))


def test_cost_ratios_at_large_cost() -> None:
    found = cost_columns({"num_clients": 100, "draws": 200, "loss_weight": 12505.9, "noise_weight": 9.0})["ratios"]
    assert found["jsam-ci/jsam"]["mean"] == pytest.approx(1 / math.sqrt(2), rel=1e-9)
    assert all(ratio["inside"] for ratio in found.values())


def test_structure_and_who_costs_most() -> None:
    rows = structure({"num_clients": 10, "seed": 1, "etas": [0.5, 100.0], "noise_weight": 9.0})["rows"]
    assert rows[0]["selection_probs"] == [1.0] + [0.0] * 9
    assert rows[1]["selection_probs"] == pytest.approx([0.1] * 10)
    found = who_costs_most({"num_clients": 100, "draws": 20, "etas": [1.0, 100.0], "noise_weight": 9.0})["by_eta"]
    assert found[0]["least_sensitive_costs_most"] > found[1]["least_sensitive_costs_most"]


def test_a_result_made_with_another_q_counts_as_missing_and_is_made_again(tmp_path: Path) -> None:
    places = copied_places(tmp_path)
    choose_noise_weight(places, 9.0)
    (spec,) = load_specs(places, ["structure"])
    said: list[str] = []

    def run() -> float:
        """The Q of what is stored once all that is missing was made."""
        run_specs([spec], places, tell=said.append)
        stored = Results(places).planner("structure")
        assert stored is not None
        assert str(progress_of([spec], places)["structure"]) == "1 of 1"
        return float(stored["settings_used"]["noise_weight"])

    assert (run(), run()) == (9.0, 9.0)
    assert said == ["structure: computing"]
    choose_noise_weight(places, 16.00001)  # more digits than results are stored with
    assert Results(places).planner("structure") is None
    assert str(progress_of([spec], places)["structure"]) == "0 of 1"
    assert (run(), run()) == (16.00001, 16.00001)
    assert said == ["structure: computing"] * 2


def test_the_rule_for_q_reads_a_result_of_whatever_q(tmp_path: Path) -> None:
    """The Q that serves both points does not depend on the one that is chosen, and is what chooses it."""
    places = copied_places(tmp_path)
    store_planner(places, "selected-clients", {"noise_weight_for_both": [4.0, 16.0]})
    choose_noise_weight(places, 30.0)
    assert Results(places).planner("selected-clients") is None
    assert fitting_noise_weight(places) == 8.0


@pytest.mark.parametrize("content", ["{", "[]", "\udcff"])
def test_a_stored_result_that_cannot_be_read_is_named(content: str, tmp_path: Path) -> None:
    places = copied_places(tmp_path)
    store_planner(places, "structure", {})
    (places.planner / "structure.json").write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(InputError, match=r"structure\.json cannot be read: .*; remove it to have it made again"):
        read_planner("structure", places)
