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


def overflowing() -> np.ndarray:
    """Parameters at which the loss of bright records overflows, and that of the others does not."""
    model = build_model("digits", 0)
    layers = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    with torch.no_grad():
        for layer in layers:
            layer.weight.mul_(1e19)
    return flattened(model)


def test_a_record_that_overflows_counts_as_nothing_and_nobody_fails() -> None:
    """Without this a failed reply would tell, free of noise, whether some record passes a threshold."""
    inputs, targets = records(40)
    # Sums of such values overflow to both infinities, and their difference is no number.
    inputs[7] = np.sign(inputs[7]) * np.float32(3e38)
    plain = flattened(build_model("digits", 0))
    poisoned = clipped_mean("digits", plain, inputs, targets, CLIP_NORM)
    assert np.isfinite(poisoned).all()
    others = np.arange(40) != 7
    without = clipped_mean("digits", plain, inputs[others], targets[others], CLIP_NORM)
    # The 39 others weigh 1/40 each: one record moved the mean by no more than its share of the clip norm.
    assert np.linalg.norm(poisoned - without * 39 / 40) <= CLIP_NORM / 40 * (1 + 1e-5)
    assert np.linalg.norm(without) > 0


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


def test_parameters_that_overflow_give_an_answer() -> None:
    inputs, targets = records(12)
    assert np.isfinite(clipped_mean("digits", overflowing(), inputs, targets, CLIP_NORM)).all()
