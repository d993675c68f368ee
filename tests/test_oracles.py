"""The brute-force twins checked by hand-computable cases and against each other, before anything leans on them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import Bounds, minimize, minimize_scalar

from tests.oracles import (
    best_epsilons,
    brute_force,
    brute_force_joint,
    dense_payment,
    exact_curve,
    objective,
    published_algorithm_1,
    search,
    trapezoid_payments_on_grid,
    true_objective,
    values,
    values_capped,
)
from tests.oracles.inner import Array, least_over_cost
from tests.oracles.payments import Curve


def wide_market(rng: np.random.Generator, n: int) -> tuple[Array, float, float, float]:
    """v over seven decades, eta and Q over five, the bias weight over two."""
    v = 10.0 ** rng.uniform(-4.0, 3.0, n)
    eta, Q, zeta = 10.0 ** rng.uniform([-2.0, -2.0, -1.0], [3.0, 3.0, 1.0])
    return v, float(eta), float(Q), float(zeta)


def threshold_minimum(v: Array, *, eta: float, Q: float, zeta: float) -> float:
    """Least objective among the N candidates of docs/theory.md: h kept, the cheapest takes the rest."""
    n = len(v)
    w = np.cbrt(np.sort(v) ** 2)
    least = math.inf
    for h in range(1, n + 1):
        S = w[0] * ((n - h + 1) / n) ** (2 / 3) + w[1:h].sum() / n ** (2 / 3)
        f, _ = least_over_cost(np.array(2 * zeta * (n - h) / n), np.array(S), eta=eta, Q=Q)
        least = min(least, float(f))
    return least


def double(z: Array) -> Array:
    """Virtual cost under U(0, 1)."""
    return 2.0 * z


def test_objective_is_the_formula_of_the_problem() -> None:
    p, eps, v = np.array([0.75, 0.25]), np.array([2.0, 1.0]), np.array([1.0, 3.0])
    noise = 4.0 * (0.375**2 + 0.25**2)
    assert objective(p, eps, v, eta=2.0, Q=4.0, zeta=1.0) == pytest.approx(2 * (0.5 + math.sqrt(0.25 + noise)) + 5)
    assert objective(p, eps, v, eta=2.0, Q=4.0, u=p) == pytest.approx(2 * math.sqrt(noise) + 5)
    assert objective(np.array([1.0, 0.0]), np.array([1.0, 0.0]), v, eta=1.0, Q=0.0, zeta=0.5) == pytest.approx(2.0)
    assert objective(p, np.array([1.0, 0.0]), v, eta=1.0, Q=1.0) == math.inf


def test_without_bias_half_the_objective_is_cost() -> None:
    """At p = u the optimum has B = sqrt(eta sqrt(Q S^3)) and objective 2B."""
    p, v, eta, Q = np.full(3, 1 / 3), np.array([0.1, 2.0, 30.0]), 7.0, 5.0
    S = float(((v * p) ** (2 / 3)).sum())
    B = math.sqrt(eta * math.sqrt(Q * S**3))
    best, eps = best_epsilons(p, v, eta=eta, Q=Q)
    assert best == pytest.approx(2 * B, rel=1e-14)
    assert eps == pytest.approx(p ** (2 / 3) * B / (S * v ** (1 / 3)), rel=1e-13)


def test_best_epsilons_match_a_scalar_search_over_cost() -> None:
    rng = np.random.default_rng(1)
    for _ in range(50):
        v, eta, Q, zeta = wide_market(rng, 5)
        p = rng.dirichlet(np.full(5, 0.5))
        S = float(np.cbrt((v * p) ** 2).sum())
        d = zeta * float(np.abs(p - 0.2).sum())

        def cost(log_B: float, d: float = d, S: float = S, eta: float = eta, Q: float = Q) -> float:
            return eta * (d + math.sqrt(d * d + Q * S**3 * math.exp(-2 * log_B))) + math.exp(log_B)

        found = minimize_scalar(cost, bounds=(-60.0, 60.0), method="bounded", options={"xatol": 1e-10})
        best, _ = best_epsilons(p, v, eta=eta, Q=Q, zeta=zeta)
        assert best == pytest.approx(float(found.fun), rel=1e-12)


def test_capped_epsilons_satisfy_the_optimality_conditions_and_beat_slsqp() -> None:
    rng = np.random.default_rng(2)
    capped_somewhere = 0
    for _ in range(40):
        v, eta, Q, p = rng.uniform(0.1, 10.0, 4), *rng.uniform(0.5, 5.0, 2), rng.dirichlet(np.ones(4))
        _, free = best_epsilons(p, v, eta=eta, Q=Q)
        cap = float(rng.uniform(0.2, 1.1) * free.max())
        best, eps = best_epsilons(p, v, eta=eta, Q=Q, max_epsilon=cap)
        d = float(np.abs(p - 0.25).sum())
        slope = v - eta * Q * p**2 / (eps**3 * math.sqrt(d * d + Q * float(((p / eps) ** 2).sum())))
        assert np.all(eps <= cap)
        assert np.all(np.where(eps < cap, np.abs(slope), slope) <= 1e-12 * v)
        capped_somewhere += int(np.any(eps == cap))

        def cost(e: Array, p: Array = p, v: Array = v, eta: float = eta, Q: float = Q) -> float:
            return objective(p, e, v, eta=eta, Q=Q)

        found = minimize(cost, 0.5 * np.minimum(free, cap), method="SLSQP", bounds=Bounds(1e-3 * eps, cap))
        assert best <= float(found.fun) * (1 + 1e-12)
        assert best == pytest.approx(float(found.fun), rel=1e-4)
    assert capped_somewhere >= 20


def test_fast_inner_minima_equal_the_slow_one() -> None:
    rng = np.random.default_rng(3)
    for _ in range(200):
        n = int(rng.integers(1, 9))
        v, eta, Q, zeta = wide_market(rng, n)
        p = rng.dirichlet(np.full(n, 0.4), size=3)
        p[0] = 1 / n
        p[1] = np.eye(n)[0]
        for row in p:
            free, eps = best_epsilons(row, v, eta=eta, Q=Q, zeta=zeta)
            cap = float(eps.max() * 10.0 ** rng.uniform(-2.0, 0.5))
            held, _ = best_epsilons(row, v, eta=eta, Q=Q, zeta=zeta, max_epsilon=cap)
            fast = values_capped(row[None], v, eta=eta, Q=Q, zeta=zeta, max_epsilon=cap)[0]
            assert values(row[None], v, eta=eta, Q=Q, zeta=zeta)[0] == pytest.approx(free, rel=1e-13)
            assert fast == pytest.approx(held, rel=1e-13)
            assert held >= free * (1 - 1e-14)


def test_a_free_client_needs_a_cap() -> None:
    p, v = np.array([0.5, 0.5]), np.array([0.0, 1.0])
    with pytest.raises(ValueError, match="v = 0"):
        best_epsilons(p, v, eta=1.0, Q=1.0)
    best, eps = best_epsilons(p, v, eta=1.0, Q=1.0, max_epsilon=3.0)
    assert eps[0] == 3.0
    assert best == pytest.approx(values_capped(p[None], v, eta=1.0, Q=1.0, zeta=1.0, max_epsilon=3.0)[0], rel=1e-14)


def test_brute_force_alone_and_for_two() -> None:
    """N = 1: 2 sqrt(eta sqrt(Q) v). N = 2: keep both equally or give all to the cheaper, whichever is less."""
    best, p, eps = brute_force(np.array([3.0]), eta=2.0, Q=4.0)
    assert p[0] == 1.0
    assert best == pytest.approx(2 * math.sqrt(2.0 * 2.0 * 3.0), rel=1e-14)
    assert 3.0 * eps[0] == pytest.approx(best / 2, rel=1e-14)
    for ratio, eta in [(1.5, 10.0), (1e4, 1.0)]:
        v = np.array([ratio, 1.0])
        line = np.linspace(0.0, 1.0, 20001)
        dense = values(np.stack([line, 1 - line], axis=1), v, eta=eta, Q=1.0, zeta=1.0)
        best, p, _ = brute_force(v, eta=eta, Q=1.0)
        assert best == pytest.approx(float(dense.min()), rel=1e-9)
        assert p == pytest.approx([0.5, 0.5] if ratio < 2 else [0.0, 1.0], abs=1e-12)


def test_brute_force_reaches_the_threshold_optimum_and_never_undercuts_it() -> None:
    """Some h with p = 1/N beyond the first is globally optimal (docs/theory.md)."""
    rng = np.random.default_rng(4)
    for seed in range(40):
        v, eta, Q, zeta = wide_market(rng, int(rng.integers(2, 9)))
        best, p, eps = brute_force(v, eta=eta, Q=Q, zeta=zeta, seed=seed)
        assert best == pytest.approx(threshold_minimum(v, eta=eta, Q=Q, zeta=zeta), rel=1e-12)
        assert float(p.sum()) == pytest.approx(1.0, abs=1e-14)
        assert best == objective(p, eps, v, eta=eta, Q=Q, zeta=zeta)


def test_descent_finds_the_optimum_without_being_shown_the_corners(monkeypatch: pytest.MonkeyPatch) -> None:
    """The continuous half of the search has power of its own; else its agreement with the corners would mean little."""
    rng = np.random.default_rng(5)
    markets = [wide_market(rng, int(rng.integers(2, 9))) for _ in range(24)]
    caps = [None if i % 2 else float(rng.uniform(1 / len(m[0]), 1.0)) for i, m in enumerate(markets)]

    def run() -> Array:
        found = [
            brute_force(v, eta=eta, Q=Q, zeta=zeta, max_selection_prob=cap)[0]
            for (v, eta, Q, zeta), cap in zip(markets, caps, strict=True)
        ]
        return np.array(found)

    shown = run()
    monkeypatch.setattr(search, "corner_points", lambda n, _cap: np.full((1, n), 1 / n))
    blind = run()
    assert np.mean(blind <= shown * (1 + 1e-9)) >= 0.95


def test_brute_force_finds_the_inner_optimum_that_a_cap_can_make() -> None:
    """With p <= cap a point strictly inside a piece can win (docs/theory.md); corners alone miss it here by 1.6e-3."""
    v, eta, cap = np.array([1.0, 104.81441443]), 42.33700757, 0.767496507

    def along(t: float) -> float:
        return float(values(np.array([[1 - t, t]]), v, eta=eta, Q=1.0, zeta=1.0)[0])

    inside = minimize_scalar(along, bounds=(1 - cap, 0.5), method="bounded", options={"xatol": 1e-12})
    best, p, _ = brute_force(v, eta=eta, Q=1.0, max_selection_prob=cap)
    assert best == pytest.approx(float(inside.fun), rel=1e-12)
    assert p[1] == pytest.approx(float(inside.x), rel=1e-5)
    assert best < min(along(1 - cap), along(0.5)) * (1 - 1e-3)


def test_searches_are_no_worse_than_a_dense_grid_for_three() -> None:
    ticks = np.linspace(0.0, 1.0, 301)
    a, b = (m.ravel() for m in np.meshgrid(ticks, ticks))
    grid = np.stack([a, b, 1 - a - b], axis=1)
    grid = np.maximum(grid[grid[:, 2] > -1e-12], 0.0)
    rng = np.random.default_rng(6)
    for seed in range(8):
        v, (eta, Q) = 10.0 ** rng.uniform(-2.0, 2.0, 3), 10.0 ** rng.uniform(-1.0, 2.0, 2)
        cap = float(rng.uniform(1 / 3, 1.0))
        allowed = grid[np.all(grid <= cap, axis=1)]
        dense = values(allowed, v, eta=eta, Q=Q, zeta=1.0).min()
        best, p, eps = brute_force(v, eta=eta, Q=Q, max_selection_prob=cap, seed=seed)
        assert best <= dense * (1 + 1e-12)
        assert p.max() <= cap + 1e-15
        top = float(rng.uniform(0.1, 1.0) * eps.max())
        dense = values_capped(allowed, v, eta=eta, Q=Q, zeta=1.0, max_epsilon=top).min()
        best, p, eps = brute_force_joint(v, eta=eta, Q=Q, max_selection_prob=cap, max_epsilon=top, seed=seed)
        assert best <= dense * (1 + 1e-12)
        assert p.max() <= cap + 1e-15
        assert eps.max() <= top


def test_joint_search_agrees_with_itself_and_with_slsqp_over_both() -> None:
    """Other seeds give the same optimum, and a direct search over (p, eps) from there finds nothing better."""
    rng = np.random.default_rng(7)
    several_receivers = 0
    for seed in range(8):
        n = int(rng.integers(2, 6))
        v, (eta, Q) = 10.0 ** rng.uniform(-2.0, 2.0, n), 10.0 ** rng.uniform(-1.0, 2.0, 2)
        v[0] = 0.0 if seed % 4 == 0 else v[0]
        top = float(10.0 ** rng.uniform(-0.5, 1.0))
        best, p, eps = brute_force_joint(v, eta=eta, Q=Q, max_epsilon=top, seed=seed)
        again, _, _ = brute_force_joint(v, eta=eta, Q=Q, max_epsilon=top, seed=seed + 100)
        assert best == pytest.approx(again, rel=1e-11)
        several_receivers += int(np.sum(p > 1 / n + 1e-6) > 1)

        def both(x: Array, v: Array = v, eta: float = eta, Q: float = Q, n: int = n) -> float:
            return math.log(objective(x[:n] / x[:n].sum(), x[n:], v, eta=eta, Q=Q))

        start = np.concatenate([0.9 * p + 0.1 / n, np.maximum(eps, 1e-3 * top)])
        bounds = Bounds(np.repeat([1e-9, 1e-9 * top], n), np.repeat([1.0, top], n))
        found = minimize(both, start, method="SLSQP", bounds=bounds)
        assert best <= math.exp(float(found.fun)) * (1 + 1e-12)
    assert several_receivers >= 2


def test_joint_search_without_a_binding_cap_is_the_plain_search() -> None:
    v = np.array([0.2, 1.0, 1.5, 9.0])
    plain, _, eps = brute_force(v, eta=3.0, Q=2.0)
    joint, _, _ = brute_force_joint(v, eta=3.0, Q=2.0, max_epsilon=1.01 * float(eps.max()))
    assert joint == pytest.approx(plain, rel=1e-13)


def test_published_algorithm_agrees_with_the_exact_optimum_where_no_slip_bites() -> None:
    """Q = 1 and h >= 2: the grid's first point p_h = 1/N already is the optimum, and both inner solvers agree."""
    v = 2.0 * np.sort(np.random.default_rng(8).uniform(0.0, 1.0, 12))
    fast = published_algorithm_1(v, eta=3.0, delta_grid=1e-3)
    slow = published_algorithm_1(v, eta=3.0, delta_grid=1e-3, vectorised=False)
    assert fast.h == slow.h
    assert fast.p_h == slow.p_h == pytest.approx(1 / 12)
    assert slow.f == pytest.approx(fast.f, rel=1e-13)
    value, total = true_objective(fast, v, eta=3.0, Q=1.0)
    assert total == pytest.approx(1.0, abs=1e-14)
    assert value == pytest.approx(fast.f, rel=1e-13)
    assert value == pytest.approx(threshold_minimum(v, eta=3.0, Q=1.0, zeta=1.0), rel=1e-13)


@pytest.mark.parametrize(
    ("v", "eta", "h", "p_h", "total"),
    [
        pytest.param([0.1], 0.001, 1, 0.0, 2.0, id="alone: p_1 = 2"),
        pytest.param([17.0, 12457.0], 6.0, 1, 0.5, 1.0, id="h = 1: client 1 counted twice"),
        pytest.param([0.9, 11335.0], 0.17, 2, 0.0, 1.0, id="p_h = 0: bias written 2 (p_1 - p_h)"),
    ],
)
def test_published_algorithm_slips_when_one_client_is_kept(
    v: list[float], eta: float, h: int, p_h: float, total: float
) -> None:
    """Its own value is then not the objective of what it returns, and what it returns is not the optimum."""
    costs = np.array(v)
    result = published_algorithm_1(costs, eta=eta, delta_grid=1e-3)
    value, total_prob = true_objective(result, costs, eta=eta, Q=1.0)
    assert result.h == h
    assert result.p_h == pytest.approx(p_h, abs=1e-12)
    assert total_prob == pytest.approx(total)
    assert result.f > value * 1.1
    assert value > brute_force(costs, eta=eta, Q=1.0)[0] * (1 + 1e-3)


def test_published_algorithm_ignores_the_noise_weight() -> None:
    v = np.linspace(0.1, 2.0, 8)
    result = published_algorithm_1(v, eta=1.0, delta_grid=1e-3)
    value, _ = true_objective(result, v, eta=1.0, Q=100.0)
    assert value > 1.2 * brute_force(v, eta=1.0, Q=100.0)[0]


def test_published_algorithm_depends_on_the_currency() -> None:
    """f* starts at 10^6: the same market counted in smaller coin (v and eta scaled alike) has no answer."""
    v = np.array([1.0, 2.0, 3.0])
    coin = 1e9
    assert published_algorithm_1(v, eta=2.0, delta_grid=1e-2).h >= 1
    with pytest.raises(RuntimeError, match="initial f"):
        published_algorithm_1(coin * v, eta=coin * 2.0, delta_grid=1e-2)


def test_payment_of_curves_with_known_areas() -> None:
    def staircase(z: Array) -> Array:
        steps = [(3.0, 0.3), (0.5, 0.3 + 1e-7), (1.0, 0.25 + 1e-9), (2.0, 0.9)]
        return np.array([sum(size for size, end in steps if at < end) for at in z.tolist()])

    c = 0.25
    exact = c * 6.5 + 3.0 * 0.05 + 0.5 * (0.05 + 1e-7) + 1e-9 + 2.0 * 0.65
    payment, error = dense_payment(staircase, c, 1.0)
    assert payment == pytest.approx(exact, rel=1e-13)
    assert error <= 1e-12 * exact

    def falling(z: Array) -> Array:
        return np.where(z < 0.7, z**-1.5, 0.5 * np.exp(-3.0 * z))

    c = 1e-4
    exact = c**-0.5 + 2.0 * (c**-0.5 - 0.7**-0.5) + 0.5 / 3.0 * (math.exp(-2.1) - math.exp(-3.0))
    payment, error = dense_payment(falling, c, 1.0)
    assert payment == pytest.approx(exact, rel=1e-12)
    assert abs(payment - exact) <= 2.0 * error + 1e-14 * exact


def test_payment_with_an_open_top() -> None:
    payment, _ = dense_payment(lambda z: np.where(z < 1e5, 1.0 / z, 0.0), 0.5, math.inf)
    assert payment == pytest.approx(1.0 + math.log(2e5), rel=1e-12)
    with pytest.raises(ValueError, match="never reaches zero"):
        dense_payment(lambda z: 1.0 / z, 0.5, math.inf)
    assert dense_payment(np.zeros_like, 0.5, math.inf) == (0.0, 0.0)


def test_payment_of_a_lone_client() -> None:
    """N = 1, U(0, 1): eps(z) = sqrt(k/(2z)) with k = eta sqrt(Q), so the payment is sqrt(k/2) (2 - sqrt(c))."""
    eta, Q, c = 3.0, 4.0, 0.09
    curve = exact_curve(double, np.zeros(0), eta=eta, Q=Q)
    k = eta * math.sqrt(Q)
    assert curve(np.array([c, 0.5])) == pytest.approx([math.sqrt(k / 2 / c), math.sqrt(k)], rel=1e-14)
    payment, error = dense_payment(curve, c, 1.0)
    assert payment == pytest.approx(math.sqrt(k / 2) * (2 - math.sqrt(c)), rel=1e-12)
    assert error < 1e-10 * payment


@pytest.fixture(scope="module")
def uniform_market() -> tuple[Array, list[Curve], Array]:
    """Twelve reports under U(0, 1), everyone's curve, and payments by the dense oracle; eta = 2, Q = 3."""
    c = np.sort(np.random.default_rng(9).uniform(0.0, 1.0, 12))
    curves = [exact_curve(double, np.delete(2.0 * c, k), eta=2.0, Q=3.0) for k in range(12)]
    return c, curves, np.array([dense_payment(curve, c[k], 1.0)[0] for k, curve in enumerate(curves)])


def test_curve_is_the_optimum_falls_and_ends_in_exclusion(uniform_market: tuple[Array, list[Curve], Array]) -> None:
    c, curves, _ = uniform_market
    few = c[[0, 3, 5, 8, 11]]
    _, _, eps = brute_force(2.0 * few, eta=2.0, Q=3.0)
    for k in range(5):
        alone = exact_curve(double, np.delete(2.0 * few, k), eta=2.0, Q=3.0)
        assert alone(few[k : k + 1])[0] == pytest.approx(eps[k], rel=1e-12)
    for curve in curves:
        height = curve(np.linspace(1e-3, 1.0, 3001))
        assert np.all(np.diff(height) <= 1e-13 * height[:-1])
    assert curves[0](np.array([1.0]))[0] == 0.0


def test_step_from_first_to_second_rank_is_the_predicted_factor(
    uniform_market: tuple[Array, list[Curve], Array],
) -> None:
    """Passing the next report multiplies epsilon by (N - h + 1)^(-2/3) (docs/theory.md), h the number kept there."""
    c, curves, _ = uniform_market
    before, after = curves[0](c[1] * np.array([1 - 1e-13, 1 + 1e-13]))
    kept = sum(float(curve(c[k : k + 1])[0]) > 0 for k, curve in enumerate(curves))
    ratio = (before / after) ** 1.5
    assert ratio == pytest.approx(round(ratio), rel=1e-9)
    assert abs(round(ratio) - (12 - kept + 1)) <= 1
    assert ratio > 1.5


def test_payment_is_the_envelope_difference(uniform_market: tuple[Array, list[Curve], Array]) -> None:
    """For v = 2z the integral of epsilon is [G(v_k -> 2) - G(v)]/2 (docs/theory.md)."""
    c, curves, payments = uniform_market
    v = 2.0 * c
    here = threshold_minimum(v, eta=2.0, Q=3.0, zeta=1.0)
    for k in range(12):
        raised = v.copy()
        raised[k] = 2.0
        area = (threshold_minimum(raised, eta=2.0, Q=3.0, zeta=1.0) - here) / 2.0
        assert payments[k] == pytest.approx(c[k] * float(curves[k](c[k : k + 1])[0]) + area, rel=1e-11, abs=1e-14)


def test_trapezoid_payments_come_close_at_two_thousand_points(
    uniform_market: tuple[Array, list[Curve], Array],
) -> None:
    """Each jump costs the trapezoid half a cell, so 2,000 points give about three digits and no more."""
    c, _, payments = uniform_market
    naive = trapezoid_payments_on_grid(c, double, 1.0, eta=2.0, Q=3.0)
    finer = trapezoid_payments_on_grid(c, double, 1.0, eta=2.0, Q=3.0, points=32000)
    assert naive == pytest.approx(payments, rel=5e-3)
    assert finer == pytest.approx(payments, rel=5e-4)
    assert np.array_equal(naive == 0.0, payments == 0.0)
