"""Formulas of docs/theory.md that no other test looks at, each against something computed another way."""

from __future__ import annotations

import importlib.util
import math
from collections import Counter
from itertools import pairwise
from types import ModuleType

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

import jsam
from jsam.mechanism._arrays import FloatArray
from jsam.mechanism.bound import gradient_norm_bound
from jsam.mechanism.pricing.virtual_cost import VirtualCost
from jsam.mechanism.solver.closed_form import best_cost
from jsam.mechanism.solver.quadrature import NODES, _by_envelope
from tests.conftest import require
from tests.docs.blocks import ROOT
from tests.oracles import published_algorithm_1, true_objective
from tests.oracles.inner import least_over_cost

B_VALUES: FloatArray = np.linspace(0.002, 0.498, 249)  # the parameter b of "The fraction is never needed"
decades = st.floats(-4, 4).map(lambda x: 10.0**x)
fractions = st.floats(0, 1)


def y_of(b: FloatArray) -> FloatArray:
    return np.asarray(2 * (1 - b) * (1 - 2 * b) / (2 - 3 * b))


def level_of(b: FloatArray) -> FloatArray:
    return np.asarray(b * (1 - b) ** (2 / 3) * (2 - 3 * b) ** (-1 / 3))


def slope_of(b: FloatArray) -> FloatArray:
    """|K′(y)|."""
    return np.asarray((2 - 3 * b) ** (2 / 3) * (1 - b) ** (-1 / 3) / 3)


def derivative(f: FloatArray, x: FloatArray) -> FloatArray:
    """df/dx along a fine curve, its ends left out."""
    return np.asarray(np.gradient(f, x, edge_order=2)[2:-2])


def test_level_curve_and_its_slope() -> None:
    """y, K and K′ as functions of b: K³ is the maximum it claims to be, and K′ its derivative; K is concave."""
    grid = np.linspace(0, 1, 20_001)
    for b in B_VALUES[::12]:
        y, K = float(y_of(b)), float(level_of(b))
        x = grid * (1 - y)
        assert (x**2 * (1 - x) * (1 - x - y)).max() == pytest.approx(K**3, rel=1e-6)
    fine = np.linspace(0.01, 0.49, 20_001)
    assert derivative(level_of(fine), y_of(fine)) == pytest.approx(-slope_of(fine)[2:-2], rel=1e-6)
    assert np.all(np.diff(y_of(fine)) < 0)
    assert np.all(np.diff(slope_of(fine)) < 0)


@given(d=decades, S=decades, eta=decades, Q=decades)
def test_sublevel_sets_are_what_lies_under_the_level_curve(d: float, S: float, eta: float, Q: float) -> None:
    """At F = f(d, S), S is exactly K(2ηd/F) in its units."""
    value, B = best_cost(np.array(d), np.array(d * d), np.array(math.sqrt(Q) * S**1.5), eta)
    F, b = float(value), float(B / value)
    assert 0 <= b <= 0.5 * (1 + 1e-12)
    assert 2 * eta * d / F == pytest.approx(float(y_of(np.array(b))), rel=1e-9, abs=1e-9)
    unit = (F**4 / (eta**2 * Q)) ** (1 / 3)
    assert S / unit == pytest.approx(float(level_of(np.array(b))), rel=1e-7)


def test_the_chord_function_turns_once() -> None:
    """1/A + 3y equals its closed form and falls in b, so that k is convex first and concave after."""
    b = np.linspace(0.01, 0.49, 20_001)
    A = (4 - 3 * b) * (2 - 3 * b) / (6 * (1 - b) * (3 - 8 * b + 6 * b**2))
    assert derivative(np.log(slope_of(b)), y_of(b)) == pytest.approx(A[2:-2], rel=1e-6)
    closed = 6 * (1 - b) ** 2 * (7 - 12 * b) / ((2 - 3 * b) * (4 - 3 * b))
    assert 1 / A + 3 * y_of(b) == pytest.approx(closed, rel=1e-12)
    assert np.all(np.diff(closed) < 0)


@given(w=st.lists(decades, min_size=2, max_size=6), extra=st.integers(0, 20), tau=fractions)
def test_the_noise_sum_lies_above_its_chord(w: list[float], extra: int, tau: float) -> None:
    """S(τ) ≥ (1 − s) S(0) + s S(1), s = τ^(2/3), while the last kept client is drained to the first."""
    weights, N = np.sort(w), len(w) + extra

    def noise(share: float) -> float:
        p = np.full(len(w), 1 / N)
        p[-1] = share / N
        p[0] = 1 - p[1:].sum()
        return float(weights @ p ** (2 / 3))

    s = tau ** (2 / 3)
    assert noise(tau) >= ((1 - s) * noise(0.0) + s * noise(1.0)) * (1 - 1e-13)


@given(d=decades, S=decades, eta=decades, Q=decades)
def test_the_value_rises_with_slope_three_halves_of_the_price(d: float, S: float, eta: float, Q: float) -> None:
    """∂f/∂S = 1.5 B/S, and f is concave in S."""
    at = S * np.array([1 - 1e-5, 1.0, 1 + 1e-5])
    value, B = best_cost(np.full(3, d), np.full(3, d * d), math.sqrt(Q) * at**1.5, eta)
    cost = value - 2 * eta * d  # the bias alone would drown the differences
    assert cost[2] - cost[0] == pytest.approx(1.5 * B[1] / S * (at[2] - at[0]), rel=1e-5, abs=1e-11 * value[1])
    assert np.all(np.diff(B / at) <= 1e-15 * B[1] / S)


def test_curvature_that_lets_an_inner_point_win_is_bounded() -> None:
    """|K″| K/K′² = b(4 − 3b)/(2(3 − 8b + 6b²)) ≤ 5/4: the ground of the condition under a cap on p."""
    b = np.linspace(0.01, 0.49, 20_001)
    claimed = b * (4 - 3 * b) / (2 * (3 - 8 * b + 6 * b**2))
    curvature = -derivative(-slope_of(b), y_of(b)) * level_of(b)[2:-2] / slope_of(b)[2:-2] ** 2
    assert curvature == pytest.approx(claimed[2:-2], rel=1e-6)
    assert np.all(np.diff(claimed) > 0)
    assert claimed[-1] < 1.25
    assert 0.5 * 2.5 / (2 * 0.5) == 1.25


def test_envelope_panels_err_by_no_more_than_their_bound() -> None:
    """∫ ε dz ≈ Σ ΔG Δz/Δv with ε that jumps anywhere in a cell: within the stated bound and within Grüss' own."""
    rng = np.random.default_rng(3)
    dense = np.linspace(0, 1, 8 * 4000 + 1)
    middle = (dense[1:] + dense[:-1]) / 2
    tight = 0
    for _ in range(200):
        low, power, jump, drop = rng.uniform(0.1, 3), rng.uniform(0.3, 3), rng.uniform(), rng.uniform(0, 2)
        v_of = low + (dense + rng.uniform(0.01, 1)) ** power
        eps_at = v_of**-0.5 + drop * (dense < jump)
        dv, dz = np.diff(v_of), np.diff(dense)
        between = np.interp(middle, dense, v_of) ** -0.5 + drop * (middle < jump)
        area, G = np.sum(between * dz), np.concatenate([[0.0], np.cumsum(between * dv)])
        at = np.searchsorted(dense, NODES)
        z, v, eps, values = (x[at][None, None, :] for x in (dense, v_of, eps_at, G))
        estimate, bound = _by_envelope(z, v, values, eps)
        slopes = dz / dv
        gruess = sum(
            0.25 * (v_of[j] - v_of[i]) * (eps_at[i] - eps_at[j]) * np.ptp(slopes[i:j]) for i, j in pairwise(at)
        )
        error = abs(float(estimate[0, 0]) - area)
        assert error <= float(bound[0, 0]) + 1e-7
        assert error <= gruess + 1e-7
        tight += error > 0.1 * gruess
    assert tight > 20  # the bound is not idle


def test_ironing_keeps_the_mean_of_the_virtual_cost_and_costs_no_truthful_rule_less() -> None:
    """On a flat the level is the mean of v in quantiles; E[v̄ ε] ≤ E[v ε] for falling ε, equal if constant there."""
    rng = np.random.default_rng(4)
    past = np.concatenate([rng.lognormal(-2, 0.2, 20), rng.lognormal(0, 0.2, 20)])
    prior = jsam.EmpiricalPrior(reports=past)
    cost = VirtualCost.of(prior)
    assert cost.flats
    q = (np.arange(20_000) + 0.5) / 20_000
    c = np.asarray(prior.ppf(q))
    raw = c + np.exp(prior.logcdf(c) - prior.logpdf(c))
    ironed = cost(c)
    for flat in cost.flats:
        inside = (c >= flat.low) & (c <= flat.high)
        assert raw[inside].mean() == pytest.approx(flat.level, rel=2e-3)
    assert np.all(np.diff(ironed) >= 0)
    falling = c**-0.5
    assert (raw * falling).mean() > (ironed * falling).mean()
    constant = ironed**-0.5
    assert (raw * constant).mean() == pytest.approx((ironed * constant).mean(), rel=1e-4)


def test_what_is_never_dropped_falls_like_the_root_of_its_virtual_cost() -> None:
    """USBM under an exponential prior: ε ∝ v^(−1/2) far out, so that payments are finite."""
    market = jsam.Market(sensitivities=np.array([0.2, 0.5, 0.9]), prior=scipy.stats.expon(scale=0.3))
    z = np.array([8.0, 12.0])
    eps = jsam.USBM(loss_weight=2.0).respond(market, 1, z, payments=False).epsilons
    v = market.cost_of(1)(z)
    assert math.log(eps[1] / eps[0]) / math.log(v[1] / v[0]) == pytest.approx(-0.5, abs=1e-6)


def test_an_infinite_virtual_cost_is_dropped_or_refused() -> None:
    """A report where the density vanishes: JSAM keeps the others, USBM says whom it cannot afford."""
    market = jsam.Market(sensitivities=np.array([0.1, 0.4, 1.0]), prior=scipy.stats.beta(2, 5))
    assert jsam.plan(market, jsam.JSAM(loss_weight=20.0)).selection_probs[2] == 0
    with pytest.raises(jsam.InputError, match=r"client '2' reports 1.*usbm cannot drop it"):
        jsam.plan(market, jsam.USBM(loss_weight=20.0))


def test_compensated_noise_does_not_depend_on_the_selection() -> None:
    """Weights u/p and T_k ∝ p: the theorem's noise term, with σ² ∝ T_k/ε², is the same for every p."""
    rng = np.random.default_rng(5)
    eps, draws = rng.uniform(0.1, 2, 6), 1000.0
    bounds = []
    for _ in range(5):
        p = rng.dirichlet(np.ones(6))
        times = draws * p
        contract = jsam.plan(
            jsam.Market(sensitivities=rng.uniform(0.1, 0.9, 6), prior=scipy.stats.uniform(0, 1)),
            jsam.USBM(loss_weight=1.0, selection_probs=p),
        )
        assert contract.update_weights is not None
        bounds.append(
            gradient_norm_bound(
                p * contract.update_weights,
                np.sqrt(times) / eps,
                times,
                gradient_bound=1.0,
                smoothness=1.0,
                dimension=10,
                rounds=100,
                initial_gap=1.0,
            )
        )
    assert bounds == pytest.approx([bounds[0]] * 5, rel=1e-12)


def fitted_budget_script() -> ModuleType:
    path = ROOT / "docs/figures/fitted_budget.py"
    spec = importlib.util.spec_from_file_location("fitted_budget", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_largest_rise_of_a_fitted_budget_is_marked() -> None:
    require("matplotlib", extra="plot")
    reports = np.linspace(0.1, 1, 4)
    curves = [
        {"title": "fitted", "reports": reports, "epsilons": [0.4, 0.2, 0.3, 0.1]},
        {"title": "beforehand", "reports": reports, "epsilons": [0.4, 0.3, 0.2, 0.0]},
    ]
    figure = fitted_budget_script().drawn(curves)
    fitted, beforehand = [text.get_text() for axis in figure.axes for text in axis.texts]
    assert "ε rises by 50%" in fitted
    assert "never rises" in beforehand


def test_a_fitted_budget_makes_epsilon_rise_and_a_fixed_weight_never_does() -> None:
    """The count behind "Why η is not fitted to the reports", on fewer markets; and the rise that the picture shows."""
    script = fitted_budget_script()
    rng = np.random.default_rng(7)
    reports = np.linspace(1e-3, 1, 200)
    risen: Counter[float] = Counter()
    for budget in (0.3, 3.0, 30.0):
        for _ in range(20):
            v = 2 * rng.uniform(0, 1, 10)
            eps = []
            for z in reports:
                v[0] = 2 * z
                eps.append(script.fitted(v, budget)[0])
            risen[budget] += bool(np.any(np.diff(eps) > 1e-9))
    assert risen[0.3] > 10
    assert risen[30.0] == 0
    for _ in range(60):
        market = jsam.Market(sensitivities=rng.uniform(0, 1, 10), prior=scipy.stats.uniform(0, 1))
        mechanism = jsam.JSAM(loss_weight=float(10 ** rng.uniform(-1, 2)))
        bought = mechanism.respond(market, 0, reports, payments=False).epsilons
        assert np.all(np.diff(bought) <= 1e-12 * bought.max())
    shown = np.random.default_rng(script.SEED).uniform(0, 1, script.NUM_CLIENTS)
    curve = []
    for z in (0.365, 0.375):
        shown[script.CLIENT] = z
        curve.append(script.fitted(2 * shown, script.BUDGET)[script.CLIENT])
    assert curve[1] / curve[0] - 1 == pytest.approx(0.34, abs=0.02)


def test_where_the_published_algorithm_slips() -> None:
    """3,000 random markets: it misses the optimum only where that keeps one client, by the amounts of the table."""
    rng = np.random.default_rng(0)
    worst: dict[str, float] = {}
    counts: Counter[str] = Counter()
    for _ in range(3000):
        n = int(rng.integers(1, 9))
        v, eta = np.sort(10.0 ** rng.uniform(-4, 3, n)), float(10 ** rng.uniform(-2, 2.5))
        found = published_algorithm_1(v, eta=eta, delta_grid=1 / (20 * n))
        value, total = true_objective(found, v, eta=eta, Q=1.0)
        w, h = np.cbrt(v) ** 2, np.arange(1, n + 1)
        S = w[0] * ((n - h + 1) / n) ** (2 / 3) + (np.cumsum(w) - w[0]) / n ** (2 / 3)
        values = least_over_cost(2 * (n - h) / n, S, eta=eta, Q=1.0)[0]
        if abs(total - 1) > 1e-9:
            case = "no plan"
        elif n == 1:
            case = "alone"
        elif found.h == 1:
            case = "one kept"
        elif int(values.argmin()) == 0:
            case = "missed" if found.p_h > 0 else "bias"
        else:
            case = "right"
        assert (case == "no plan") <= (n == 1)
        counts[case] += 1
        worst[case] = max(worst.get(case, 0.0), value / float(values.min()) - 1)
    assert worst["right"] < 1e-12
    assert counts["right"] > 2000
    assert worst["one kept"] == pytest.approx(0.060, abs=0.002)
    assert worst["bias"] == pytest.approx(0.0035, abs=0.0005)
    assert 0.1 < worst["missed"] < 0.26
    assert worst["alone"] == pytest.approx(0.138, abs=0.002)
    assert min(counts.values()) > 10
