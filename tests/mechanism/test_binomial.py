"""Binomial bounds against scipy's distribution."""

from __future__ import annotations

import pytest
import scipy.stats

from jsam.mechanism.budget.binomial import at_most, least_draws, lower_bound, most_failures


@pytest.mark.parametrize(("failures", "draws", "chance"), [(0, 1, 0.5), (3, 40, 0.05), (1900, 4096, 0.5), (5, 5, 0.1)])
def test_the_distribution_is_the_binomial(failures: int, draws: int, chance: float) -> None:
    assert at_most(failures, draws, chance) == pytest.approx(scipy.stats.binom.cdf(failures, draws, chance), rel=1e-9)


@pytest.mark.parametrize("probability", [0.05, 0.5, 0.95, 0.999])
@pytest.mark.parametrize("more", [0, 1, 500])
def test_as_many_failures_as_the_promise_bears_and_no_more(probability: float, more: int) -> None:
    draws = least_draws(probability, 0.999) + more
    failures = most_failures(draws, probability, 0.999)
    assert failures is not None
    assert scipy.stats.binom.cdf(failures, draws, 1 - probability) <= 0.001 * (1 + 1e-9)
    assert scipy.stats.binom.cdf(failures + 1, draws, 1 - probability) > 0.001
    assert lower_bound(draws - failures, draws, 0.999) >= probability - 1e-9
    assert lower_bound(draws - failures - 1, draws, 0.999) < probability


def test_fewer_draws_than_the_least_show_nothing() -> None:
    assert most_failures(least_draws(0.95, 0.999) - 1, 0.95, 0.999) is None
    assert lower_bound(0, 10, 0.999) == 0
