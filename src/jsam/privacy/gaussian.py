"""The Gaussian mechanism's privacy curve, exactly and in logs, rounded to the safe side (docs/theory.md).

A Gaussian release of sensitivity Δ and standard deviation s has μ = Δ/s and is (ε, δ)-DP exactly when

    δ ≥ Φ(−a) − e^ε Φ(−b),   a = ε/μ − μ/2,   b = ε/μ + μ/2      (analytic Gaussian mechanism)

Because b² − a² = 2ε, e^ε φ(b) = φ(a): with Mills' ratio m(x) = Φ(−x)/φ(x) the right side is φ(a)(m(a) − m(b)), in which
nothing overflows, and whose one cancellation (μ small) is an integral of −m' over a short interval.
Every public function moves μ by a margin far wider than its own rounding error, so its answer errs on one side only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import erfcx, erfinv, log_ndtr, ndtri_exp

from jsam.errors import InputError, JsamError

FloatArray = NDArray[np.float64]
# One number or one for each client; what comes back is of the same kind.
Numbers = TypeVar("Numbers", float, FloatArray)

# μ is calibrated this much (relative) below its true value: more than clipped norms may exceed C (1e-6) and a float32
# copy of the noise's standard deviation may lose (6e-8), and well inside the promised 1e-5.
CALIBRATION_MARGIN = 2e-6
# Spending is read off at a μ this much above the recorded one: so much less than the margin above that noise calibrated
# for a contract always reads as within that contract.
ACCOUNTING_MARGIN = 1e-9

_LOG_SQRT_2PI = 0.5 * np.log(2 * np.pi)
_SHORT = 0.5
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)
_LOWEST_A = -9.0  # Φ(9) is 1 to the last bit; further down m(a) would overflow
_TOLERANCE = 1e-12
_MAX_STEPS = 200
_NOT_CONVERGED = "the noise calibration did not converge: nothing is returned rather than a noise level that may be low"


def gdp_mu(epsilon: Numbers, delta: ArrayLike) -> Numbers:
    """The largest μ whose Gaussian mechanism is (ε, δ)-DP, rounded down by `CALIBRATION_MARGIN`: noise is never low."""
    eps, target = np.broadcast_arrays(checked("epsilon", epsilon, low=0.0), checked_delta(delta))
    shape, eps, target = eps.shape, eps.ravel(), target.ravel()
    # The closed form at ε = 0, where a = −μ/2.
    mu = 2 * np.sqrt(2) * erfinv(target) * (1 - CALIBRATION_MARGIN)
    some = eps > 0
    if np.any(some):
        mu[some] = _mu_of_positive(eps[some], target[some])
    return as_given(epsilon, mu.reshape(shape))


def _mu_of_positive(eps: FloatArray, target: FloatArray) -> FloatArray:
    """Newton in t = −log(μ/√(2ε)): then a = √(2ε) sinh t and b = √(2ε) cosh t, free of cancellation for every ε."""
    scale = np.sqrt(2) * np.sqrt(eps)

    def mismatch(t: FloatArray) -> tuple[FloatArray, FloatArray]:
        mu = scale * np.exp(-t)
        excess, rate, _ = _excess(scale * np.sinh(t), scale * np.cosh(t), mu, target)
        with np.errstate(invalid="ignore"):
            return excess, -mu * rate

    lowest, highest = _range_of_a(target)
    t = _decreasing_root(mismatch, np.arcsinh(lowest / scale), np.arcsinh(highest / scale))
    t -= np.log1p(-CALIBRATION_MARGIN)
    if not np.all(mismatch(t)[0] <= 0):
        raise JsamError(_NOT_CONVERGED)
    return np.asarray(scale * np.exp(-t), dtype=np.float64)


def epsilon_of(mu: Numbers, delta: ArrayLike) -> Numbers:
    """The ε spent at δ by a Gaussian mechanism of this μ, rounded up by `ACCOUNTING_MARGIN`: never under-reported."""
    raised = checked("mu", mu, low=0.0, finite=False) * (1 + ACCOUNTING_MARGIN)
    raised, target = np.broadcast_arrays(raised, checked_delta(delta))
    shape, raised, target = raised.shape, raised.ravel(), target.ravel()
    eps = np.where(np.isinf(raised), np.inf, 0.0)
    # At a smaller μ the mechanism is already (0, δ)-DP.
    some = (raised > 2 * np.sqrt(2) * erfinv(target)) & np.isfinite(raised)
    if np.any(some):
        eps[some] = _epsilon_of_spending(raised[some], target[some])
    return as_given(mu, eps.reshape(shape))


def _epsilon_of_spending(mu: FloatArray, target: FloatArray) -> FloatArray:
    def mismatch(a: FloatArray) -> tuple[FloatArray, FloatArray]:
        excess, rate, mills_b = _excess(a, a + mu, mu, target)
        with np.errstate(invalid="ignore"):
            return excess, -mu * mills_b * rate

    lowest, highest = _range_of_a(target)
    # A step of a is worth a relative step of μ of at most 1.26 times its size, so the tolerance hides in the margin.
    a = _decreasing_root(mismatch, np.maximum(lowest, -mu / 2), np.maximum(highest, -mu / 2))
    with np.errstate(over="ignore"):
        return np.asarray(np.maximum(mu * (a + mu / 2), 0.0), dtype=np.float64)


def delta_of(epsilon: Numbers, mu: ArrayLike) -> Numbers:
    """The δ at which a Gaussian mechanism of this μ is (ε, δ)-DP, rounded up (μ raised by `ACCOUNTING_MARGIN`)."""
    raised = checked("mu", mu, low=0.0) * (1 + ACCOUNTING_MARGIN)
    eps, raised = np.broadcast_arrays(checked("epsilon", epsilon, low=0.0), raised)
    shape, eps, raised = eps.shape, eps.ravel(), raised.ravel()
    delta = np.zeros(raised.size)
    some = raised > 0
    eps, raised = eps[some], raised[some]
    with np.errstate(over="ignore"):
        ratio = eps / raised
        log_delta, log_rest = _log_tails(ratio - raised / 2, ratio + raised / 2, raised)[:2]
    # Near 1 the margin is less than the distance of two floats: there δ itself is rounded up.
    value = np.where(log_delta < np.log(0.5), np.exp(log_delta), np.nextafter(-np.expm1(log_rest), 1.0))
    # A positive δ below the smallest float must not read as 0.
    delta[some] = np.clip(value, np.nextafter(0.0, 1.0), 1.0)
    return as_given(epsilon, delta.reshape(shape))


def composed_epsilon(mus: Iterable[float], delta: float) -> float:
    """ε of independent Gaussian mechanisms of these μ together, at one δ, rounded up: never less than what they cost.

    Their outputs are one Gaussian mechanism with μ = √(Σ μ²), also where each was chosen after the earlier outputs were
    seen (docs/theory.md); `hypot` gives it to the last bit but one, far within the margin. Basic composition,
    (Σ ε, Σ δ), holds too and is larger.
    """
    return epsilon_of(math.hypot(*mus), delta)


def _mills(x: FloatArray) -> FloatArray:
    return np.asarray(np.sqrt(np.pi / 2) * erfcx(x / np.sqrt(2)), dtype=np.float64)


def _log_tails(a: FloatArray, b: FloatArray, mu: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """log δ, log(1 − δ), m(a) − m(b) and m(b). The second is meant for a ≤ 0, which every δ ≥ 1/2 implies."""
    a = np.maximum(a, _LOWEST_A)
    mills_b = _mills(b)
    drop = _mills(a) - mills_b
    short = mu < _SHORT
    if np.any(short):
        half = mu[short, None] / 2
        t = a[short, None] + half * (1 + _NODES)
        drop[short] = np.sum(_WEIGHTS * half * (1 - t * _mills(t)), axis=-1)
    low = np.minimum(a, 0.0)
    with np.errstate(divide="ignore", over="ignore"):
        log_delta = -0.5 * a * a - _LOG_SQRT_2PI + np.log(np.maximum(drop, 0.0))
        log_rest = np.logaddexp(log_ndtr(low), -0.5 * low * low - _LOG_SQRT_2PI + np.log(mills_b))
    return np.minimum(log_delta, 0.0), np.minimum(log_rest, 0.0), drop, mills_b


def _excess(
    a: FloatArray, b: FloatArray, mu: FloatArray, target: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """How far log δ is above its target (log(1 − δ) below it, above 1/2); φ(a) times its slope in δ; and m(b)."""
    log_delta, log_rest, drop, mills_b = _log_tails(a, b, mu)
    small = target <= 0.5
    excess = np.where(small, log_delta - np.log(target), np.log1p(-target) - log_rest)
    with np.errstate(divide="ignore", over="ignore"):
        rate = np.where(small, 1 / drop, np.exp(-0.5 * a * a - _LOG_SQRT_2PI - log_rest))
    return excess, rate, mills_b


def _range_of_a(target: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Where a can lie: Φ(−a) ≥ δ and 1 − δ ≤ 2Φ(a), tight at ε = ∞ and at ε = 0. A hair wider, for rounding."""
    lowest = -np.sqrt(2) * erfinv(target)
    highest = -ndtri_exp(np.log(target))
    return lowest * (1 + 1e-9), highest + 1e-9 * np.abs(highest)


def _decreasing_root(
    function: Callable[[FloatArray], tuple[FloatArray, FloatArray]], low: FloatArray, high: FloatArray
) -> FloatArray:
    """Root of a decreasing function (value and slope) in [low, high]: Newton from the top, halving where it strays."""
    x = high
    for _ in range(_MAX_STEPS):
        value, slope = function(x)
        low, high = np.where(value > 0, x, low), np.where(value > 0, high, x)
        with np.errstate(divide="ignore", invalid="ignore"):
            step = x - value / slope
        step = np.where((step >= low) & (step <= high), step, low + (high - low) / 2)
        moved = np.abs(step - x)
        x = step
        if np.all(moved <= _TOLERANCE):
            return x
    raise JsamError(_NOT_CONVERGED)


def checked(name: str, value: ArrayLike, *, low: float, finite: bool = True) -> FloatArray:
    """`value` as floats, every entry finite (unless infinity is allowed) and at least `low`, or an error naming one."""
    array = np.asarray(value, dtype=np.float64)
    good = (array >= low) & (np.isfinite(array) | (not finite))
    if not np.all(good):
        raise InputError(f"{_first(name, array, good)}; it must be {'finite and ' if finite else ''}at least {low:g}")
    return array


def checked_delta(delta: ArrayLike) -> FloatArray:
    array = np.asarray(delta, dtype=np.float64)
    good = (array > 0) & (array < 1)
    if not np.all(good):
        raise InputError(f"{_first('delta', array, good)}; it must lie strictly between 0 and 1")
    return array


def _first(name: str, array: FloatArray, good: NDArray[np.bool_]) -> str:
    """`name is value` of the first bad entry, with its place where there are several."""
    if array.ndim == 0:
        return f"{name} is {array:g}"
    place = int(np.argmin(good.ravel()))
    return f"{name}[{place}] is {array.ravel()[place]:g}"


def as_given(given: Numbers, result: FloatArray) -> Numbers:  # noqa: ARG001  # `given` tells the type checker the kind
    """The result as a plain number where one was given, not an array."""
    return float(result) if result.ndim == 0 else result  # type: ignore[return-value]
