"""Payments under caps on p and on ε: what the caps do to ε's curve goes into the payments, bound included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.stats

import jsam
from jsam.mechanism.families import RangeMechanism
from tests.conftest import number_of
from tests.mechanism.curves import replanned
from tests.mechanism.test_payments import IRREGULAR, drawn, error_bounds
from tests.oracles import dense_payment

PRIORS: dict[str, Any] = {
    "uniform": scipy.stats.uniform(0, 1),
    "beta": scipy.stats.beta(2, 5),
    "lognorm": scipy.stats.lognorm(s=0.9, scale=0.3),
    "two peaks": IRREGULAR["two peaks"],
    "a gap": IRREGULAR["a gap"],
}


def check(mechanism: RangeMechanism, market: jsam.Market) -> None:
    """Payments against whole markets solved anew, within 1e-6 and within the certified bound.

    These are the payments of the cheapest, of the dearest who is kept and of one between; of everybody under
    `make soak`.
    """
    contract, bounds = jsam.plan(market, mechanism), error_bounds(mechanism, market)
    assert contract.payments is not None
    assert np.all(contract.payments[contract.epsilons == 0] == 0)
    kept = np.argsort(contract.virtual_costs, kind="stable")[: contract.num_selected]
    places = np.linspace(0, len(kept) - 1, min(len(kept), number_of(quick=3, full=len(kept))))
    for k in kept[places.astype(int)]:
        c, top = market.sensitivities[k], market.cost_of(int(k)).top
        exact, error = dense_payment(replanned(mechanism, market, int(k)), c, top, rel_tol=1e-9, jump_width=1e-11)
        assert contract.payments[k] == pytest.approx(exact, rel=1e-6, abs=0)
        assert abs(contract.payments[k] - exact) <= bounds[k] + 2 * error + 1e-14 * exact
        assert bounds[k] <= 2e-7 * contract.payments[k]


@pytest.mark.parametrize("name", PRIORS)
@pytest.mark.parametrize("kind", ["p", "epsilon", pytest.param("both", marks=pytest.mark.slow)])
def test_capped_payments_against_the_bisecting_oracle(name: str, kind: str) -> None:
    """Random caps that bind: on p (also between corners), on ε (with a kink wherever somebody reaches the cap)."""
    prior = PRIORS[name]
    rng = np.random.default_rng([len(name), len(kind)])
    for seed in range(number_of(quick=2, full=3)):
        n = int(rng.integers(2, 12))
        market = jsam.Market(sensitivities=drawn(prior, n, seed), prior=prior)
        eta = float(10 ** rng.uniform(-0.3, 1.7))
        caps: dict[str, float] = {}
        if kind != "epsilon":
            caps["max_selection_prob"] = float(rng.uniform(1.05 / n, 0.9))
        if kind != "p":
            free = jsam.plan(market, jsam.JSAM(loss_weight=eta, noise_weight=2.0), payments=False)
            caps["max_epsilon"] = float(free.epsilons.max() * rng.uniform(0.2, 0.9))
        if np.isinf(market.cost_of(0).at_top) and (n - 1) * caps.get("max_selection_prob", 1.0) < 1:
            continue  # nobody can ever be dropped: the tail decides, as the tests without caps show
        check(jsam.JSAM(loss_weight=eta, noise_weight=2.0, **caps), market)


def test_a_kink_where_somebody_reaches_the_cap_is_not_smoothed_over() -> None:
    """Seven exponential clients: others reach the cap on ε while one client's report moves, at unchanged p."""
    c = [0.39767665557, 0.21189955348, 0.37950890098, 0.852255168, 0.74606083886, 0.36777021405, 1.55647404749]
    market = jsam.Market(sensitivities=np.array(c), prior=scipy.stats.expon())
    check(jsam.JSAM(loss_weight=6.18885338, noise_weight=2.0, max_epsilon=0.427933321), market)


def test_caps_under_the_other_mechanisms() -> None:
    market = jsam.Market(sensitivities=drawn(PRIORS["beta"], 7, 3), prior=PRIORS["beta"])
    check(jsam.FSBM(num_selected=4, loss_weight=3.0, max_epsilon=1.0), market)
    check(jsam.FSBM(num_selected=4, loss_weight=3.0, max_selection_prob=0.25), market)
    uniform = jsam.Market(sensitivities=drawn(PRIORS["uniform"], 7, 3), prior=PRIORS["uniform"])
    check(jsam.USBM(loss_weight=3.0, max_epsilon=1.0), uniform)


def test_a_binding_cap_on_epsilon_is_paid_at_the_cap() -> None:
    """One client, U(0, 1), capped all the way: ε = E to the top of the support, so π = E."""
    market = jsam.Market(sensitivities=np.array([0.25]), prior=scipy.stats.uniform(0, 1))
    contract = jsam.plan(market, jsam.JSAM(loss_weight=100.0, max_epsilon=0.5))
    assert contract.epsilons.tolist() == [0.5]
    assert contract.payments == pytest.approx([0.5], rel=1e-14)


@pytest.mark.parametrize(
    ("eta", "Q", "cap"), [(5.0, 1.0, 1e-4), (1e3, 53.0, 1e-5), (1e4, 53.0, 1e-6), (5.0, 1.0, 1e-100)]
)
def test_payments_keep_their_digits_where_the_loss_is_all_of_the_objective(eta: float, Q: float, cap: float) -> None:
    """Everybody sells the cap whatever it reports, so it is paid cap times top; G is up to 1e16 times larger."""
    reports = np.random.default_rng(7).random(100)
    market = jsam.Market(sensitivities=reports, prior=scipy.stats.uniform(0, 1))
    contract = jsam.plan(market, jsam.JSAM(loss_weight=eta, noise_weight=Q, max_epsilon=cap))
    assert contract.payments is not None
    assert np.all(contract.epsilons == cap)
    np.testing.assert_allclose(contract.payments, cap, rtol=1e-12)


def test_a_cap_on_epsilon_whose_square_overflows_changes_nothing() -> None:
    market = jsam.Market(sensitivities=np.array([0.2, 0.5, 0.9]), prior=scipy.stats.uniform(0, 1))
    free, capped = (jsam.plan(market, jsam.JSAM(loss_weight=5.0, max_epsilon=cap)) for cap in (None, 1e300))
    assert capped.total_payment == pytest.approx(free.total_payment, rel=1e-12)
