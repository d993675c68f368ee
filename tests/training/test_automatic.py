"""How much clients differ: what the way of dealing out says agrees with the labels that came of it."""

from __future__ import annotations

from typing import Any

import pytest

from jsam.mechanism.heterogeneity import heterogeneity
from jsam.training.automatic import known_heterogeneity, measured_heterogeneity
from jsam.training.data import load_dataset
from jsam.training.task import TaskSpec

WAYS: list[dict[str, Any]] = [
    {"scheme": "iid"},
    {"scheme": "similarity", "similarity": 100.0},
    {"scheme": "similarity", "similarity": 50.0},
    {"scheme": "similarity", "similarity": 0.0},
    {"scheme": "similarity", "similarity": 0.0, "blocks": True},
    {"scheme": "dirichlet", "alpha": 0.5},
    {"scheme": "dirichlet", "alpha": 5.0},
]


@pytest.mark.parametrize("way", WAYS)
def test_what_is_known_is_near_what_the_labels_say(way: dict[str, Any]) -> None:
    data = load_dataset("digits")
    spec = TaskSpec(dataset="digits", num_clients=30, seed=1, **way)
    split = spec.split(data)
    known = heterogeneity(known_heterogeneity(spec, classes=data.num_classes, samples=split.sizes[0]))
    # Pieces of one class may be of the same class, and a block may hold the end of a class.
    assert known == pytest.approx(measured_heterogeneity(split, data), rel=0.35, abs=0.006)
