"""Partitions with sizes: each client gets exactly its number of samples under every scheme, and laws are as said."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from jsam.errors import InputError
from jsam.training.data import dataset_from_arrays
from jsam.training.partition import apportioned, partition, partition_picture, sizes_by_law
from jsam.training.task import TaskSpec

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 100))
SIZES = (1, 400, 37, 12, 90, 250, 5)
SCHEMES: tuple[dict[str, Any], ...] = (
    {"scheme": "iid"},
    {"scheme": "similarity", "similarity": 30.0},
    {"scheme": "similarity", "similarity": 0.0, "blocks": True},
    {"scheme": "dirichlet", "alpha": 0.3},
)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_everybody_gets_its_number_of_samples_and_no_sample_twice(scheme: dict[str, Any]) -> None:
    split = partition(LABELS, sizes=SIZES, seed=3, **scheme)
    assert split.sizes == SIZES
    held = np.concatenate(split.indices)
    assert len(np.unique(held)) == len(held) == sum(SIZES)
    again = partition(LABELS, sizes=SIZES, num_clients=7, seed=3, **scheme)
    assert all(np.array_equal(a, b) for a, b in zip(split.indices, again.indices, strict=True))
    other = partition(LABELS, sizes=SIZES, seed=4, **scheme)
    assert not all(np.array_equal(a, b) for a, b in zip(split.indices, other.indices, strict=True))


def test_the_share_of_uniform_samples_is_as_asked_and_the_rest_is_of_few_labels() -> None:
    """A client of 60 has two pieces of 30 of the sorted rest, so at most four labels; a uniform client has them all."""
    sizes = (60,) * 5 + (30,) * 20
    labels = partition(LABELS, sizes=sizes, similarity=0, seed=1).label_counts(LABELS)
    assert (labels > 0).sum(axis=1).max() <= 4
    assert np.median((labels > 0).sum(axis=1)) <= 2
    blocks = partition(LABELS, sizes=sizes, similarity=0, blocks=True, seed=1).label_counts(LABELS)
    assert (blocks > 0).sum(axis=1).max() <= 2
    half = partition(LABELS, sizes=(500, 500), similarity=50, seed=1).label_counts(LABELS)
    # 250 uniform samples alone give every label about 25; without them some label would be missing.
    assert half.min() >= 10


@pytest.mark.parametrize("text", ["lognormal:1.0", "zipf:1.2", "lognormal:10"])
def test_a_law_uses_all_samples_and_leaves_nobody_without(text: str) -> None:
    sizes = sizes_by_law(text, 50, 3000, np.random.default_rng(0))
    assert sizes is not None
    assert sum(sizes) == 3000
    assert min(sizes) >= 1
    assert len(sizes) == 50


def test_laws_have_the_spread_that_they_say() -> None:
    rng = np.random.default_rng(1)
    sizes = sizes_by_law("zipf:1.0", 100, 1_000_000, rng)
    assert sizes is not None
    ranked = np.sort(sizes)[::-1]
    assert ranked[0] / ranked[9] == pytest.approx(10, rel=1e-3)
    assert sizes[0] != ranked[0], "chance decides who has most"
    drawn = sizes_by_law("lognormal:0.5", 2000, 10_000_000, rng)
    # The standard deviation of 2,000 draws is known to 1.6%; four of these.
    assert np.log(drawn).std() == pytest.approx(0.5, rel=0.07)  # type: ignore[arg-type]
    assert sizes_by_law("equal", 10, 100, rng) is None


def test_shares_become_the_nearest_whole_numbers() -> None:
    assert apportioned([0.5, 0.3, 0.2], 10) == (5, 3, 2)
    assert apportioned([1, 1, 1], 10) == (4, 3, 3)
    assert apportioned([1e-9, 1.0, 1.0], 5) == (1, 2, 2)
    assert sum(apportioned(np.random.default_rng(0).random(37), 1001)) == 1001


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"sizes": (5, 5), "num_clients": 3}, "sizes is a list of 2, must have one number for each of 3 clients"),
        ({"sizes": (5, 0)}, "sizes must be whole numbers of at least 1"),
        ({"sizes": (600, 401)}, "comes to 1001, must come to at most 1000 samples"),
        ({"sizes": (5, 5), "scheme": "writer", "writers": LABELS}, "scheme 'writer' has sizes of its own"),
        ({"sizes": (5, 5), "scheme": "dirichlet", "alpha": 1.0, "min_size": 2}, "min_size has sizes of its own"),
    ],
)
def test_sizes_that_cannot_be_are_refused(arguments: dict[str, Any], said: str) -> None:
    given = {"scheme": "iid", "seed": 0, **arguments}
    with pytest.raises(InputError, match=re.escape(said)):
        partition(LABELS, **given)


@pytest.mark.parametrize("text", ["lognormal", "lognormal:", "zipf:0", "zipf:-1", "zipf:inf", "pareto:1", "zipf:1,2"])
def test_a_law_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="it must be equal, lognormal:S or zipf:A"):
        sizes_by_law(text, 10, 100, np.random.default_rng(0))


def test_a_stored_task_deals_out_the_same_sizes_again() -> None:
    data = dataset_from_arrays("points", np.zeros((1000, 2)), LABELS, test_inputs=np.zeros((1, 2)), test_targets=[0])
    for sizes in ("zipf:1.1", (500, 20, 7)):
        spec = TaskSpec(num_clients=3, scheme="iid", sizes=sizes, seed=5)
        stored = {**spec.__dict__, "sizes": list(sizes) if isinstance(sizes, tuple) else sizes}
        again = TaskSpec.from_dict(stored)
        assert again == spec
        assert again.split(data).sizes == spec.split(data).sizes


def test_the_picture_shows_how_much_each_client_has() -> None:
    pytest.importorskip("matplotlib")
    split = partition(LABELS, sizes=SIZES, seed=3, scheme="iid")
    even = partition(LABELS, num_clients=7, seed=3, scheme="iid")
    labels = [partition_picture(part, LABELS, ".svg").count(b'id="axes_') for part in (split, even)]
    assert labels[0] == labels[1] + 1
