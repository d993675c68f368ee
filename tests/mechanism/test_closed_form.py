"""The inner problem, ε for given p: its closed form to the last digits, its edges, its caps and its scaling laws."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
from scipy.optimize import Bounds, minimize
from scipy.stats import uniform

import jsam
from jsam.mechanism._arrays import BoolArray, FloatArray
from jsam.mechanism.solver.allocation import budgets
from jsam.mechanism.solver.closed_form import best_cost, cubic_root, evaluate
from jsam.mechanism.solver.profiles import Profiles, equal_receivers
from jsam.mechanism.solver.rows import SortedRows
from jsam.mechanism.weights import Weights
from tests.oracles import DIGITS, best_epsilons, exact_cost, exact_root, objective


def relative(found: float, exact: Decimal) -> float:
    return float(abs(Decimal(found) - exact) / abs(exact))


def test_cubic_root_to_the_last_digit() -> None:
    """24 decades of a, and both ends of it: within two units in the last place of the 50-digit root."""
    a = np.concatenate([[0.0, 5e-324, 1e-300, 1e300], np.geomspace(1e-12, 1e12, 2001)])
    with localcontext() as context:
        context.prec = DIGITS
        roots = cubic_root(a).tolist()
        worst = max(relative(r, exact_root(Decimal(x))) for x, r in zip(a.tolist(), roots, strict=True))
    assert worst <= 4e-16


def test_closed_form_minimises_over_the_cost() -> None:
    """The 50-digit form itself is right: no other B, near or far, gives less (else both could share one mistake)."""
    with localcontext() as context:
        context.prec = DIGITS
        for d, e2, root_kappa, eta in [(0.3, 0.09, 2.0, 5.0), (1.9, 3.61, 1e-4, 70.0), (0.0, 0.0, 3.0, 1e-3)]:
            least, B = exact_cost(d, e2, root_kappa, eta)
            kappa = Decimal(root_kappa) ** 2
            for factor in ("0.001", "0.5", "0.999999", "1", "1.000001", "2", "1000"):
                b = B * Decimal(factor)
                value = Decimal(eta) * (Decimal(d) + (Decimal(e2) + kappa / b**2).sqrt()) + b
                assert value >= least * (1 - Decimal("1e-45"))
                if factor == "1":
                    assert abs(value - least) < least * Decimal("1e-45")


def test_cost_and_objective_to_the_last_digits() -> None:
    rng = np.random.default_rng(0)
    n = 1500
    d, eta = 10.0 ** rng.uniform(-6, 0.3, n), 10.0 ** rng.uniform(-3, 3, n)
    e2 = d * d * 10.0 ** np.where(rng.random(n) < 0.5, 0.0, rng.uniform(0, 3, n))
    root_kappa = e2 * eta / 10.0 ** rng.uniform(-12, 12, n)
    d[:20] = e2[:20] = 0.0
    with localcontext() as context:
        context.prec = DIGITS
        for i in range(n):
            value, B = best_cost(d[i : i + 1], e2[i : i + 1], root_kappa[i : i + 1], float(eta[i]))
            exact_value, exact_B = exact_cost(d[i], e2[i], root_kappa[i], eta[i])
            assert relative(value[0], exact_value) <= 6e-16
            assert relative(B[0], exact_B) <= 6e-16


def test_no_input_makes_a_nan() -> None:
    """Zero, subnormal, huge and infinite κ included: a NaN would win every argmin after it."""
    edges = [0.0, 5e-324, 1e-307, 1e-300, 1e-150, 1e-12, 1.0, 1e12, 1e150, 1e300]
    d, root_kappa = (x.ravel() for x in np.meshgrid([*edges[:7], 2.0], [*edges, math.inf]))
    for eta in [*edges[1:], 10.0, 17.9]:
        for e2 in (d * d, d * d + 1.0):
            value, B = best_cost(d, e2, root_kappa, eta)
            assert not np.isnan(value).any()
            assert not np.isnan(B).any()
            assert np.all(value >= eta * d)


def test_a_vanishing_noise_weight_costs_next_to_nothing() -> None:
    """Down to the smallest κ the objective is that of the bias alone, 2ηd, to rounding."""
    root_kappa = 10.0 ** np.arange(-323.0, -40.0, 0.25)
    value, B = best_cost(np.full_like(root_kappa, 0.5), np.full_like(root_kappa, 0.25), root_kappa, 2.0)
    assert value == pytest.approx(2.0, rel=4e-16, abs=0)
    assert np.all(np.diff(B) >= 0)


def test_nobody_to_pay_costs_nothing_and_infinite_cost_is_never_chosen() -> None:
    d, e2, kappa = np.array([0.5, 0.5, 0.5]), np.array([0.25, 1.0, 0.25]), np.array([0.0, 0.0, math.inf])
    value, B = best_cost(d, e2, kappa, 2.0)
    assert value.tolist() == [2.0, 3.0, math.inf]
    assert B.tolist() == [0.0, 0.0, math.inf]


def test_a_client_of_infinite_cost_can_only_be_dropped() -> None:
    """Virtual costs are infinite where the density vanishes. Profiles that keep such a client are worth infinity."""
    profiles = equal_receivers(4, None)
    v = SortedRows(np.array([[0.5, 1.0, math.inf, math.inf]]))
    for cap in (None, 0.7):
        weights = Weights(loss_weight=3.0, noise_weight=2.0, bias_weight=1.0, max_epsilon=cap)
        values = evaluate(profiles, np.arange(len(profiles)), v, weights).objective[0]
        assert not np.isnan(values).any()
        assert np.array_equal(np.isinf(values), profiles.num_selected > 2)


def capped_instance(rng: np.random.Generator) -> tuple[Profiles, FloatArray, Weights]:
    n = int(rng.integers(1, 9))
    v = np.sort(10.0 ** rng.uniform(-4, 3, n))
    if n > 2 and rng.random() < 0.2:
        v[1] = v[2]  # ties
    eta, Q, zeta = 10.0 ** rng.uniform([-2.0, -2.0, -1.0], [3.0, 3.0, 1.0])
    _, eps = best_epsilons(np.full(n, 1 / n), v, eta=eta, Q=Q, zeta=zeta)
    cap = float(10.0 ** rng.uniform(-1.5, 3.5) * np.median(eps))
    weights = Weights(loss_weight=float(eta), noise_weight=float(Q), bias_weight=float(zeta), max_epsilon=cap)
    return equal_receivers(n, None), v, weights


def test_water_filling_is_the_root_of_the_multiplier_equation() -> None:
    """Every profile of 150 markets: the value, the cost and each ε against root-finding on the multiplier."""
    rng = np.random.default_rng(1)
    some, none, every = 0, 0, 0
    for _ in range(150):
        profiles, v, weights = capped_instance(rng)
        eta, Q, zeta, cap = weights.loss_weight, weights.noise_weight, weights.bias_weight, weights.max_epsilon
        values = evaluate(profiles, np.arange(len(profiles)), SortedRows(v[None]), weights)
        for i in range(len(profiles)):
            p = profiles.probabilities(i)
            best, eps = best_epsilons(p, v, eta=eta, Q=Q, zeta=zeta, max_epsilon=cap)
            mine = budgets(p, v, float(values.scale[0, i]), cap)
            assert values.objective[0, i] == pytest.approx(best, rel=1e-13, abs=0)
            assert mine == pytest.approx(eps, rel=1e-12, abs=0)
            assert values.cost[0, i] == pytest.approx(float(v @ mine), rel=1e-12, abs=0)
            assert objective(p, mine, v, eta=eta, Q=Q, zeta=zeta) == pytest.approx(best, rel=1e-13, abs=0)
            at_cap = (mine == cap)[p > 0]
            some, none, every = some + (0 < at_cap.mean() < 1), none + (not at_cap.any()), every + at_cap.all()
    assert min(some, none, every) > 100  # all three kinds of cap really occurred


def test_water_filling_beats_a_convex_solver() -> None:
    """SLSQP over ε from two starts never gets below the closed form and comes close to it."""
    rng = np.random.default_rng(2)
    for _ in range(25):
        profiles, v, weights = capped_instance(rng)
        eta, Q, zeta, cap = weights.loss_weight, weights.noise_weight, weights.bias_weight, weights.max_epsilon
        assert cap is not None
        i = int(rng.integers(len(profiles)))
        p = profiles.probabilities(i)
        kept = p > 0
        mine = float(evaluate(profiles, np.array([i]), SortedRows(v[None]), weights).objective[0, 0])

        def cost(
            log_eps: FloatArray,
            kept: BoolArray = kept,
            p: FloatArray = p,
            v: FloatArray = v,
            eta: float = eta,
            Q: float = Q,
            zeta: float = zeta,
        ) -> float:
            eps = np.zeros(len(p))
            eps[kept] = np.exp(log_eps)
            return math.log(objective(p, eps, v, eta=eta, Q=Q, zeta=zeta))

        bounds = Bounds(np.full(kept.sum(), math.log(cap) - 30), np.full(kept.sum(), math.log(cap)))
        found = [
            minimize(cost, np.full(kept.sum(), start), method="SLSQP", bounds=bounds, options={"ftol": 1e-12}).fun
            for start in (math.log(cap), math.log(cap) - 4)
        ]
        assert mine <= math.exp(min(found)) * (1 + 1e-12)
        assert mine == pytest.approx(math.exp(min(found)), rel=1e-5, abs=0)


def plan_of(v: FloatArray, *, eta: float, Q: float, **caps: float) -> jsam.Contract:
    market = jsam.Market(sensitivities=v / 2, prior=uniform(0, v.max()))
    return jsam.plan(market, jsam.JSAM(loss_weight=eta, noise_weight=Q, **caps), payments=False)


@pytest.mark.parametrize("scale", [2.0**-20, 1e-3, 7.0, 2.0**20])
def test_selection_depends_on_the_ratio_of_the_weights_only(scale: float) -> None:
    """(η, Q) → (sη, s²Q) leaves p alone and multiplies B and every ε by s (theory, "The cost in closed form")."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        v, (eta, Q) = 10.0 ** rng.uniform(-3, 2, 12), 10.0 ** rng.uniform(-1.5, 1.5, 2)
        for caps in ({}, {"max_selection_prob": 0.3}):
            one = plan_of(v, eta=eta, Q=Q, **caps)
            other = plan_of(v, eta=scale * eta, Q=scale**2 * Q, **caps)
            assert other.selection_probs == pytest.approx(one.selection_probs, rel=1e-6, abs=0)
            assert other.expected_cost == pytest.approx(scale * one.expected_cost, rel=1e-12, abs=0)
            assert other.epsilons == pytest.approx(scale * one.epsilons, rel=1e-6, abs=0)


@pytest.mark.parametrize("coin", [1e-9, 100.0, 1e9])
def test_the_currency_does_not_matter(coin: float) -> None:
    """Counting all money in another coin (v and η alike) changes no probability and no ε."""
    rng = np.random.default_rng(4)
    v = 10.0 ** rng.uniform(-3, 2, 12)
    for caps in ({}, {"max_selection_prob": 0.3}, {"max_epsilon": 0.5}):
        one, other = plan_of(v, eta=3.0, Q=2.0, **caps), plan_of(coin * v, eta=coin * 3.0, Q=2.0, **caps)
        assert other.selection_probs == pytest.approx(one.selection_probs, rel=1e-6, abs=0)
        assert other.epsilons == pytest.approx(one.epsilons, rel=1e-6, abs=0)
        assert other.objective == pytest.approx(coin * one.objective, rel=1e-12, abs=0)
