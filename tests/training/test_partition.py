"""Partitions: every sample once, equal sizes, the promised mix of labels, and the same for the same seed."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsam.errors import InputError
from jsam.training.partition import SCHEMES, Partition, partition, partition_picture
from jsam.training.partition.two_stage import TwoStageSplit, _near_halves, _smallest_with_largest, split_two_stage

PROPERTY = settings(max_examples=150, deadline=None, derandomize=True)
CLASS_SIZES = st.lists(st.integers(1, 120), min_size=1, max_size=12)


def _labels(class_sizes: list[int], seed: int = 0) -> Any:
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(len(class_sizes)), class_sizes))


def _check_each_at_most_once(split: Partition, num_samples: int) -> None:
    held = np.concatenate(split.indices)
    assert len(np.unique(held)) == len(held)
    assert held.min() >= 0
    assert held.max() < num_samples
    assert all(np.array_equal(one, np.sort(one)) for one in split.indices)


@st.composite
def feasible_cases(draw: st.DrawFn) -> tuple[Any, int, float, int]:
    """Labels, clients, similarity and seed with clients enough to hold all classes two by two."""
    labels = _labels(draw(CLASS_SIZES))
    num_clients = draw(st.integers(max(1, labels.max()), max(1, labels.max(), len(labels))))
    return labels, min(num_clients, len(labels)), draw(st.floats(0, 100)), draw(st.integers(0, 2**32))


@PROPERTY
@given(feasible_cases(), st.booleans())
def test_a_similarity_split_has_equal_sizes_and_uses_samples_once(
    case: tuple[Any, int, float, int], blocks: bool
) -> None:
    labels, num_clients, similarity, seed = case
    split = partition(labels, num_clients=num_clients, similarity=similarity, blocks=blocks, seed=seed)
    assert set(split.sizes) == {len(labels) // num_clients}
    assert split.num_clients == num_clients
    _check_each_at_most_once(split, len(labels))
    assert sum(split.sizes) == len(labels) - len(labels) % num_clients


@PROPERTY
@given(feasible_cases())
def test_the_second_stage_gives_at_most_two_pieces_and_each_has_one_class(case: tuple[Any, int, float, int]) -> None:
    labels, num_clients, similarity, seed = case
    split = split_two_stage(labels, num_clients, similarity, False, np.random.default_rng(seed))
    size = len(labels) // num_clients
    uniform = {len(one) for one in split.uniform}
    assert len(uniform) == 1
    assert abs(uniform.pop() - size * similarity / 100) <= 0.5
    for pieces in split.pieces:
        assert len(pieces) <= 2
        assert all(len(np.unique(labels[piece])) == 1 for piece in pieces)


@PROPERTY
@given(CLASS_SIZES, st.integers(1, 40))
def test_without_uniform_samples_no_client_sees_a_third_class(class_sizes: list[int], num_clients: int) -> None:
    labels = _labels(class_sizes)
    if num_clients > len(labels):
        return
    try:
        split = partition(labels, num_clients=num_clients, similarity=0, seed=1)
    except InputError:
        assert num_clients < len(class_sizes) - 1, "enough clients must always do"
        return
    assert (split.label_counts(labels) > 0).sum(axis=1).max() <= 2


@PROPERTY
@given(st.integers(1, 30), st.integers(1, 50), st.randoms(use_true_random=False))
def test_topping_up_the_smallest_from_the_largest_always_works_out(num_clients: int, size: int, random: Any) -> None:
    """The proof in its docstring, on random class sizes: up to one class more than clients."""
    num_classes = random.randint(1, min(num_clients + 1, num_clients * size))
    cuts = sorted(random.sample(range(1, num_clients * size), num_classes - 1))
    counts = np.diff([0, *cuts, num_clients * size])
    shares = _smallest_with_largest(counts, num_clients, size, np.random.default_rng(0))
    assert len(shares) == num_clients
    used = np.zeros_like(counts)
    for share in shares:
        assert len(share) <= 2
        assert sum(count for _, count in share) == size
        for label, count in share:
            assert count > 0
            used[label] += count
    assert np.array_equal(used, counts)


@pytest.mark.parametrize(("num_clients", "least"), [(10, 0.25), (20, 0.35), (100, 0.45), (1000, 0.48)])
def test_pieces_are_near_halves_of_two_different_classes(num_clients: int, least: float) -> None:
    """MNIST's class sizes: every client gets two classes, the more evenly the more clients there are."""
    labels = _labels([5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949])
    split = split_two_stage(labels, num_clients, 0, False, np.random.default_rng(2))
    assert all(len(pieces) == 2 for pieces in split.pieces)
    assert all(labels[a[0]] != labels[b[0]] for a, b in split.pieces)
    assert min(len(piece) for pieces in split.pieces for piece in pieces) >= least * (len(labels) // num_clients)
    distinct = {tuple(sorted((labels[a[0]], labels[b[0]]))) for a, b in split.pieces}
    assert len(distinct) >= min(num_clients, 40) * 0.75, "pairs of classes must be many, not a fixed few"


def test_a_pairing_that_falls_apart_is_recognised() -> None:
    """Classes 0, 1 and 2, 3 paired among themselves cannot trade samples, and their sums do not fit."""
    assert _near_halves(np.array([10, 11, 10, 9]), np.array([[0, 1], [0, 1], [2, 3], [2, 3]]), 10) == []


def _uniform_labels(split: TwoStageSplit, labels: Any) -> Any:
    return np.bincount(labels[np.concatenate(split.uniform)], minlength=10)


def test_the_first_stage_is_a_uniform_sample_of_all_labels() -> None:
    labels = _labels([600] * 5 + [1400] * 5)
    split = split_two_stage(labels, 50, 40, False, np.random.default_rng(11))
    counts, share = _uniform_labels(split, labels), np.bincount(labels) / 10_000
    assert counts.sum() == 4000
    deviation = np.sqrt(4000 * share * (1 - share) * 0.6)  # without replacement: times 1 - 4000/10000
    assert np.abs((counts - 4000 * share) / deviation).max() < 4


def test_blocks_are_contiguous_in_label_order_and_dealt_at_random() -> None:
    labels = _labels([100] * 4)
    split = split_two_stage(labels, 16, 0, True, np.random.default_rng(0))
    firsts = [labels[pieces[0]].tolist() for pieces in split.pieces]
    assert all(len(set(block)) == 1 for block in firsts)
    order = [block[0] for block in firsts]
    assert order != sorted(order)
    assert sorted(order) == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4


def test_full_similarity_is_iid() -> None:
    labels = _labels([50] * 10)
    same = (
        partition(labels, num_clients=3, similarity=100, seed=5),
        partition(labels, num_clients=3, scheme="iid", seed=5),
    )
    assert all(np.array_equal(a, b) for a, b in zip(same[0].indices, same[1].indices, strict=True))
    assert (same[0].label_counts(labels) > 5).all()


CASES: list[dict[str, Any]] = [
    {"scheme": "similarity", "similarity": 30, "num_clients": 20},
    {"scheme": "similarity", "similarity": 0, "blocks": True, "num_clients": 20},
    {"scheme": "dirichlet", "alpha": 0.5, "num_clients": 20},
    {"scheme": "dirichlet", "alpha": 0.5, "min_size": 5, "num_clients": 20},
    {"scheme": "writer", "writers": np.arange(1000) % 37, "num_clients": 20},
    {"scheme": "iid", "num_clients": 20},
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, [case["scheme"], *sorted(case)])))
def test_the_seed_alone_decides(case: dict[str, Any]) -> None:
    labels = _labels([100] * 10)
    np.random.seed(1)
    first = partition(labels, seed=7, **case)
    np.random.seed(2)
    again, other = partition(labels, seed=7, **case), partition(labels, seed=8, **case)
    assert all(np.array_equal(a, b) for a, b in zip(first.indices, again.indices, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first.indices, other.indices, strict=True))
    _check_each_at_most_once(first, len(labels))


@PROPERTY
@given(CLASS_SIZES, st.integers(1, 30), st.floats(1e-3, 1e3), st.integers(0, 1000))
def test_dirichlet_with_equal_sizes_uses_samples_once(
    class_sizes: list[int], num_clients: int, alpha: float, seed: int
) -> None:
    labels = _labels(class_sizes)
    num_clients = min(num_clients, len(labels))
    split = partition(labels, num_clients=num_clients, scheme="dirichlet", alpha=alpha, seed=seed)
    assert set(split.sizes) == {len(labels) // num_clients}
    _check_each_at_most_once(split, len(labels))


def test_a_small_alpha_concentrates_and_a_large_one_mixes() -> None:
    labels = _labels([1000] * 10)

    def largest_share(alpha: float) -> float:
        counts = partition(labels, num_clients=50, scheme="dirichlet", alpha=alpha, seed=0).label_counts(labels)
        return float((counts.max(axis=1) / counts.sum(axis=1)).mean())

    # E[max of Dirichlet(alpha) over 10 classes]: near 1 for tiny alpha, near 1/10 for huge alpha.
    assert largest_share(0.01) > 0.85 > 0.6 > largest_share(0.5) > 0.3 > 0.16 > largest_share(1000.0)


def test_dirichlet_with_a_minimum_uses_every_sample_and_nobody_falls_below() -> None:
    labels = _labels([300] * 10)
    split = partition(labels, num_clients=20, scheme="dirichlet", alpha=0.3, min_size=20, seed=0)
    assert min(split.sizes) >= 20
    assert len(set(split.sizes)) > 5
    assert np.array_equal(np.sort(np.concatenate(split.indices)), np.arange(3000))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"num_clients": 0, "similarity": 0}, "num_clients is 0, must be 1 to 1000"),
        ({"num_clients": 1001, "scheme": "iid"}, "num_clients is 1001, must be 1 to 1000, the number of samples"),
        ({"scheme": "iid"}, "num_clients is None"),
        ({"num_clients": 5, "similarity": 0}, "num_clients: 5 clients with two classes .* must be at least 9"),
        ({"num_clients": 20, "similarity": 101}, "similarity is 101, must be a percentage from 0 to 100"),
        ({"num_clients": 20, "similarity": float("nan")}, "similarity is nan"),
        ({"num_clients": 20}, "similarity is None"),
        (
            {"num_clients": 20, "scheme": "sorted"},
            "scheme is 'sorted', must be one of similarity, dirichlet, writer, iid",
        ),
        ({"num_clients": 20, "scheme": "iid", "alpha": 1.0}, "an option of scheme 'dirichlet' is given"),
        ({"num_clients": 20, "scheme": "dirichlet", "alpha": 0.0}, "alpha is 0.0, must be a number above 0"),
        ({"num_clients": 20, "scheme": "dirichlet", "alpha": 1.0, "min_size": 51}, "min_size is 51, must be 1 to 50"),
        ({"num_clients": 20, "scheme": "dirichlet", "alpha": 0.01, "min_size": 50}, "no draw of 200 .* raise alpha"),
        ({"scheme": "writer"}, "writers is missing"),
        ({"scheme": "writer", "writers": np.zeros(3)}, r"writers has shape \(3,\), must be \(1000,\)"),
        ({"num_clients": 3, "scheme": "writer", "writers": np.zeros(1000)}, "num_clients is 3, must be 1 to 1"),
        ({"num_clients": 20, "scheme": "iid", "seed": -1}, "seed is -1"),
        ({"num_clients": 1, "scheme": "iid", "targets": np.array([0.5])}, "targets are float64"),
        ({"num_clients": 1, "scheme": "iid", "targets": np.array([-1])}, "targets reach down to -1"),
    ],
)
def test_bad_input_is_one_line_with_the_value_and_what_is_allowed(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said) as got:
        partition(**{"targets": _labels([100] * 10), "seed": 0} | arguments)
    assert "\n" not in str(got.value)


@pytest.mark.parametrize(
    ("indices", "said"),
    [
        ((), "no clients"),
        (([0, 1], []), "client 1 holds no samples"),
        (([0, 1], [1, 2]), "more than one client"),
        (([0, 9],), "reach from 0 to 9, must be in 0 to 3"),
    ],
)
def test_a_partition_that_is_none_cannot_be_made(indices: tuple[list[int], ...], said: str) -> None:
    held = tuple(np.array(one, dtype=np.int64) for one in indices)
    with pytest.raises(InputError, match=said):
        Partition(indices=held, num_samples=4, description="by hand", seed=0)


def _needs_matplotlib() -> None:
    if importlib.util.find_spec("matplotlib") is None:
        if os.environ.get("JSAM_REQUIRE_ALL") == "1":
            pytest.fail("needs matplotlib: pip install matplotlib")
        pytest.skip("needs matplotlib: pip install matplotlib")


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_the_heat_map_is_drawn(ending: str) -> None:
    _needs_matplotlib()
    labels = _labels([100] * 10)
    split = partition(labels, num_clients=20, similarity=0, seed=0)
    begins = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[ending]
    assert partition_picture(split, labels, f".{ending}").startswith(begins)


def test_a_heat_map_that_does_not_fit_is_one_line() -> None:
    _needs_matplotlib()
    labels = _labels([100] * 10)
    split = partition(labels, num_clients=20, similarity=0, seed=0)
    with pytest.raises(InputError, match=r"^targets: 10 labels, must be 1000"):
        partition_picture(split, labels[:10], ".png")


def test_label_counts_count() -> None:
    labels = np.array([0, 0, 1, 2, 2, 2])
    held = (np.array([0, 2, 3]), np.array([1, 4]))
    split = Partition(indices=held, num_samples=6, description="by hand", seed=0)
    assert split.label_counts(labels, 4).tolist() == [[1, 1, 1, 0], [1, 0, 1, 0]]


def test_every_scheme_is_covered_above() -> None:
    assert {case["scheme"] for case in CASES} == set(SCHEMES)
