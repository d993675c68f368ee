"""A client's mean of clipped gradients must bound every record's part, whatever parameters the server sends."""

from __future__ import annotations

import numpy as np
import pytest

from tests.conftest import require

torch = require("torch", extra="train")

from jsam.flower.parameters import clipped_mean, flattened  # noqa: E402
from jsam.training.models import build_model  # noqa: E402

CLIP_NORM = 1.5


def records(count: int) -> tuple[np.ndarray, np.ndarray]:
    source = np.random.default_rng(0)
    return source.normal(size=(count, 1, 8, 8)).astype(np.float32), source.integers(0, 10, count)


def test_a_record_without_a_finite_gradient_counts_as_nothing_and_nobody_fails() -> None:
    """Without this a failed reply would tell, free of noise, something about some record."""
    inputs, targets = records(40)
    inputs[7, 0, 3, 3] = np.nan
    parameters = flattened(build_model("digits", 0))
    found = clipped_mean("digits", parameters, inputs, targets, CLIP_NORM)
    others = np.arange(40) != 7
    without = clipped_mean("digits", parameters, inputs[others], targets[others], CLIP_NORM)
    assert np.linalg.norm(without) > 0.01
    np.testing.assert_allclose(found, without * 39 / 40, atol=1e-6)


@pytest.mark.parametrize("scale", [1.0, 1e19, 1e37])
def test_one_record_moves_the_mean_by_no_more_than_the_sensitivity(scale: float) -> None:
    inputs, targets = records(24)
    parameters = flattened(build_model("digits", 0)) * np.float32(scale)
    whole = clipped_mean("digits", parameters, inputs, targets, CLIP_NORM)
    assert np.isfinite(whole).all()
    for k in range(0, 24, 5):
        rest = np.arange(24) != k
        part = clipped_mean("digits", parameters, inputs[rest], targets[rest], CLIP_NORM)
        assert np.linalg.norm(whole - part * 23 / 24) <= CLIP_NORM / 24 * (1 + 1e-5)
