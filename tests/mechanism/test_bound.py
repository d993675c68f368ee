"""The convergence bound: the form that the planner minimises, and the whole of the paper's Theorem 1."""

from __future__ import annotations

import math

import numpy as np
import pytest

from jsam.errors import InputError
from jsam.mechanism.bound import gradient_norm_bound, loss_bound, noise_term, noise_weight_of, selection_bias


def test_loss_bound_is_its_formula() -> None:
    """d + sqrt(d² + Q Σ p²/ε²), d = ζ‖p − u‖₁, added up by hand."""
    p, eps = np.array([0.5, 0.3, 0.2, 0.0]), np.array([2.0, 1.0, 0.5, 0.0])
    d = 0.25 + 0.05 + 0.05 + 0.25
    noise = 0.25**2 + 0.3**2 + 0.4**2
    assert selection_bias(p) == pytest.approx(d)
    assert noise_term(p, eps) == pytest.approx(noise)
    assert loss_bound(p, eps) == pytest.approx(d + math.sqrt(d**2 + noise))
    found = loss_bound(p, eps, noise_weight=9.0, bias_weight=0.5)
    assert found == pytest.approx(d / 2 + math.sqrt(d**2 / 4 + 9 * noise))


def test_no_bias_against_the_right_shares() -> None:
    p = np.array([0.5, 0.3, 0.2])
    assert selection_bias(p, p) == 0
    # Each counts as 1/3: a client's noise is 1/(N u) times that of an average one.
    assert loss_bound(p, np.ones(3), noise_weight=4.0, data_shares=p) == pytest.approx(2 * math.sqrt(1 / 3))


def test_a_selected_client_without_privacy_budget_makes_it_infinite() -> None:
    assert loss_bound(np.array([0.5, 0.5]), np.array([1.0, 0.0])) == math.inf
    assert loss_bound(np.array([1.0, 0.0]), np.array([1.0, 0.0])) == pytest.approx(1 + math.sqrt(2))


def theorem_1(
    R: float, L: float, D: int, T: int, gap: float, G_clip: float, p: list[float], sigma: list[float], T_k: list[float]
) -> float:
    """Equation (convergence_smooth) of the paper, term after term, with p^u = 1/N."""
    N = len(p)
    distance = sum(abs(p[k] - 1 / N) for k in range(N))
    first = R / 2 * (distance + G_clip)
    inside = sum(p[k] ** 2 * D * T**0.5 * L * sigma[k] ** 2 / T_k[k] for k in range(N))
    second = R / 2 * ((distance + G_clip) ** 2 + 2 * inside) ** 0.5
    third = (gap / T**0.5 + 1 / 2 * 1 / T**0.5 * L * R**2) ** 0.5
    return float(first + second + third)


def test_whole_right_hand_side_is_the_papers() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        n, T, D = int(rng.integers(1, 9)), int(rng.integers(1, 2000)), int(rng.integers(1, 30_000))
        R, L, gap, clip = (float(x) for x in 10.0 ** rng.uniform(-1, 1, 4))
        p = rng.dirichlet(np.ones(n))
        sigma, T_k = 10.0 ** rng.uniform(-3, 1, n), rng.integers(1, T + 1, n).astype(np.float64)
        found = gradient_norm_bound(
            p,
            sigma,
            T_k,
            gradient_bound=R,
            smoothness=L,
            dimension=D,
            rounds=T,
            initial_gap=gap,
            clipping_term=clip,
        )
        literal = theorem_1(R, L, D, T, gap, clip, p.tolist(), sigma.tolist(), T_k.tolist())
        assert found == pytest.approx(literal, rel=1e-13)


def test_clients_that_are_never_drawn_add_no_noise_and_samples_divide_it() -> None:
    p, sigma, times = np.array([0.6, 0.4, 0.0]), np.array([1.0, 2.0, 5.0]), np.array([30.0, 20.0, 0.0])

    def bound(samples: int) -> float:
        return gradient_norm_bound(
            p,
            sigma,
            times,
            gradient_bound=2.0,
            smoothness=1.0,
            dimension=100,
            rounds=50,
            initial_gap=1.0,
            samples=samples,
        )

    bias = (0.6 - 1 / 3) + (0.4 - 1 / 3) + 1 / 3
    noise = 2 * (0.36 / 30 + 0.16 * 4 / 20) * 100 * math.sqrt(50)
    tail = math.sqrt((1 + 0.5 * 4) / math.sqrt(50))
    assert bound(1) == pytest.approx(bias + math.sqrt(bias**2 + noise) + tail, rel=1e-13)
    assert bound(10) == pytest.approx(bias + math.sqrt(bias**2 + noise / 100) + tail, rel=1e-13)


def test_the_simplified_bound_is_the_theorems_lasting_part() -> None:
    """With σ² = c₂² T_k log(1/δ)/ε² (Lemma 1), no clipping term and R = 2, Q of `noise_weight_of` makes both equal."""
    rng = np.random.default_rng(1)
    p, eps = rng.dirichlet(np.ones(6)), 10.0 ** rng.uniform(-1, 1, 6)
    T, D, L, delta, c2, M = 1000, 26_010, 0.7, 1e-5, 1.3, 600
    T_k = rng.integers(1, T, 6).astype(np.float64)
    sigma = c2 * np.sqrt(T_k * math.log(1 / delta)) / eps
    whole = gradient_norm_bound(
        p, sigma, T_k, gradient_bound=2.0, smoothness=L, dimension=D, rounds=T, initial_gap=0.0, samples=M
    )
    vanishing = math.sqrt(0.5 * L * 4 / math.sqrt(T))
    Q = noise_weight_of(rounds=T, dimension=D, smoothness=L, delta=delta, samples=M, c2=c2)
    assert whole - vanishing == pytest.approx(loss_bound(p, eps, noise_weight=Q), rel=1e-12)


def test_noise_weight_of_the_papers_setting() -> None:
    """T = 1000, L = 1, D = 26k, M = 600, δ = 1e-5: Q ≈ 53 c₂²; without the division by M it is 3.6e5 times as much."""
    Q = noise_weight_of(rounds=1000, dimension=26_010, smoothness=1.0, delta=1e-5, samples=600)
    assert round(Q) == 53
    half = noise_weight_of(rounds=1000, dimension=26_010, smoothness=1.0, delta=1e-5, samples=600, c2=0.5)
    assert half == pytest.approx(Q / 4)
    undivided = noise_weight_of(rounds=1000, dimension=26_010, smoothness=1.0, delta=1e-5)
    assert undivided == pytest.approx(Q * 600**2)


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.1, 2.0, math.nan])
def test_delta_out_of_range_is_refused(delta: float) -> None:
    with pytest.raises(InputError, match=r"delta is .*; it must lie strictly between 0 and 1"):
        noise_weight_of(rounds=10, dimension=10, smoothness=1.0, delta=delta)
