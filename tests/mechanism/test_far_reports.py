"""Reports so far out, or so far down, that the prior's functions have underflowed: what is paid stays a number."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.stats

import jsam
from jsam.errors import InputError, NotFiniteError, NotSupportedError
from jsam.mechanism._arrays import FloatArray
from jsam.mechanism.contract import Contract
from jsam.mechanism.families.base import Replanning
from jsam.mechanism.pricing.regular import PROVED, is_proved_regular
from jsam.mechanism.pricing.virtual_cost import LARGEST, VirtualCost
from tests.mechanism.curves import replanned
from tests.oracles import dense_payment

# Densities that underflow below the top of their support: c + F/f is infinite there.
UNDERFLOWING: dict[str, Any] = {
    "beta(2, 50)": scipy.stats.beta(2, 50),
    "beta(2, 30)": scipy.stats.beta(2, 30),
    "beta(31, 256)": scipy.stats.beta(31, 256),
    "truncnorm": scipy.stats.truncnorm(33.8, 55.7),
    "truncnorm, shifted": scipy.stats.truncnorm(-3, 60, loc=3),
    "truncexpon": scipy.stats.truncexpon(2000.0),
    "beta(0.5, 40)": scipy.stats.beta(0.5, 40, loc=0.2, scale=4),
}


@pytest.mark.parametrize("name", UNDERFLOWING)
def test_payments_where_the_density_underflows_below_the_top(name: str) -> None:
    """USBM and a lone client by their closed forms with c + F/f by hand up to the very top; a cap on p by replanning.

    USBM's ε is n^(−2/3) B / (S v^(1/3)) with B = sqrt(η√Q) S^(3/4).
    """
    prior, eta, Q = UNDERFLOWING[name], 3.0, 4.0

    def v(z: FloatArray) -> FloatArray:
        with np.errstate(divide="ignore", over="ignore"):
            return np.asarray(z + np.exp(np.log(prior.cdf(z)) - prior.logpdf(z)))

    c = np.asarray(prior.ppf([0.1, 0.5, 0.9]))
    top = float(prior.support()[1])
    market, alone = (jsam.Market(sensitivities=some, prior=prior) for some in (c, c[:1]))
    found = {
        3: jsam.plan(market, jsam.USBM(loss_weight=eta, noise_weight=Q)),
        1: jsam.plan(alone, jsam.JSAM(loss_weight=eta, noise_weight=Q)),
    }
    for n, contract in found.items():
        assert contract.payments is not None
        assert contract.payment_error_bound is not None
        for k in range(n):
            others = float((np.delete(v(c[:n]), k) ** (2 / 3)).sum())

            def curve(z: FloatArray, others: float = others, n: int = n) -> FloatArray:
                S = n ** (-2 / 3) * (others + v(z) ** (2 / 3))
                return np.asarray(n ** (-2 / 3) * math.sqrt(eta * math.sqrt(Q)) / (S**0.25 * np.cbrt(v(z))))

            exact, error = dense_payment(curve, c[k], top, rel_tol=1e-9, jump_width=1e-12)
            assert contract.payments[k] == pytest.approx(exact, rel=1e-6)
            assert abs(contract.payments[k] - exact) <= contract.payment_error_bound + 2 * error + 1e-12 * exact
        assert contract.payment_error_bound <= 3e-7 * contract.payments.max()
    capped = jsam.JSAM(loss_weight=eta, noise_weight=Q, max_selection_prob=0.4)
    contract = jsam.plan(market, capped)
    assert contract.payments is not None
    assert contract.payment_error_bound is not None
    far = market.cost_of(1).far_report()
    exact, error = dense_payment(replanned(capped, market, 1), c[1], far, rel_tol=1e-8, jump_width=1e-9)
    assert contract.payments[1] == pytest.approx(exact, rel=1e-6)
    assert abs(contract.payments[1] - exact) <= contract.payment_error_bound + 2 * error + 1e-12 * exact


@pytest.mark.parametrize("name", ["beta(2, 50)", "truncnorm"])
def test_the_audit_accuses_nobody_where_the_density_underflows(name: str) -> None:
    prior = UNDERFLOWING[name]
    market = jsam.Market(sensitivities=np.asarray(prior.ppf([0.1, 0.5, 0.9])), prior=prior)
    assert jsam.audit(market, jsam.USBM(loss_weight=3.0)).ok


@pytest.mark.parametrize("name", UNDERFLOWING)
def test_the_far_report_is_the_last_with_a_finite_virtual_cost(name: str) -> None:
    cost = VirtualCost.of(UNDERFLOWING[name])
    far = cost.far_report()
    at, after = cost(np.array([far, math.nextafter(far, math.inf)]))
    assert math.isfinite(at)
    assert at <= far + LARGEST
    assert math.isinf(after)
    assert math.isinf(cost.at_top)


@pytest.mark.parametrize("cap", [1e-3, 1e-60, 1e-100])
def test_a_cap_on_epsilon_under_which_the_price_hardly_matters(cap: float) -> None:
    """The client sells its cap up to reports far out; what the bound states is what cannot be told beyond."""
    prior = scipy.stats.truncnorm(33.8, 55.7)
    market = jsam.Market(sensitivities=np.array([34.0]), prior=prior)
    contract = jsam.plan(market, jsam.JSAM(loss_weight=1e3, max_epsilon=cap))
    assert contract.payments is not None
    assert contract.payment_error_bound is not None
    mechanism = jsam.JSAM(loss_weight=1e3, max_epsilon=cap)
    curve, far = replanned(mechanism, market, 0), market.cost_of(0).far_report()
    exact, error = dense_payment(curve, 34.0, far, rel_tol=1e-9, jump_width=1e-12)
    rest = float(curve(np.array([far]))[0]) * (55.7 - far)
    bound = contract.payment_error_bound + 2 * error
    assert exact - bound <= contract.payments[0] <= exact + rest + bound


class Silent:
    """A prior whose functions give no number above 0.6; `scipy.stats` has families that do so for some shapes."""

    def __init__(self) -> None:
        self._whole = scipy.stats.beta(2, 2)

    def support(self) -> tuple[float, float]:
        return 0.0, 1.0

    def logpdf(self, x: Any) -> Any:
        return np.where(np.asarray(x) > 0.6, np.nan, self._whole.logpdf(x))

    def logcdf(self, x: Any) -> Any:
        return self._whole.logcdf(x)

    def ppf(self, q: Any) -> Any:
        return self._whole.ppf(q)

    def isf(self, q: Any) -> Any:
        return self._whole.isf(q)

    def rvs(self, size: Any = 1, random_state: Any = None) -> Any:
        return self._whole.rvs(size=size, random_state=random_state)


KNOWN_BY_LOOKS: dict[str, tuple[Any, float]] = {
    "vonmises_line": (scipy.stats.vonmises_line(4.14, loc=np.pi), 0.3),
    "mielke": (scipy.stats.mielke(2, 3), 5.0),
    "density given in part": (Silent(), 2.0),
    "beta, a pole at the top": (scipy.stats.beta(2, 0.3), 2.0),
    "alpha": (scipy.stats.alpha(1.5660028887101618), 2.0),
    "arcsine": (scipy.stats.arcsine(), 2.0),
}


@pytest.mark.parametrize("name", KNOWN_BY_LOOKS)
def test_a_virtual_cost_known_by_looks_is_a_finite_number_up_to_the_far_report(name: str) -> None:
    prior, eta = KNOWN_BY_LOOKS[name]
    cost = VirtualCost.of(prior)
    assert cost.pieces is not None
    assert np.all(np.isfinite(cost.pieces.starts))
    assert np.all(np.isfinite(cost.pieces.ends))
    z = np.unique(np.concatenate([np.linspace(cost.bottom, min(cost.far_report(), 50.0), 5001), cost.pieces.edges]))
    v = cost(z)
    assert np.all(np.isfinite(v))
    assert np.all(v[1:] >= v[:-1])
    c = np.asarray(prior.ppf([0.7, 0.4, 0.3]))
    market = jsam.Market(sensitivities=c, prior=prior)
    mechanism = jsam.JSAM(loss_weight=eta)
    contract = jsam.plan(market, mechanism)
    assert contract.payments is not None
    assert contract.payment_error_bound is not None
    for k in np.flatnonzero(contract.epsilons > 0):
        exact, error = dense_payment(
            replanned(mechanism, market, int(k)), c[k], cost.far_report(), rel_tol=1e-9, jump_width=1e-11
        )
        assert abs(contract.payments[k] - exact) <= contract.payment_error_bound + 2 * error + 1e-9 * exact


@pytest.mark.parametrize("prior", [scipy.stats.argus(8.7), scipy.stats.semicircular(loc=1)], ids=["argus", "circle"])
def test_lines_between_looks_go_on_to_the_top_where_the_density_underflows(prior: Any) -> None:
    """Nobody is dropped under USBM, so that what lies beyond the far report would be in the stated bound."""
    market = jsam.Market(sensitivities=np.asarray(prior.ppf([0.1, 0.5, 0.9])), prior=prior)
    contract = jsam.plan(market, jsam.USBM(loss_weight=3.0))
    assert market.cost_of(0).far_report() >= math.nextafter(market.cost_of(0).top, 0.0)
    assert contract.payments is not None
    assert contract.payment_error_bound is not None
    assert contract.payment_error_bound <= 3e-7 * contract.payments.max()


def test_a_tail_that_the_prior_cannot_tell_is_refused_with_the_reason() -> None:
    """The distribution function of mielke(2, 3) is 1 from 86,000 on; the integral converges all the same."""
    prior = scipy.stats.mielke(2, 3)
    market = jsam.Market(sensitivities=np.array([0.3, 0.5, 0.8]), prior=prior)
    with pytest.raises(NotSupportedError, match="tells too little of its tail"):
        jsam.plan(market, jsam.USBM(loss_weight=5.0))


def test_a_prior_that_gives_no_number_at_all_is_refused() -> None:
    class Mute(Silent):
        def logcdf(self, x: Any) -> Any:
            return np.full(np.shape(x), np.nan)

    with pytest.raises(InputError, match="give no numbers"):
        VirtualCost.of(Mute())


class Broken(Replanning):
    """A mechanism of a user's own that pays what is no number."""

    name, truthful = "broken", True

    def plan(self, market: jsam.Market, *, payments: bool = True, progress: Any = None) -> Contract:
        good = jsam.plan(market, jsam.JSAM(loss_weight=1.0))
        assert good.payments is not None
        return Contract(**{**vars(good), "payments": np.where(good.epsilons > 0, np.nan, 0.0), "mechanism": self.name})


def test_no_contract_with_a_payment_that_is_no_number_is_handed_out() -> None:
    market = jsam.Market(sensitivities=np.array([0.2, 0.5]), prior=scipy.stats.uniform(0, 1), ids=["a", "b"])
    with pytest.raises(NotFiniteError, match="broken gives client 'a' a payment of nan"):
        jsam.plan(market, Broken())


def shapes(name: str, rng: np.random.Generator) -> tuple[float, ...]:
    """Shapes of a family over six decades, ordered where the family wants it."""
    drawn = np.asarray(10.0 ** rng.uniform(-2, 4, getattr(scipy.stats, name).numargs))
    if name in ("loguniform", "reciprocal"):
        drawn.sort()
    elif name == "truncnorm":
        drawn = np.sort(rng.uniform(-60, 60, 2))
    elif name == "truncpareto":
        drawn[1] += 1
    elif name == "beta":
        drawn[1] = 10.0 ** rng.uniform(0, 4)
    elif name == "triang":
        drawn = rng.uniform(0, 1, 1)
    elif name == "erlang":
        drawn = np.ceil(drawn)
    return tuple(drawn.tolist())


def check_that_it_rises(prior: Any) -> None:
    """v at thousands of reports, most of them where the distribution function is denormal or close to it."""
    bottom, top = (float(x) for x in prior.support())
    with np.errstate(all="ignore"):
        low, high = bottom, (median := float(prior.ppf(0.5)))
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if prior.logcdf(middle) < -745 else (low, middle)
    z = np.concatenate([
        np.linspace(high, median, 3000),
        np.geomspace(max(high, 1e-300), median, 1500),
        bottom + (median - bottom) * np.geomspace(1, 1e12, 500),
    ])  # fmt: skip
    v = VirtualCost.of(prior)(np.unique(z[(z >= bottom) & (z <= top)]))
    finite = np.isfinite(v)
    assert not finite[np.argmin(finite) :].any() or finite.all()  # infinite from some report on
    assert np.all(np.diff(v[finite]) >= -1e-12 * v[finite][1:])


@pytest.mark.parametrize("name", sorted(PROVED))
def test_formulas_that_are_proved_to_rise_do_so_where_doubles_end(name: str) -> None:
    rng = np.random.default_rng([len(name), ord(name[0])])
    family, checked = getattr(scipy.stats, name), 0
    for _ in range(30):
        prior = family(*shapes(name, rng))
        prior = family(*prior.args, loc=max(-float(prior.support()[0]), 0.0))
        with np.errstate(all="ignore"):
            median = float(prior.ppf(0.5))
        if not is_proved_regular(prior) or not prior.support()[0] < median < math.inf:
            continue
        check_that_it_rises(prior)
        checked += 1
        if checked == 8:
            break
    assert checked > 2


@pytest.mark.parametrize(
    "prior",
    [scipy.stats.weibull_min(37.5), scipy.stats.beta(31.5, 256), scipy.stats.chi(30193), scipy.stats.beta(670.5, 33.3)],
    ids=["weibull_min", "beta", "chi", "beta, sharp"],
)
def test_a_distribution_function_that_has_lost_its_digits_counts_as_zero(prior: Any) -> None:
    check_that_it_rises(prior)
