"""The noise that leaves a client: Gaussian, of the scale asked for, and never the same twice."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats

from jsam.campaign.client.client_noise import fresh_noise
from jsam.errors import InputError

SIZE = 200_000


def variance_fits(draws: np.ndarray, std: float) -> bool:
    """Whether the sample variance is that of N(0, std²), at a false alarm in a billion."""
    statistic = float(np.sum((draws.astype(np.float64) / std) ** 2))
    low, high = scipy.stats.chi2(len(draws)).ppf([5e-10, 1 - 5e-10])
    return bool(low <= statistic <= high)


def test_the_variance_is_the_one_asked_for_and_not_two_thirds_or_three_halves_of_it() -> None:
    draws = fresh_noise(0.7, SIZE)
    assert variance_fits(draws, 0.7)
    assert not variance_fits(draws, 0.7 * math.sqrt(2 / 3))
    assert not variance_fits(draws, 0.7 * math.sqrt(3 / 2))


def test_the_shape_is_gaussian_with_mean_0_and_no_correlation_between_neighbours_or_halves() -> None:
    draws = fresh_noise(1.0, SIZE).astype(np.float64)
    assert scipy.stats.kstest(draws, "norm").pvalue > 1e-9
    limit = 6.2 / math.sqrt(SIZE / 2)
    assert abs(draws.mean()) < limit
    assert abs(np.mean(draws[1:] * draws[:-1])) < limit
    # Both come from the same radius.
    assert abs(np.mean(draws[: SIZE // 2] * draws[SIZE // 2 :])) < limit
    assert abs(np.mean((draws[: SIZE // 2] ** 2 - 1) * (draws[SIZE // 2 :] ** 2 - 1))) < 2 * limit


def test_no_seed_makes_it_repeat() -> None:
    np.random.seed(1)
    first = fresh_noise(1.0, 100)
    np.random.seed(1)
    assert not np.any(first == fresh_noise(1.0, 100))


@pytest.mark.parametrize("size", [0, 1, 2, 7])
def test_any_size(size: int) -> None:
    draws = fresh_noise(1.0, size)
    assert draws.shape == (size,)
    assert draws.dtype == np.float64
    assert np.all(np.isfinite(draws))


def test_no_noise_and_bad_noise() -> None:
    assert not np.any(fresh_noise(0.0, 10))
    for std in (-1.0, math.nan, math.inf):
        with pytest.raises(InputError, match="std"):
            fresh_noise(std, 10)
