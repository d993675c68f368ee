"""The privacy curve against forty and more digits, against dp-accounting, and on the safe side everywhere."""

from __future__ import annotations

import dp_accounting  # type: ignore[import-untyped,unused-ignore]
import mpmath  # type: ignore[import-untyped,unused-ignore]
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from jsam.errors import InputError
from jsam.privacy import delta_of, epsilon_of, gdp_mu

DELTAS = [1e-300, 1e-100, 1e-30, 1e-12, 1e-9, 1e-5, 1e-3, 0.1, 0.5, 0.5000001, 0.9, 1 - 1e-9, 1 - 2**-53]
log_epsilons = st.floats(-12, 6).map(lambda x: 10.0**x)
deltas = st.one_of(st.floats(-300, -0.01).map(lambda x: 10.0**x), st.floats(-15, -0.5).map(lambda x: 1 - 10.0**x))


def true_delta(epsilon: float, mu: float, raised_by: float = 0.0, digits: int = 60) -> mpmath.mpf:
    """δ from the textbook formula, with so many digits that its cancellations do not matter."""
    with mpmath.workdps(digits):
        e, m = mpmath.mpf(epsilon), mpmath.mpf(mu) * (1 + mpmath.mpf(raised_by))
        root = mpmath.sqrt(2)
        return (mpmath.erfc((e / m - m / 2) / root) - mpmath.exp(e) * mpmath.erfc((e / m + m / 2) / root)) / 2


def is_safe_and_tight(epsilon: float, mu: float, delta: float, digits: int = 60) -> bool:
    """μ is at or below the true one, and by at most 1e-5."""
    return bool(
        true_delta(epsilon, mu, digits=digits) <= delta <= true_delta(epsilon, mu, raised_by=1e-5, digits=digits)
    )


@pytest.mark.parametrize("delta", DELTAS)
def test_mu_is_never_high_and_at_most_1e_5_low(delta: float) -> None:
    for epsilon in np.geomspace(1e-4, 1e3, 29).tolist():
        assert is_safe_and_tight(epsilon, gdp_mu(epsilon, delta), delta), epsilon


@pytest.mark.parametrize("delta", [1e-300, 1e-5, 0.5, 1 - 2**-53])
@pytest.mark.parametrize("epsilon", [5e-324, 1e-200, 1e-30, 1e-10, 1e5, 1e10, 1e30, 1e200])
def test_mu_is_safe_and_tight_far_beyond_useful_epsilons(epsilon: float, delta: float) -> None:
    assert is_safe_and_tight(epsilon, gdp_mu(epsilon, delta), delta, digits=700)


@settings(derandomize=True, max_examples=150, deadline=None)
@given(epsilon=log_epsilons, delta=deltas)
def test_mu_is_safe_and_tight_at_random(epsilon: float, delta: float) -> None:
    assert is_safe_and_tight(epsilon, gdp_mu(epsilon, delta), delta)


@pytest.mark.parametrize("factor", [1 + 3e-6, 1 - 2e-5])
def test_the_check_itself_notices_a_mu_that_is_off(factor: float) -> None:
    for epsilon in (1e-4, 1.0, 1e3):
        assert not is_safe_and_tight(epsilon, factor * gdp_mu(epsilon, 1e-5), 1e-5)


@pytest.mark.parametrize("delta", DELTAS)
def test_mu_at_epsilon_zero_is_total_variation(delta: float) -> None:
    """At ε = 0 the curve is the total variation distance, 2Φ(μ/2) − 1."""
    assert is_safe_and_tight(0.0, gdp_mu(0.0, delta), delta, digits=350)


@settings(derandomize=True, max_examples=150, deadline=None)
@given(epsilon=log_epsilons, delta=deltas)
def test_spent_epsilon_is_never_low_and_as_tight_as_its_margin(epsilon: float, delta: float) -> None:
    mu = gdp_mu(epsilon, delta) * 1.1
    spent = epsilon_of(mu, delta)
    assert true_delta(spent, mu) <= delta <= true_delta(spent, mu, raised_by=1e-8)


@settings(derandomize=True, max_examples=200, deadline=None)
@given(epsilon=log_epsilons, delta=deltas)
def test_noise_calibrated_for_epsilon_is_found_to_spend_at_most_epsilon(epsilon: float, delta: float) -> None:
    assert epsilon_of(gdp_mu(epsilon, delta), delta) <= epsilon
    # Half the margin is left for those who copy the noise's scale to float32.
    assert epsilon_of(gdp_mu(epsilon, delta) * (1 + 1e-6), delta) <= epsilon


@settings(derandomize=True, max_examples=150, deadline=None)
@given(epsilon=log_epsilons, mu=st.floats(-8, 3).map(lambda x: 10.0**x))
@example(epsilon=10.0, mu=10.0**1.25)  # 1 − δ is less than a half of the distance of two floats
def test_delta_is_never_low_and_as_tight_as_its_margin(epsilon: float, mu: float) -> None:
    found = delta_of(epsilon, mu)
    assert true_delta(epsilon, mu, digits=400) <= found
    high = true_delta(epsilon, mu, raised_by=1e-8, digits=400)
    assert found <= max(min(1.0, high * (1 + mpmath.mpf(1e-9))), mpmath.mpf(5e-324))


def test_delta_is_the_textbook_formula() -> None:
    """Where nothing is extreme the plain formula in floats is an independent check."""
    for epsilon, mu in [(0.1, 0.5), (1.0, 1.0), (2.0, 0.8), (5.0, 3.0)]:
        plain = norm.cdf(-epsilon / mu + mu / 2) - np.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2)
        assert delta_of(epsilon, mu) == pytest.approx(plain, rel=1e-7)


@pytest.mark.filterwarnings("ignore:divide by zero")  # theirs, on the way to the root
@pytest.mark.parametrize("delta", [1e-12, 1e-9, 1e-5, 1e-2])
def test_dp_accounting_agrees_and_never_asks_for_more_noise(delta: float) -> None:
    for epsilon in np.geomspace(1e-4, 1e3, 15).tolist():
        ours, theirs = 1 / gdp_mu(epsilon, delta), dp_accounting.get_sigma_gaussian(epsilon, delta, tol=1e-15)
        assert theirs <= ours <= theirs * (1 + 1e-5)
        spent, reference = epsilon_of(1 / theirs, delta), dp_accounting.get_epsilon_gaussian(theirs, delta, tol=1e-15)
        assert reference * (1 - 1e-9) <= spent <= reference * (1 + 1e-6)


def test_mu_grows_with_epsilon_and_with_delta_and_spending_with_mu() -> None:
    epsilons = np.geomspace(1e-8, 1e8, 2000)
    all_deltas = np.array(DELTAS)
    assert np.all(np.diff(gdp_mu(epsilons, 1e-5)) > 0)
    assert np.all(np.diff(gdp_mu(np.full(all_deltas.size, 0.3), all_deltas)) > 0)
    assert np.all(np.diff(epsilon_of(np.geomspace(1e-3, 1e5, 2000), 1e-5)) > 0)
    assert np.all(np.diff(epsilon_of(np.full(all_deltas.size, 50.0), all_deltas)) < 0)


def test_spending_at_the_ends() -> None:
    assert epsilon_of(0.0, 1e-5) == 0.0
    assert epsilon_of(float("inf"), 1e-5) == float("inf")
    assert epsilon_of(1e-7, 1e-5) == 0.0  # already (0, δ)-DP
    assert delta_of(1.0, 0.0) == 0.0
    assert delta_of(100.0, 0.1) == 5e-324  # positive, if only just
    assert delta_of(0.0, 1e3) == 1.0


def test_arrays_give_what_scalars_give() -> None:
    rng = np.random.default_rng(5)
    epsilons = 10 ** rng.uniform(-4, 3, 100_000)
    mus = gdp_mu(epsilons, 1e-5)
    assert mus.shape == epsilons.shape
    for k in range(0, 100_000, 9973):
        assert mus[k] == pytest.approx(gdp_mu(float(epsilons[k]), 1e-5), rel=1e-11)
    assert isinstance(gdp_mu(1.0, 1e-5), float)
    assert gdp_mu(epsilons[:6].reshape(2, 3), 1e-5).shape == (2, 3)
    assert epsilon_of(np.empty(0), 1e-5).shape == (0,)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, float("nan")])
def test_a_delta_outside_0_1_is_refused(delta: float) -> None:
    with pytest.raises(InputError, match=r"delta is .* strictly between 0 and 1"):
        gdp_mu(1.0, delta)


@pytest.mark.parametrize("epsilon", [-1.0, float("inf"), float("nan")])
def test_a_bad_epsilon_is_refused_with_its_place(epsilon: float) -> None:
    with pytest.raises(InputError, match=r"epsilon\[1\] is .* finite and at least 0"):
        gdp_mu(np.array([1.0, epsilon]), 1e-5)
