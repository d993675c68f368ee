"""Rents of very many clients to all their digits: against fifty digits, and against payments of fewer clients."""

from __future__ import annotations

import functools
from decimal import Decimal, localcontext

import numpy as np
import pytest
import scipy.stats

import jsam
from jsam.mechanism._arrays import FloatArray
from jsam.mechanism.families import RangeMechanism
from jsam.mechanism.families.even import EvenJSAM
from jsam.mechanism.solver import payments
from jsam.mechanism.solver.closed_form import Origin
from jsam.mechanism.solver.differences import rises
from jsam.mechanism.solver.rows import SortedRows
from tests.oracles import DIGITS, exact_cost

UNIFORM = scipy.stats.uniform(0, 1)


@functools.cache
def weight(v: Decimal) -> Decimal:
    return v ** (Decimal(2) / 3)


def exact_objective(mechanism: RangeMechanism, v: list[float]) -> Decimal:
    """The least objective over the mechanism's range, from its levels and biases as they are, in fifty digits."""
    costs = sorted(map(Decimal, v))
    sums = [Decimal(0)]
    for cost in costs:
        sums.append(sums[-1] + weight(cost))
    rule = mechanism.rule(len(v))
    least = Decimal("Infinity")
    for levels, ends, bias in zip(rule.profiles.levels, rule.profiles.ends, rule.profiles.bias, strict=True):
        S, start = Decimal(0), 0
        for level, end in zip(levels.tolist(), ends.tolist(), strict=True):
            S += weight(Decimal(level)) * (sums[end] - sums[start])
            start = end
        d = Decimal(float(bias)) * Decimal(mechanism.bias_weight)
        root_kappa = Decimal(mechanism.noise_weight).sqrt() * S * S.sqrt()
        least = min(least, exact_cost(d, d * d, root_kappa, mechanism.loss_weight)[0])
    return least


def check(mechanism: RangeMechanism, v: FloatArray, top: float, some: int = 100) -> float:
    """Hold every rise against fifty digits, and return the largest error in units of its bound."""
    contract_ranks = np.arange(len(v))[:: max(1, len(v) // some)]
    base = SortedRows.of(v)
    rise, bound = rises(mechanism.rule(len(v)), base, contract_ranks, top)
    ordered = base.v[0].tolist()
    worst = 0.0
    with localcontext() as context:
        context.prec = DIGITS
        now = exact_objective(mechanism, ordered)
        for rank, value, error in zip(contract_ranks.tolist(), rise.tolist(), bound.tolist(), strict=True):
            moved = exact_objective(mechanism, [*ordered[:rank], *ordered[rank + 1 :], top])
            off = abs(float(Decimal(value) - (moved - now)))
            assert error < 1e-12 * float(moved)
            worst = max(worst, off / error if error else float(off > 0))
    return worst


@pytest.mark.parametrize("kind", ["jsam", "even", "cap", "floor"])
def test_rises_hold_their_bound_in_fifty_digits(kind: str) -> None:
    """Small markets over many decades of v and η, with ties and with clients at the top: every client, every range."""
    rng = np.random.default_rng(["jsam", "even", "cap", "floor"].index(kind))
    worst = 0.0
    for _ in range(6 if kind == "cap" else 40):
        n = int(rng.integers(1, 13))
        v = 10.0 ** rng.uniform(-4 * rng.random(), 0, n)
        v[: n // 3] = v[0]
        top = float(v.max() * rng.choice([1.0, 1.5, 30.0]))
        eta, Q = float(10.0 ** rng.uniform(-3, 4)), float(10.0 ** rng.uniform(-3, 3))
        mechanism: RangeMechanism
        if kind == "jsam":
            mechanism = jsam.JSAM(loss_weight=eta, noise_weight=Q)
        elif kind == "cap":
            mechanism = jsam.JSAM(loss_weight=eta, noise_weight=Q, max_selection_prob=min(1.0, 1.7 / n))
        elif kind == "even":
            mechanism = EvenJSAM(loss_weight=eta, noise_weight=Q, bias_weight=0.3)
        else:
            mechanism = EvenJSAM(loss_weight=eta, noise_weight=Q, min_selection_prob=1 / n, min_clients=n)
        worst = max(worst, check(mechanism, v, top))
    assert worst <= 1


@pytest.mark.parametrize("eta", [0.3, 30.0, 3000.0])
def test_digits_are_kept_where_two_optima_lose_them(eta: float) -> None:
    """600 clients: a bound that is true, and far below what the difference of two optima can promise."""
    v = np.random.default_rng(5).uniform(0, 2, 600)
    for mechanism in (jsam.JSAM(loss_weight=eta), EvenJSAM(loss_weight=eta)):
        assert check(mechanism, v, 2.0, some=6) <= 1
        base = SortedRows.of(v)
        rise, bound = rises(mechanism.rule(600), base, np.array([0, 1, 2]), 2.0)
        assert np.all(bound < 1e-11 * rise)


def test_a_change_over_many_decades_is_right_to_the_last_digits() -> None:
    """Changes of d and S from 1e-18 to several times themselves, from κ that matters to κ that does not."""
    rng = np.random.default_rng(1)
    with localcontext() as context:
        context.prec = DIGITS
        for _ in range(400):
            d = 0.0 if rng.random() < 0.1 else float(10.0 ** rng.uniform(-4, 0.3))
            S, eta, Q = (float(10.0 ** rng.uniform(low, high)) for low, high in ((-4, 2), (-3, 4), (-2, 2)))
            bias = float(rng.choice([-0.9 * d, d, 1.0]) * 10.0 ** -rng.uniform(0, 18) * (rng.random() < 0.7))
            sums = float(rng.choice([-0.9, 3.0]) * S * 10.0 ** -rng.uniform(0, 18))
            origin = Origin(bias=d, sums=S, loss_weight=eta, noise_weight=Q)
            (change,), _ = origin.change(np.array([bias]), np.array([sums]))
            (bound,) = origin.rounding(np.array([bias]), np.array([sums]))

            def exact(d: Decimal, S: Decimal, Q: float = Q, eta: float = eta) -> Decimal:
                return exact_cost(d, d * d, Decimal(Q).sqrt() * S * S.sqrt(), eta)[0]

            true = exact(Decimal(d) + Decimal(bias), Decimal(S) + Decimal(sums)) - exact(Decimal(d), Decimal(S))
            assert abs(float(Decimal(float(change)) - true)) <= bound


@pytest.mark.parametrize("mechanism", [jsam.JSAM(loss_weight=20.0), EvenJSAM(loss_weight=2000.0)])
def test_both_ways_pay_the_same(mechanism: RangeMechanism, monkeypatch: pytest.MonkeyPatch) -> None:
    """A market for which the difference of optima still has its digits: clients are paid the same to all of those."""
    market = jsam.Market(sensitivities=np.random.default_rng(2).uniform(0, 1, 3000), prior=UNIFORM)
    usual = jsam.plan(market, mechanism)
    monkeypatch.setattr(payments, "LOST_DIGITS", 0.0)
    precise = jsam.plan(market, mechanism)
    assert usual.payments is not None
    assert precise.payments is not None
    assert usual.payment_error_bound is not None
    assert precise.payment_error_bound is not None
    assert precise.payment_error_bound < usual.payment_error_bound
    assert np.all(np.abs(usual.payments - precise.payments) <= usual.payment_error_bound * 1.01)


def test_payments_of_very_many_are_as_good_as_those_of_few() -> None:
    """Past the number of clients at which optima that are subtracted say too little: the bound does not get worse."""
    market = jsam.Market(sensitivities=np.random.default_rng(3).uniform(0, 1, 400_000), prior=UNIFORM)
    contract = jsam.plan(market, jsam.JSAM(loss_weight=500.0))
    assert contract.payments is not None
    assert contract.payment_error_bound is not None
    assert contract.payment_error_bound < 1e-9 * contract.payments[contract.payments > 0].min()
    # Rents are the integral of a falling ε, so they lie between what neighbours in price say of it.
    order = np.argsort(market.sensitivities)[: contract.num_selected]
    c, eps, paid = market.sensitivities[order], contract.epsilons[order], contract.payments[order]
    rents = paid - c * eps
    steps = np.diff(c)[1:]
    assert np.all(rents[1:-1] - rents[2:] <= eps[1:-1] * steps * 1.01)
    assert np.all(rents[1:-1] - rents[2:] >= eps[2:] * steps * 0.99)
