"""The planner's experiments: what is known beforehand of their results."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from jsam.experiments.economics import cost_against_eta, cost_columns, selected_clients, structure, who_costs_most


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
