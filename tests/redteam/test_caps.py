"""Attacks on the caps: a minimum that is not exact, a cap that drowns the payments, two caps at once."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.stats

import jsam
from jsam.errors import DivergentPaymentError
from jsam.mechanism._arrays import FloatArray
from jsam.mechanism.families import RangeMechanism
from jsam.mechanism.families.base import Mechanism, Replanning
from tests.mechanism.curves import replanned
from tests.mechanism.test_payments import IRREGULAR
from tests.oracles import brute_force, dense_payment

UNIT = scipy.stats.uniform(0, 1)
GAIN = 1e-6  # of the larger payment, true or lied for


def relative_gains(mechanism: Mechanism, market: jsam.Market, client: int, lies: FloatArray) -> FloatArray:
    """What each lie brings a client whose true sensitivity is its report in the market."""
    truth = float(market.sensitivities[client])
    answers = mechanism.respond(market, client, np.concatenate([[truth], lies]))
    earned = answers.payments - truth * answers.epsilons
    total = jsam.plan(market, mechanism).total_payment
    assert total is not None
    scale = np.maximum(np.maximum(answers.payments[0], answers.payments), 1e-9 * total)
    return np.asarray((earned - earned[0])[1:] / np.maximum(scale[1:], 1e-300))


def check_that_lying_does_not_pay(mechanism: Mechanism, market: jsam.Market, client: int, lies: FloatArray) -> None:
    """The best of all lies as the mechanism answers it, and that one again as a market planned from the start."""
    gains = relative_gains(mechanism, market, client, lies)
    assert gains.max() <= GAIN
    best = float(lies[int(gains.argmax())])
    answer = mechanism.respond(market, client, np.array([best]))
    planned = jsam.plan(market.with_report(client, best), mechanism)
    assert planned.payments is not None
    assert planned.epsilons[client] == pytest.approx(answer.epsilons[0], rel=1e-9)
    assert planned.payments[client] == pytest.approx(answer.payments[0], rel=1e-9)


def around(market: jsam.Market, client: int, rng: np.random.Generator, count: int) -> FloatArray:
    """Lies: far, near, and on both sides of each other client's report, where places change."""
    truth, cost = float(market.sensitivities[client]), market.cost_of(client)
    others = np.delete(market.sensitivities, client)
    near = truth * (1 + 10.0 ** rng.uniform(-12, 0, count // 4))
    lies = [truth * 10.0 ** rng.uniform(-2, 2, count), near, others * (1 - 1e-9), others * (1 + 1e-9)]
    return np.clip(np.concatenate(lies), max(cost.bottom, 1e-6 * truth), min(cost.top, 1e8 * truth))


# ---------------------------------------------------------------------------- a cap on p


def test_the_market_in_which_the_wrong_basin_was_taken_passes_its_audit() -> None:
    market = jsam.Market(sensitivities=np.array([0.0013, 0.212]), prior=UNIT)
    assert jsam.audit(market, jsam.JSAM(loss_weight=0.835, max_selection_prob=0.967)).ok


def test_even_stairs_of_epsilon_are_no_false_alarm() -> None:
    """As the report moves, p walks along the list and ε falls in even steps; the auditor's area must see them all."""
    market = jsam.Market(sensitivities=np.array([0.008734688774309895, 0.004537062095286449]), prior=UNIT)
    mechanism = jsam.JSAM(loss_weight=0.23443714202024882, max_selection_prob=0.8041517584167852)
    report = jsam.audit(market, mechanism, clients=[0, 1], grid=8)
    assert report.ok, [check for check in report.checks if check.violations]


def small_market(seed: int) -> tuple[jsam.Market, jsam.JSAM]:
    rng = np.random.default_rng([seed, 14])
    n = 2 + seed % 2
    market = jsam.Market(sensitivities=10.0 ** rng.uniform(-3, 0, n), prior=UNIT)
    cap = 1 / n if seed % 10 == 9 else float(rng.uniform(1 / n, 1))
    bias_weight = 0.0 if seed % 10 == 8 else 1.0
    return market, jsam.JSAM(
        loss_weight=float(10 ** rng.uniform(-2, 1.5)), max_selection_prob=cap, bias_weight=bias_weight
    )


def test_no_lie_pays_under_a_cap_on_p() -> None:
    """Thirty markets of two and three clients, costs over three decades; some without bias, some with cap 1/N."""
    known = jsam.Market(sensitivities=np.array([0.0013, 0.212]), prior=UNIT)
    jump = [(known, jsam.JSAM(loss_weight=0.835, max_selection_prob=0.967))]
    for seed, (market, mechanism) in enumerate(jump + [small_market(seed) for seed in range(30)]):
        rng = np.random.default_rng(seed)
        for client in range(market.num_clients):
            check_that_lying_does_not_pay(mechanism, market, client, around(market, client, rng, 150))


def test_the_loss_against_brute_force_is_as_stated() -> None:
    for seed in range(12):
        market, mechanism = small_market(seed)
        contract = jsam.plan(market, mechanism, payments=False)
        found, _, _ = brute_force(
            market.virtual_costs,
            eta=mechanism.loss_weight,
            Q=1.0,
            zeta=mechanism.bias_weight,
            max_selection_prob=mechanism.max_selection_prob,
            starts=6,
        )
        assert contract.objective <= found * (1 + 1e-6)


class ASearchThatLooks(Replanning):
    """Broken: which points of the curve it tries follows from the reports, as any adaptive search does."""

    name, truthful = "looking", True

    def __init__(self, loss_weight: float, max_selection_prob: float) -> None:
        self.loss_weight, self.max_selection_prob = loss_weight, max_selection_prob

    def plan(self, market: jsam.Market, *, payments: bool = True, progress: Any = None) -> jsam.Contract:
        # Rounding the cap down by a little that hangs on the reports stands for a search that stops a little early.
        off = 1e-3 * (1 + math.sin(1e3 * float(market.sensitivities.sum())))
        exact = jsam.JSAM(loss_weight=self.loss_weight, max_selection_prob=self.max_selection_prob * (1 - off))
        return exact.plan(market, payments=payments, progress=progress)


def test_these_lies_find_a_search_that_is_not_exact() -> None:
    market = jsam.Market(sensitivities=np.array([0.05, 0.3, 0.6]), prior=UNIT)
    broken = ASearchThatLooks(loss_weight=0.3, max_selection_prob=0.5)
    lies = around(market, 0, np.random.default_rng(1), 150)
    assert relative_gains(broken, market, 0, lies).max() > 10 * GAIN


# ---------------------------------------------------------------------------- a low cap on ε


def test_a_cap_that_is_next_to_nothing_is_paid_up_to_the_next_report() -> None:
    """One of two is taken and sells the cap, so it is due what it would be due at the other's report."""
    market = jsam.Market(sensitivities=np.array([0.2, 0.5]), prior=UNIT)
    for cap in (1e-9, 1e-6, 1e-4):
        contract = jsam.plan(market, jsam.FSBM(num_selected=1, loss_weight=100.0, noise_weight=1e4, max_epsilon=cap))
        assert contract.payments == pytest.approx([0.5 * cap, 0.0], rel=1e-12, abs=0)
        assert contract.payment_error_bound is not None
        assert contract.payment_error_bound <= 1e-9 * cap


@pytest.mark.parametrize("name", ["uniform", "truncnorm", "lognorm", "two peaks", "a gap"])
def test_a_low_cap_pays_every_client_of_fsbm_alike(name: str) -> None:
    """Everybody taken sells the cap and would until it asks more than the first who was left out; no cap crashes."""
    priors = {"uniform": UNIT, "truncnorm": scipy.stats.truncnorm(0, 3), "lognorm": scipy.stats.lognorm(s=1.0)}
    prior = {**priors, **IRREGULAR}[name]
    for seed in range(4):
        reports = np.asarray(prior.rvs(size=20, random_state=np.random.default_rng([seed, 15])))
        market = jsam.Market(sensitivities=reports, prior=prior)
        for cap in (1e-9, 1e-3):
            mechanism = jsam.FSBM(num_selected=5, loss_weight=100.0, noise_weight=1e4, max_epsilon=cap)
            contract = jsam.plan(market, mechanism)
            taken = contract.epsilons > 0
            assert contract.payments is not None
            assert contract.payment_error_bound is not None
            assert np.all(contract.epsilons[taken] == cap)
            # On an ironed stretch several reports are worth the same to the server; places there go by position.
            v, group = market.virtual_costs, market.cost_of(0)
            sixth = np.argsort(v, kind="stable")[5]
            first, last = _reports_of(group, float(v[sixth]), float(reports[sixth]))
            limit = np.where(np.arange(20) < sixth, last, first)
            off = np.abs(contract.payments - limit * cap)[taken]
            assert off.max() <= 1e-9 * cap * limit.max()


def _reports_of(cost: Any, v: float, report: float) -> tuple[float, float]:
    """The lowest and the highest report that have the virtual cost of this one."""
    for flat in cost.flats:
        if flat.level == v:
            grid = np.linspace(flat.low, flat.high, 3)
            assert np.all(np.isclose(cost(grid[1:-1]), v))
            return float(flat.low), float(flat.high)
    return report, report


def wide_market(seed: int) -> tuple[jsam.Market, RangeMechanism]:
    """Costs, caps, η and Q over many decades, all mechanisms."""
    rng = np.random.default_rng([seed, 99])
    n = int(rng.integers(1, 6))
    prior = [
        scipy.stats.uniform(0, 10.0 ** rng.uniform(-6, 6)),
        scipy.stats.loguniform(1e-9, 1e3),
        scipy.stats.lognorm(s=rng.uniform(0.3, 5)),
    ][seed % 3]
    reports = np.asarray(prior.rvs(size=n, random_state=rng))
    if seed % 6 == 0:
        reports = float(prior.support()[1]) * 10.0 ** rng.uniform(-12, 0, n)
    if seed % 4 == 1:
        reports[n // 2 :] = reports[n // 2]  # ties
    options: dict[str, Any] = {
        "loss_weight": 10.0 ** rng.uniform(-3, 6),
        "noise_weight": 10.0 ** rng.uniform(-6, 6),
        "bias_weight": float(rng.choice([0.0, 1.0, 10.0 ** rng.uniform(-3, 3)])),
        "max_epsilon": 10.0 ** rng.uniform(-9, 3),
    }
    if seed % 5 == 0:
        options["max_selection_prob"] = float(rng.choice([1 / n, rng.uniform(1 / n, 1)]))
    fewest = math.ceil(1 / options.get("max_selection_prob", 1.0) - 1e-9)
    size = int(rng.integers(min(fewest, n), n + 1))
    mechanism: RangeMechanism = [
        jsam.JSAM(**options),
        jsam.FSBM(num_selected=size, **options),
        jsam.BBM(num_selected=size, **options),
        jsam.USBM(**options),
    ][seed % 7 % 4]
    return jsam.Market(sensitivities=reports, prior=prior, losses=rng.random(n)), mechanism


def dense(mechanism: RangeMechanism, market: jsam.Market, client: int) -> tuple[float, float]:
    """The payment from whole markets solved anew, decade by decade of the report, with an error estimate."""
    curve, c = replanned(mechanism, market, client), float(market.sensitivities[client])
    top = market.cost_of(client).top
    end = top if math.isfinite(top) else market.cost_of(client).far_report()
    payment, error, low = c * float(curve(np.array([c]))[0]), 0.0, c
    while low < end:
        high, start = min(30 * low, end), float(curve(np.array([low]))[0])
        if start == 0:
            break
        part, unsure = dense_payment(curve, low, high, rel_tol=1e-9, jump_width=1e-12)
        payment, error, low = payment + part - low * start, error + unsure, high
    return payment, error


@pytest.mark.parametrize("part", range(3))
def test_payments_and_lies_over_many_decades(part: int) -> None:
    """Markets with caps from 1e-9 to 1e3: payments as integrated by others, within the stated bound; no lie pays."""
    for seed in range(part, 27, 3):
        market, mechanism = wide_market(seed)
        try:
            contract = jsam.plan(market, mechanism)
        except DivergentPaymentError:
            continue
        assert contract.payments is not None
        assert contract.payment_error_bound is not None
        rng = np.random.default_rng(seed)
        sellers = np.flatnonzero(contract.epsilons > 0)
        for client in sellers[:1] if not isinstance(mechanism, jsam.BBM) else []:
            exact, error = dense(mechanism, market, int(client))
            off = abs(contract.payments[client] - exact)
            assert off <= contract.payment_error_bound + 2 * error + 1e-12 * exact
            assert off <= 1e-6 * exact + 2 * error
        client = int(rng.integers(market.num_clients))
        check_that_lying_does_not_pay(mechanism, market, client, around(market, client, rng, 12))


# ---------------------------------------------------------------------------- two caps


def test_two_caps_pass_the_audit_where_one_switched_the_search_off() -> None:
    market = jsam.Market(sensitivities=np.array([0.002, 2.4]), prior=scipy.stats.uniform(0, 9))
    assert jsam.audit(market, jsam.JSAM(loss_weight=1.95, max_selection_prob=0.82, max_epsilon=100.0)).ok


@pytest.mark.parametrize(
    ("v", "eta", "cap"),
    [
        ([0.41802128, 139.29736651], 56.4634917, 0.7364937),
        ([0.148443179, 0.19874585, 2.35031598, 496.772401], 392.669290, 0.30194856),
    ],
)
def test_a_second_cap_does_not_cost_the_points_between_corners(v: list[float], eta: float, cap: float) -> None:
    market = jsam.Market(sensitivities=np.array(v) / 2, prior=scipy.stats.uniform(0, 300))
    alone = jsam.plan(market, jsam.JSAM(loss_weight=eta, max_selection_prob=cap))
    both = jsam.plan(market, jsam.JSAM(loss_weight=eta, max_selection_prob=cap, max_epsilon=1e6))
    assert np.array_equal(both.epsilons, alone.epsilons)
    assert np.all(np.abs(alone.selection_probs[-1:] * len(v) - [[0.0], [1.0]]) > 1e-4)  # a point between corners


def test_a_cap_that_binds_nobody_gives_the_same_contract() -> None:
    """On ε to the last digit, on p to rounding; with one cap and with two, under all mechanisms."""
    rng = np.random.default_rng(16)
    for seed in range(60):
        n = int(rng.integers(1, 9))
        reports = 10.0 ** rng.uniform(-3 if seed % 2 else -1, 0, n)
        market = jsam.Market(sensitivities=reports, prior=UNIT, losses=rng.random(n))
        eta, Q = 10.0 ** rng.uniform(-2, 2), 10.0 ** rng.uniform(-1, 2)
        cap = float(rng.uniform(1 / n, 1)) if seed % 3 else None
        base: RangeMechanism = jsam.JSAM(loss_weight=eta, noise_weight=Q, max_selection_prob=cap)
        if seed % 4 == 3:
            base = [jsam.USBM, jsam.JSAMCI][seed // 4 % 2](loss_weight=eta, noise_weight=Q, max_selection_prob=cap)
        free = jsam.plan(market, base)
        # The lower of the two may bind under other reports and so change payments, which look at these.
        for top in (float(free.epsilons.max()) * (1 + 1e-9), 1e9):
            loose = jsam.plan(market, replace(base, max_epsilon=top))
            assert np.array_equal(loose.selection_probs, free.selection_probs)
            assert np.array_equal(loose.epsilons, free.epsilons)
        assert loose.payments == pytest.approx(free.payments, rel=1e-12)
        if cap is None and not isinstance(base, jsam.USBM):
            wide = min(1.0, float(free.selection_probs.max()) * (1 + 1e-9))
            loose = jsam.plan(market, replace(base, max_selection_prob=wide))
            assert loose.selection_probs == pytest.approx(free.selection_probs, rel=1e-12, abs=1e-15)
            assert loose.epsilons == pytest.approx(free.epsilons, rel=1e-12)
