"""A user's own data set: ten lines, and one clear line for each mistake."""

from __future__ import annotations

import doctest
from typing import Any

import numpy as np
import pytest

from jsam.errors import InputError
from jsam.training.data import Dataset, dataset, dataset_from_arrays


def test_the_documented_example_runs_as_printed() -> None:
    result = doctest.testmod(dataset)
    assert result.attempted >= 5
    assert result.failed == 0


def _parts(**changes: Any) -> dict[str, Any]:
    parts: dict[str, Any] = {
        "name": "mine",
        "train_inputs": np.zeros((6, 2), dtype=np.float32),
        "train_targets": np.arange(6) % 3,
        "test_inputs": np.ones((3, 2), dtype=np.float32),
        "test_targets": np.arange(3),
        "num_classes": 3,
    }
    return parts | changes


def test_well_formed_parts_are_accepted_and_counted() -> None:
    mine = Dataset(**_parts())
    assert (mine.num_train, mine.num_test, mine.input_shape) == (6, 3, (2,))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_classes": 1}, "num_classes is 1, must be at least 2"),
        ({"train_targets": np.arange(6) % 4}, "train targets reach from 0 to 3, must lie in 0 to 2"),
        ({"train_targets": np.arange(6) - 1}, "train targets reach from -1"),
        ({"test_targets": np.arange(3.0)}, "test targets are float64"),
        ({"train_inputs": np.zeros((5, 2), np.float32)}, r"shape \(5, 2\), must be \(6, ...\)"),
        ({"train_inputs": np.zeros((6, 2))}, "inputs are float64, must be float32"),
        ({"test_inputs": np.full((3, 2), np.nan, np.float32)}, "test inputs hold NaN"),
        ({"train_inputs": np.full((6, 2), -np.inf, np.float32)}, "train inputs hold NaN, infinite"),
        ({"test_inputs": np.ones((3, 4), np.float32)}, "they must be alike"),
        ({"test_inputs": np.ones((0, 2), np.float32), "test_targets": np.arange(0)}, "test is empty"),
    ],
)
def test_a_malformed_part_is_refused_with_its_value_and_what_is_allowed(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Dataset(**_parts(**changes))


def test_a_split_uses_every_sample_once_and_depends_on_the_seed_only() -> None:
    inputs, targets = np.arange(100.0)[:, None], np.arange(100) % 4
    first, again, other = (dataset_from_arrays("n", inputs, targets, test_share=0.25, seed=s) for s in (3, 3, 4))
    assert first.num_test == 25
    both = np.concatenate([first.train_inputs, first.test_inputs]).ravel()
    assert sorted(both.tolist()) == list(range(100))
    assert np.array_equal(first.train_inputs[:, 0].astype(int) % 4, first.train_targets)
    assert np.array_equal(first.test_inputs, again.test_inputs)
    assert not np.array_equal(first.test_inputs, other.test_inputs)


def test_token_ids_stay_whole_numbers_and_own_test_arrays_are_kept() -> None:
    tokens = np.arange(12, dtype=np.int32).reshape(6, 2)
    mine = dataset_from_arrays("text", tokens, [0, 1] * 3, test_inputs=tokens[:2], test_targets=[1, 2])
    assert mine.train_inputs.dtype == np.int64
    assert mine.num_train == 6
    assert mine.num_classes == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"test_share": 1.0}, "test_share is 1.0"),
        ({"test_inputs": [[1.0]]}, "both test_inputs and test_targets"),
        ({"targets": [0.5, 1.0]}, "targets are float64, must be whole numbers"),
        ({"targets": [0, 1, 1]}, "2 inputs but 3 targets"),
        ({"inputs": ["a", "b"]}, "must be numbers"),
    ],
)
def test_own_arrays_of_the_wrong_kind_are_refused(arguments: dict[str, Any], said: str) -> None:
    call: dict[str, Any] = {"inputs": [[1.0], [2.0]], "targets": [0, 1]} | arguments
    with pytest.raises(InputError, match=said):
        dataset_from_arrays("mine", **call)
