"""Payments without caps, under every kind of prior, against oracles that re-solve and bisect; the certified bound."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.stats

import jsam
from jsam.errors import DivergentPaymentError
from jsam.mechanism._arrays import FloatArray
from jsam.mechanism.families import RangeMechanism
from jsam.mechanism.solver.payments import rents
from jsam.mechanism.solver.response import OwnReport
from jsam.mechanism.solver.rows import SortedRows
from tests.mechanism.curves import Curve, Mixture, replanned
from tests.oracles import brute_force, dense_payment, exact_curve

PRIORS: dict[str, Any] = {
    "beta": scipy.stats.beta(2, 5),
    "beta, density vanishing at neither end": scipy.stats.beta(1.5, 1),
    "lognorm": scipy.stats.lognorm(s=0.5, scale=0.3),
    "truncnorm": scipy.stats.truncnorm(-2, 2, loc=0.5, scale=0.2),
    "expon": scipy.stats.expon(scale=0.4),
    "halfcauchy": scipy.stats.halfcauchy(),
    "pareto": scipy.stats.pareto(2.5, scale=0.2),
}
IRREGULAR: dict[str, Any] = {
    "two peaks": Mixture(scipy.stats.beta(20, 5), scipy.stats.beta(5, 20)),
    "a gap": Mixture(scipy.stats.uniform(0, 0.3), scipy.stats.uniform(0.6, 0.4)),
    "U-shaped": scipy.stats.beta(0.6, 0.7),
    "histogram": scipy.stats.rv_histogram(np.histogram(np.random.default_rng(0).beta(2, 5, 500), bins=12)),
    "empirical": jsam.EmpiricalPrior(reports=np.random.default_rng(1).lognormal(-1, 0.6, 40)),
}


def by_hand(prior: Any) -> Curve:
    """v = c + F/f from the distribution's own functions."""

    def v(z: FloatArray) -> FloatArray:
        with np.errstate(over="ignore"):  # far out v passes the largest double
            return np.asarray(z + np.exp(prior.logcdf(z) - prior.logpdf(z)))

    return v


def drawn(prior: Any, n: int, seed: int) -> FloatArray:
    return np.asarray(prior.rvs(size=n, random_state=np.random.default_rng(seed)), dtype=np.float64)


def error_bounds(mechanism: RangeMechanism, market: jsam.Market) -> FloatArray:
    """The bound that the quadrature certifies for each client (0 for those who are not selected)."""
    contract = jsam.plan(market, mechanism)
    own = OwnReport(rule=mechanism.rule(market.num_clients), base=SortedRows.of(market.virtual_costs))
    ranks = np.flatnonzero(contract.epsilons[own.base.order[0]] > 0)
    clients = own.base.order[0][ranks]
    earned, error_bounds = rents(
        own,
        ranks,
        market.sensitivities[clients],
        contract.epsilons[clients],
        market.cost_of(0),
        contract.objective,
    )
    assert contract.payments is not None
    paid = market.sensitivities[clients] * contract.epsilons[clients] + earned
    assert contract.payments[clients] == pytest.approx(paid, rel=1e-12)
    bounds = np.zeros(market.num_clients)
    bounds[clients] = error_bounds
    assert contract.payment_error_bound == pytest.approx(bounds.max(), rel=1e-9)
    return bounds


@pytest.mark.parametrize("ends", [(0.0, 1.0), (0.2, 3.0)])
@pytest.mark.parametrize("n", [1, 2, 5, 20])
def test_uniform_payments_are_exact(n: int, ends: tuple[float, float]) -> None:
    """Every client against re-solving with bisected jumps: 1e-10, as no quadrature takes part."""
    bottom, top = ends
    prior = scipy.stats.uniform(bottom, top - bottom)
    for seed, eta in enumerate([0.05, 1.0, 6.0, 200.0]):
        c = drawn(prior, n, seed)
        market = jsam.Market(sensitivities=c, prior=prior)
        contract = jsam.plan(market, jsam.JSAM(loss_weight=eta, noise_weight=3.0, bias_weight=0.7))
        assert contract.payments is not None
        v = 2 * c - bottom
        for k in range(n):
            curve = exact_curve(lambda z: 2 * z - bottom, np.delete(v, k), eta=eta, Q=3.0, zeta=0.7)
            exact, _ = dense_payment(curve, c[k], top, rel_tol=1e-12)
            assert contract.epsilons[k] == pytest.approx(curve(c[k : k + 1])[0], rel=1e-12, abs=0)
            assert contract.payments[k] == pytest.approx(exact, rel=1e-10, abs=0)


@pytest.mark.parametrize("name", PRIORS)
def test_general_payments_against_the_bisecting_oracle(name: str) -> None:
    """Within 1e-6 of re-solving with v computed by hand, within the certified bound, and that within 2e-7 of each."""
    prior = PRIORS[name]
    top = float(prior.support()[1])
    for seed, (n, eta) in enumerate([(2, 4.0), (9, 0.6), (9, 3.0), (14, 40.0)]):
        c = drawn(prior, n, seed)
        market = jsam.Market(sensitivities=c, prior=prior)
        mechanism = jsam.JSAM(loss_weight=eta, noise_weight=2.0)
        contract, bounds = jsam.plan(market, mechanism), error_bounds(mechanism, market)
        assert contract.payments is not None
        assert not contract.ironed
        v = by_hand(prior)(c)
        assert contract.virtual_costs == pytest.approx(v, rel=1e-12)
        for k in np.flatnonzero(contract.epsilons > 0):
            curve = exact_curve(by_hand(prior), np.delete(v, k), eta=eta, Q=2.0)
            exact, error = dense_payment(curve, c[k], top, rel_tol=1e-10, jump_width=1e-12)
            assert contract.payments[k] == pytest.approx(exact, rel=1e-6, abs=0)
            assert abs(contract.payments[k] - exact) <= bounds[k] + 2 * error
            assert bounds[k] <= 2e-7 * contract.payments[k]


@pytest.mark.parametrize("name", IRREGULAR)
def test_ironed_payments_against_the_bisecting_oracle(name: str) -> None:
    """Flats make ties, jumps and kinks; each market of the oracle is sorted and solved on its own, ties by position."""
    prior = IRREGULAR[name]
    for seed, (n, eta) in enumerate([(1, 2.0), (3, 4.0), (10, 0.6), (16, 4.0), (23, 3.0)]):
        c = drawn(prior, n, seed)
        market = jsam.Market(sensitivities=c, prior=prior)
        mechanism = jsam.JSAM(loss_weight=eta, noise_weight=2.0)
        contract, bounds = jsam.plan(market, mechanism), error_bounds(mechanism, market)
        assert contract.payments is not None
        assert contract.ironed
        for k in np.flatnonzero(contract.epsilons > 0):
            cost = market.cost_of(int(k))
            if n == 1 and math.isinf(cost.at_top):
                continue  # never dropped: see the tests of tails
            curve = replanned(mechanism, market, int(k))
            exact, error = dense_payment(curve, c[k], cost.top, rel_tol=1e-9, jump_width=1e-11)
            assert contract.payments[k] == pytest.approx(exact, rel=1e-6, abs=0)
            assert abs(contract.payments[k] - exact) <= bounds[k] + 2 * error
            assert bounds[k] <= 2e-7 * contract.payments[k]


def test_whoever_is_kept_on_a_flat_is_paid_for_all_of_it() -> None:
    """Tied clients can stand in for each other, so G does not rise when one leaves; the tie order still keeps it.

    Two markets where this decides: a flat that reaches the top of the support, and one in the middle with several
    clients on it of whom only some are kept.
    """
    u_shaped = scipy.stats.beta(2, 0.85)
    market = jsam.Market(sensitivities=np.array([0.95]), prior=u_shaped)
    (flat,) = market.cost_of(0).flats
    assert flat.low < 0.95 < flat.high
    contract = jsam.plan(market, jsam.JSAM(loss_weight=1.0))
    assert contract.payments is not None
    assert contract.payments[0] == pytest.approx(1.0 * contract.epsilons[0], rel=1e-9)

    gap = IRREGULAR["a gap"]
    market = jsam.Market(sensitivities=np.array([0.05, 0.62, 0.25, 0.61, 0.64, 0.66]), prior=gap)
    (flat,) = market.cost_of(0).flats
    tied = np.flatnonzero((market.sensitivities > flat.low) & (market.sensitivities < flat.high))
    for eta in np.geomspace(0.1, 10, 200):
        contract = jsam.plan(market, jsam.JSAM(loss_weight=float(eta)), payments=False)
        if 0 < (contract.epsilons[tied] > 0).sum() < len(tied):
            break
    else:
        pytest.fail("no loss weight keeps only some of the tied clients")
    contract = jsam.plan(market, jsam.JSAM(loss_weight=float(eta)))
    assert contract.payments is not None
    kept = tied[contract.epsilons[tied] > 0]
    assert contract.payments[kept] == pytest.approx(flat.high * contract.epsilons[kept], rel=1e-3)


def test_one_prior_a_client() -> None:
    """Heterogeneous priors, uniform and irregular ones among them: everybody's payment by its own virtual cost."""
    priors = [*PRIORS.values(), *IRREGULAR.values(), scipy.stats.uniform(0.1, 0.8), scipy.stats.uniform(0, 2)]
    c = np.array([float(np.ravel(drawn(prior, 1, i))[0]) for i, prior in enumerate(priors)])
    market = jsam.Market(sensitivities=c, prior=priors)
    for eta in (1.0, 8.0):
        mechanism = jsam.JSAM(loss_weight=eta, noise_weight=2.0)
        contract = jsam.plan(market, mechanism)
        assert contract.payments is not None
        assert contract.num_selected >= 3
        for k in np.flatnonzero(contract.epsilons > 0):
            exact, _ = dense_payment(
                replanned(mechanism, market, int(k)), c[k], market.cost_of(int(k)).top, rel_tol=1e-9, jump_width=1e-11
            )
            assert contract.payments[k] == pytest.approx(exact, rel=1e-6, abs=0)


def test_a_tighter_tolerance_is_kept() -> None:
    """`tolerance` is what the bound is driven to."""
    c = drawn(PRIORS["beta"], 12, 5)
    market = jsam.Market(sensitivities=c, prior=PRIORS["beta"])
    reference, _ = zip(
        *(
            dense_payment(
                exact_curve(by_hand(PRIORS["beta"]), np.delete(market.virtual_costs, k), eta=3.0, Q=1.0), c[k], 1.0
            )
            for k in range(12)
        ),
        strict=True,
    )
    for tolerance in (1e-4, 1e-7, 1e-9):
        contract = jsam.plan(market, jsam.JSAM(loss_weight=3.0, tolerance=tolerance))
        assert contract.payments == pytest.approx(np.array(reference), rel=tolerance, abs=0)


def test_envelope_identity() -> None:
    """∂G/∂v_k = ε_k: the tangent lies above G everywhere (G is concave) and touches it (central differences)."""
    rng = np.random.default_rng(6)
    prior = scipy.stats.uniform(0, 100)
    for _ in range(20):
        c = 10.0 ** rng.uniform(-2, 1.5, 8)
        market = jsam.Market(sensitivities=c, prior=prior)
        mechanism = jsam.JSAM(loss_weight=float(10 ** rng.uniform(-0.5, 2)))
        here = jsam.plan(market, mechanism, payments=False)
        for k in range(8):
            for z in c[k] * 10.0 ** rng.uniform(-2, 0.5, 6):
                there = jsam.plan(market.with_report(k, float(z)), mechanism, payments=False).objective
                assert there <= (here.objective + here.epsilons[k] * 2 * (z - c[k])) * (1 + 1e-12)
            step = 1e-5 * c[k]
            up, down = (jsam.plan(market.with_report(k, c[k] + s), mechanism, payments=False) for s in (step, -step))
            slope = (up.objective - down.objective) / (4 * step)
            if up.num_selected == down.num_selected and abs(up.epsilons[k] / max(down.epsilons[k], 1e-300) - 1) < 0.1:
                assert slope == pytest.approx(here.epsilons[k], rel=1e-4, abs=1e-7 * here.objective / c[k])


def test_epsilon_falls_by_a_known_factor_from_rank_one_to_two() -> None:
    """Passing the next client, a client gives up the spare draws: ε drops by exactly (N − h + 1)^(2/3)."""
    rng = np.random.default_rng(7)
    seen = set()
    for _ in range(40):
        n = int(rng.integers(2, 30))
        c = np.sort(rng.uniform(0.05, 1, n))
        market = jsam.Market(sensitivities=c, prior=scipy.stats.uniform(0, 1))
        mechanism = jsam.JSAM(loss_weight=float(10 ** rng.uniform(0, 1.5)), noise_weight=2.0)
        around = [c[1] * (1 - 1e-14), c[1] * (1 + 1e-14)]
        before, after = (jsam.plan(market.with_report(0, float(z)), mechanism, payments=False) for z in around)
        h = before.num_selected
        assert after.num_selected == h
        if h > 1:
            assert before.epsilons[0] / after.epsilons[0] == pytest.approx((n - h + 1) ** (2 / 3), rel=1e-12)
            seen.add(n - h + 1)
    assert len(seen) > 5


def test_excluded_clients_give_and_get_nothing_and_nobody_loses() -> None:
    rng = np.random.default_rng(8)
    for prior in (scipy.stats.uniform(0, 1), PRIORS["beta"], IRREGULAR["two peaks"]):
        for eta in (0.2, 2.0, 20.0):
            c = drawn(prior, 40, int(rng.integers(1000)))
            contract = jsam.plan(jsam.Market(sensitivities=c, prior=prior), jsam.JSAM(loss_weight=eta))
            assert contract.payments is not None
            out = contract.selection_probs == 0
            assert np.all(contract.epsilons[out] == 0)
            assert np.all(contract.payments[out] == 0)
            assert np.all(contract.payments[~out] >= c[~out] * contract.epsilons[~out])


def lone_epsilon(eta: float, Q: float, v: Curve) -> Curve:
    """N = 1: ε = sqrt(η√Q / v)."""
    return lambda z: np.sqrt(eta * math.sqrt(Q) / v(z))


def by_quad(curve: Curve, c: float) -> float:
    """c ε(c) + ∫ from c to infinity, scipy's quad on the logarithm in steps of a factor e³."""

    def inside(x: float) -> float:
        return float(curve(np.array([math.exp(x)]))[0]) * math.exp(x)

    start, total = math.log(c), 0.0
    while True:
        piece, _ = scipy.integrate.quad(inside, start, start + 3, epsabs=0, epsrel=1e-11, limit=200)
        total, start = total + piece, start + 3
        if piece < 1e-12 * total:
            return c * float(curve(np.array([c]))[0]) + total


LIGHT_TAILS: dict[str, Any] = {
    "pareto(1.5)": scipy.stats.pareto(1.5, scale=0.3),
    "expon": scipy.stats.expon(scale=0.5),
    "lognorm": scipy.stats.lognorm(s=1.0, scale=0.3),
    "halfnorm": scipy.stats.halfnorm(scale=0.4),
}
HEAVY_TAILS: dict[str, Any] = {
    "pareto(1)": scipy.stats.pareto(1.0, scale=0.3),
    "pareto(0.7)": scipy.stats.pareto(0.7, scale=0.3),
    "halfcauchy": scipy.stats.halfcauchy(scale=0.5),
}


@pytest.mark.parametrize("name", LIGHT_TAILS)
def test_a_lone_client_with_a_light_tail(name: str) -> None:
    prior = LIGHT_TAILS[name]
    c = float(prior.ppf(0.4))
    contract = jsam.plan(
        jsam.Market(sensitivities=np.array([c]), prior=prior), jsam.JSAM(loss_weight=3.0, noise_weight=4.0)
    )
    assert contract.payments is not None
    exact = by_quad(lone_epsilon(3.0, 4.0, by_hand(prior)), c)
    assert contract.payments[0] == pytest.approx(exact, rel=1e-6)
    assert contract.payment_error_bound is not None
    assert abs(contract.payments[0] - exact) <= contract.payment_error_bound + 1e-9 * exact


@pytest.mark.parametrize("name", LIGHT_TAILS)
def test_unbiased_selection_with_a_light_tail(name: str) -> None:
    """USBM drops nobody: ε_k(z) = n^(−2/3) B / (S v^(1/3)) with B = sqrt(η√Q) S^(3/4), all the way to infinity."""
    prior, eta, Q = LIGHT_TAILS[name], 3.0, 4.0
    c = np.asarray(prior.ppf([0.1, 0.5, 0.9]))
    market = jsam.Market(sensitivities=c, prior=prior, losses=np.array([3.0, 2.0, 1.0]))
    v = by_hand(prior)
    contract = jsam.plan(market, jsam.USBM(loss_weight=eta, noise_weight=Q))
    same = jsam.plan(market, jsam.BBM(num_selected=3, loss_weight=eta, noise_weight=Q))
    assert contract.payments is not None
    assert same.payments == pytest.approx(contract.payments, rel=1e-12)
    for k in range(3):
        others = float((np.delete(v(c), k) ** (2 / 3)).sum())

        def curve(z: FloatArray, others: float = others) -> FloatArray:
            S = 3 ** (-2 / 3) * (others + v(z) ** (2 / 3))
            return np.asarray(3 ** (-2 / 3) * math.sqrt(eta * math.sqrt(Q)) / (S**0.25 * np.cbrt(v(z))))

        assert contract.payments[k] == pytest.approx(by_quad(curve, c[k]), rel=1e-6)


@pytest.mark.parametrize("name", HEAVY_TAILS)
def test_a_heavy_tail_is_refused_where_nobody_is_dropped(name: str) -> None:
    prior = HEAVY_TAILS[name]
    c = np.asarray(prior.ppf([0.2, 0.5, 0.8]))
    market = jsam.Market(sensitivities=c, prior=prior, losses=np.array([3.0, 2.0, 1.0]))
    alone = jsam.Market(sensitivities=c[:1], prior=prior)
    cases: list[tuple[jsam.Market, RangeMechanism]] = [
        (market, jsam.USBM(loss_weight=3.0)),
        (market, jsam.BBM(num_selected=2, loss_weight=3.0)),
        (alone, jsam.JSAM(loss_weight=3.0)),
    ]
    for case, mechanism in cases:
        with pytest.raises(DivergentPaymentError, match="tail makes payments diverge") as caught:
            jsam.plan(case, mechanism)
        assert "\n" not in str(caught.value)
        jsam.plan(case, mechanism, payments=False)  # the plan itself exists


@pytest.mark.parametrize("name", HEAVY_TAILS)
def test_jsam_pays_finitely_under_any_tail(name: str) -> None:
    """With two clients or more anybody can be dropped, so the integral ends; FSBM-1 of 3 likewise."""
    prior = HEAVY_TAILS[name]
    c = np.asarray(prior.ppf([0.2, 0.5, 0.8]))
    market = jsam.Market(sensitivities=c, prior=prior)
    for mechanism in (jsam.JSAM(loss_weight=30.0), jsam.FSBM(num_selected=1, loss_weight=3.0)):
        contract = jsam.plan(market, mechanism)
        assert contract.payments is not None
        for k in np.flatnonzero(contract.epsilons > 0):
            exact, _ = dense_payment(replanned(mechanism, market, int(k)), c[k], math.inf, rel_tol=1e-9)
            assert contract.payments[k] == pytest.approx(exact, rel=1e-6)


def test_two_clients_by_hand() -> None:
    """N = 2, U(0, 1): ε and exclusion from the full brute force, point by point, then one trapezoid."""
    c, eta = np.array([0.3, 0.5]), 3.0
    contract = jsam.plan(jsam.Market(sensitivities=c, prior=scipy.stats.uniform(0, 1)), jsam.JSAM(loss_weight=eta))
    assert contract.payments is not None
    for k in range(2):
        z = np.linspace(c[k], 1, 150)
        eps = []
        for report in z:
            v = 2 * c
            v[k] = 2 * report
            eps.append(brute_force(v, eta=eta, Q=1.0, starts=0)[2][k])
        paid = c[k] * eps[0] + float(np.trapezoid(eps, z))
        assert contract.payments[k] == pytest.approx(paid, rel=1e-2)


def test_progress_counts_every_paid_client_once() -> None:
    prior = PRIORS["beta"]
    market = jsam.Market(sensitivities=drawn(prior, 200, 9), prior=prior)
    counted: list[int] = []
    contract = jsam.plan(market, jsam.JSAM(loss_weight=9.0), progress=counted.append)
    assert sum(counted) == contract.num_selected
    assert len(counted) > 1


def test_many_jumps_of_the_virtual_cost() -> None:
    """A histogram's v jumps at every bin, for each client elsewhere in its mesh: the bound is reached all the same."""
    prior = IRREGULAR["histogram"]
    for eta in (97.0,):
        market = jsam.Market(sensitivities=drawn(prior, 30, 10), prior=prior)
        mechanism = jsam.JSAM(loss_weight=eta)
        contract, bounds = jsam.plan(market, mechanism), error_bounds(mechanism, market)
        assert contract.payments is not None
        assert contract.num_selected > 15
        assert np.all(bounds <= 2e-7 * contract.payments)
