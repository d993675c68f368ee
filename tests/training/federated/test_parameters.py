"""A client's mean of clipped gradients must bound every record's part, whatever parameters the server sends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.conftest import require

torch = require("torch", extra="train")

from jsam.training.federated.parameters import clipped_mean, flattened, known_labels  # noqa: E402
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


@pytest.mark.parametrize("label", [10, 1000, -1, -100])
@pytest.mark.parametrize("pixel", [0.5, np.nan])
def test_a_label_that_the_model_has_no_class_for_counts_as_nothing_and_nobody_fails(label: int, pixel: float) -> None:
    """A server could name a model of few classes to see whose labels lie beyond; what others add is the same to the bit
    whether the record has such a label or a gradient that is not finite."""
    inputs, targets = records(40)
    parameters = flattened(build_model("digits", 0))
    spoiled = inputs.copy()
    spoiled[7] = np.nan
    without = clipped_mean("digits", parameters, spoiled, targets, CLIP_NORM)
    inputs[7, 0, 3, 3], targets[7] = pixel, label
    np.testing.assert_array_equal(known_labels("digits", inputs, targets), np.arange(40) != 7)
    np.testing.assert_array_equal(clipped_mean("digits", parameters, inputs, targets, CLIP_NORM), without)
    nothing = clipped_mean("digits", parameters, inputs, np.full(40, label), CLIP_NORM)
    assert not nothing.any()
    assert targets[7] == label


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


@pytest.mark.parametrize("place", [0, 7])
@pytest.mark.parametrize("scale", [1.0, 1e3, 1e6, 1e9])
def test_what_a_record_adds_does_not_hang_on_another_whose_gradient_is_not_finite(scale: float, place: int) -> None:
    """Were all records clipped in another way because of one, those that overflow in one way and not in the other would
    come or go together with it. The first three records are small: the engine's look at them must show nothing."""
    source = np.random.default_rng(0)
    inputs, targets = source.random((8, 1, 28, 28), dtype=np.float32), source.integers(0, 10, 8)
    inputs[3:] *= 1e6
    parameters = flattened(build_model("mnist", 0)) * np.float32(scale)
    whole = clipped_mean("mnist", parameters, inputs, targets, CLIP_NORM)
    # Beyond, the large records' gradients overflow in fp32, so that they count as nothing.
    assert np.linalg.norm(whole) > 0.01 or scale > 1e6
    inputs[place] = np.nan
    without = clipped_mean("mnist", parameters, inputs, targets, CLIP_NORM)
    assert np.linalg.norm(whole.astype(np.float64) - without) <= CLIP_NORM / 8 * (1 + 1e-5)


@pytest.mark.parametrize("inputs_of", [1e18, 1e30, 1e37])
def test_no_record_passes_the_clipping_norm_where_squares_underflow(inputs_of: float) -> None:
    """Gradients of 1e-23 at a layer's output times inputs of 1e18: in fp32 the square of the one is 0, so a norm taken
    as a product of norms would be 0 too, and the record go unclipped. With larger inputs yet, what the smaller factor
    loses in rounding is large. Only records of class 0 have such gradients, so the engine's look at its first records
    shows nothing."""
    model: Any = build_model("mnist", 0)
    with torch.no_grad():
        model[0].weight.mul_(1e8)
        model[3].weight.mul_(inputs_of / 1e8)
        model[7].weight.zero_()
        model[7].bias.fill_(1e-6)
        model[9].bias.zero_()
        model[9].bias[0] = 25.0
        model[9].weight.zero_()
        model[9].weight[1] = 2.4e-5 / inputs_of / float(torch.softmax(model[9].bias, 0)[1])
    inputs, targets = np.random.default_rng(0).random((6, 1, 28, 28), dtype=np.float32), np.array([1, 1, 1, 1, 0, 0])
    clip_norm = 1e-6
    parameters = flattened(model)
    whole = clipped_mean("mnist", parameters, inputs, targets, clip_norm)
    without = clipped_mean("mnist", parameters, inputs[:5], targets[:5], clip_norm)
    assert np.linalg.norm(whole * 6 - without * 5) <= clip_norm * (1 + 1e-5)
