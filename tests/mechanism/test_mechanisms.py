"""The five mechanisms against each other and against the paper, a sixth written in a few lines, and bad settings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import scipy.stats

import jsam
from jsam.errors import InputError
from jsam.mechanism._arrays import FloatArray
from jsam.mechanism.families import RangeMechanism
from jsam.mechanism.registry import mechanism_names
from jsam.mechanism.solver.profiles import Profiles
from tests.mechanism.curves import replanned
from tests.oracles import best_epsilons, dense_payment, published_algorithm_1, true_objective

UNIFORM = scipy.stats.uniform(0, 1)


def uniform_market(n: int, seed: int) -> jsam.Market:
    rng = np.random.default_rng(seed)
    return jsam.Market(sensitivities=rng.uniform(0, 1, n), prior=UNIFORM, losses=rng.uniform(0, 1, n))


def cost(market: jsam.Market, name: str, eta: float = 5.0) -> float:
    return jsam.plan(market, jsam.mechanism_named(name, loss_weight=eta), payments=False).expected_cost


@pytest.mark.parametrize("n", [1, 2, 10, 100])
def test_complete_information_costs_one_over_root_two_where_all_are_kept(n: int) -> None:
    """Under U(0, 1) v = 2c, and with nobody dropped B grows like √v: the paper's 0.7071, to 1e-9."""
    for seed in range(20):
        market = uniform_market(n, seed)
        plans = [jsam.plan(market, kind(loss_weight=1e6), payments=False) for kind in (jsam.JSAMCI, jsam.JSAM)]
        assert [plan.num_selected for plan in plans] == [n, n]
        assert plans[0].expected_cost / plans[1].expected_cost == pytest.approx(1 / math.sqrt(2), rel=1e-9)


def test_complete_information_pays_the_cost_and_claims_nothing() -> None:
    market = uniform_market(20, 0)
    contract = jsam.plan(market, jsam.JSAMCI(loss_weight=5.0))
    assert contract.payments == pytest.approx(market.sensitivities * contract.epsilons, rel=1e-15)
    assert contract.total_payment == pytest.approx(contract.expected_cost)
    assert not contract.truthful
    assert contract.virtual_costs == pytest.approx(market.sensitivities)


@pytest.mark.parametrize(
    ("name", "mean", "band", "paper"),
    [
        ("fsbm-50", 0.597, (0.550, 0.641), 0.578),
        ("fsbm-75", 0.807, (0.781, 0.830), 0.798),
        ("bbm-50", 0.841, (0.785, 0.895), 0.847),
    ],
)
def test_costs_against_unbiased_selection_fit_the_paper(
    name: str, mean: float, band: tuple[float, float], paper: float
) -> None:
    """100 clients, U(0, 1): the mean over 600 draws, 95% of the draws in the band, and the paper's ratio inside it."""
    ratios = np.array([cost(m, name) / cost(m, "usbm") for m in (uniform_market(100, seed) for seed in range(600))])
    inside = np.mean((ratios > band[0]) & (ratios < band[1]))
    assert ratios.mean() == pytest.approx(mean, abs=3e-3)
    assert 0.925 <= inside <= 0.975
    assert band[0] < paper < band[1]


def test_the_ratios_do_not_depend_on_the_weights() -> None:
    market = uniform_market(100, 1)
    for name in ("fsbm-50", "bbm-50"):
        ratios = [cost(market, name, eta) / cost(market, "usbm", eta) for eta in (1e-3, 1.0, 1e4)]
        assert ratios == pytest.approx([ratios[0]] * 3, rel=1e-12)


def test_where_the_papers_numbers_of_clients_come_from() -> None:
    """27 kept at cost 1.32 and 41 at 3.45 need √Q near 3, not 1: B ∝ √Q at a given number kept."""
    roots: dict[int, list[float]] = {27: [], 41: []}
    for seed in range(60):
        market = uniform_market(100, seed)
        for eta in np.geomspace(0.2, 8, 60):
            contract = jsam.plan(market, jsam.JSAM(loss_weight=float(eta)), payments=False)
            for kept, paid in ((27, 1.32), (41, 3.45)):
                if contract.num_selected == kept:
                    roots[kept].append(paid / contract.expected_cost)
    assert np.mean(roots[27]) == pytest.approx(2.9, abs=0.3)
    assert np.mean(roots[41]) == pytest.approx(3.1, abs=0.3)


def test_what_each_selects() -> None:
    market = uniform_market(12, 2)
    c, losses = market.sensitivities, market.losses
    assert losses is not None
    usbm, fsbm, bbm = (jsam.plan(market, jsam.mechanism_named(n, loss_weight=3.0)) for n in ("usbm", "fsbm-4", "bbm-4"))
    assert usbm.selection_probs == pytest.approx(np.full(12, 1 / 12))
    assert set(np.flatnonzero(fsbm.selection_probs)) == set(np.argsort(c)[:4])
    assert set(np.flatnonzero(bbm.selection_probs)) == set(np.argsort(-losses)[:4])
    for contract, M in ((fsbm, 4), (bbm, 4)):
        kept = contract.selection_probs > 0
        assert contract.selection_probs[kept] == pytest.approx(np.full(M, 1 / M))
        # Its own trade-off ignores the bias: B = sqrt(η √κ) with u = 1/M inside the chosen set.
        S = float(((contract.virtual_costs[kept] / M) ** (2 / 3)).sum())
        assert contract.expected_cost == pytest.approx(math.sqrt(3.0 * S**1.5), rel=1e-12)
        # The yardstick does count it.
        d = 2 * (12 - M) / 12
        noise = float(((contract.selection_probs[kept] / contract.epsilons[kept]) ** 2).sum())
        assert contract.loss_bound == pytest.approx(d + math.sqrt(d * d + noise), rel=1e-12)


def test_fsbm_ranks_by_virtual_cost_where_priors_differ() -> None:
    """A higher report from a client who was expected to be dear can cost less than a lower one from a cheap one."""
    priors = [scipy.stats.uniform(0, 1), scipy.stats.uniform(0.5, 1)]
    market = jsam.Market(sensitivities=np.array([0.55, 0.6]), prior=priors)
    assert market.virtual_costs == pytest.approx([1.1, 0.7])
    contract = jsam.plan(market, jsam.FSBM(num_selected=1, loss_weight=3.0))
    assert contract.selection_probs.tolist() == [0.0, 1.0]


@pytest.mark.parametrize("caps", [{}, {"max_selection_prob": 0.2}, {"max_epsilon": 0.5}])
def test_the_contracts_objective_is_the_minimum(caps: dict[str, float]) -> None:
    """η · loss bound + cost, from the contract's own p and ε, is what root-finding over ε gives for that p."""
    for seed in range(10):
        market = uniform_market(15, seed)
        contract = jsam.plan(market, jsam.JSAM(loss_weight=4.0, noise_weight=2.0, bias_weight=0.8, **caps))
        best, eps = best_epsilons(
            contract.selection_probs,
            market.virtual_costs,
            eta=4.0,
            Q=2.0,
            zeta=0.8,
            max_epsilon=caps.get("max_epsilon"),
        )
        assert contract.objective == pytest.approx(best, rel=1e-12)
        assert contract.epsilons == pytest.approx(eps, rel=1e-10)


def test_jsam_has_the_best_objective_of_all() -> None:
    """Every other mechanism's p is in JSAM's range, and the yardstick is the same for all."""
    for seed in range(20):
        market = uniform_market(20, seed)
        plans = {
            name: jsam.plan(market, jsam.mechanism_named(name, loss_weight=4.0), payments=False)
            for name in ("jsam", "usbm", "fsbm-5", "fsbm-10", "bbm-10")
        }
        assert min(plans, key=lambda name: plans[name].objective) == "jsam"


def test_compensated_selection_is_unbiased_at_the_same_price() -> None:
    """Any p with updates weighted u/p: ε, payments and loss bound are USBM's."""
    market = uniform_market(8, 3)
    p = np.random.default_rng(4).dirichlet(np.ones(8))
    plain = jsam.plan(market, jsam.USBM(loss_weight=3.0))
    contract = jsam.plan(market, jsam.USBM(loss_weight=3.0, selection_probs=p))
    assert contract.mechanism == "usbm-compensated"
    assert contract.selection_probs == pytest.approx(p)
    assert contract.update_weights is not None
    assert contract.update_weights * p == pytest.approx(np.full(8, 1 / 8))
    assert contract.epsilons == pytest.approx(plain.epsilons)
    assert contract.payments == pytest.approx(plain.payments)
    assert contract.loss_bound == pytest.approx(plain.loss_bound)
    assert contract.as_dict()["clients"][0]["update_weight"] == pytest.approx(1 / (8 * p[0]))


@dataclass(frozen=True, kw_only=True, eq=False)
class TwoTiers(RangeMechanism):
    """A sixth mechanism in one small file: the M cheapest, the first half of them drawn twice as often."""

    num_selected: int

    @property
    def name(self) -> str:
        return f"two-tiers-{self.num_selected}"

    def profiles(self, num_clients: int) -> Profiles:
        M, first = self.num_selected, self.num_selected // 2
        base = 1 / (M + first)
        return Profiles(
            num_clients=num_clients,
            levels=np.array([[2 * base, base]]),
            ends=np.array([[first, M]], dtype=np.int64),
            bias=np.zeros(1),
        )


@pytest.mark.parametrize("prior", [UNIFORM, scipy.stats.beta(2, 5)])
def test_a_sixth_mechanism_is_truthful_as_it_stands(prior: Any) -> None:
    """No client gains by any of 200 lies, none loses, ε falls with the report, and payments are the integral."""
    rng = np.random.default_rng(5)
    c = np.asarray(prior.rvs(size=9, random_state=rng))
    market = jsam.Market(sensitivities=c, prior=prior)
    mechanism = TwoTiers(loss_weight=4.0, num_selected=4)
    contract = jsam.plan(market, mechanism)
    assert contract.payments is not None
    assert sorted(contract.selection_probs)[-4:] == pytest.approx([1 / 6, 1 / 6, 1 / 3, 1 / 3])
    lies = np.sort(np.concatenate([prior.ppf(np.linspace(0.002, 0.998, 160)), c * (1 + 1e-7), c * (1 - 1e-7)]))
    for k in range(9):
        answer = mechanism.respond(market, k, lies)
        truth = contract.payments[k] - c[k] * contract.epsilons[k]
        gains = answer.payments - c[k] * answer.epsilons - truth
        assert gains.max() <= 1e-6 * max(contract.payments[k], answer.payments.max())
        assert truth >= -1e-12
        assert np.all(np.diff(answer.epsilons) <= 1e-12)
        exact, _ = dense_payment(replanned(mechanism, market, k), c[k], 1.0, rel_tol=1e-9, jump_width=1e-11)
        assert contract.payments[k] == pytest.approx(exact, rel=1e-6, abs=1e-15)


def test_the_check_above_catches_pay_as_bid() -> None:
    """Paying c ε instead: some lie gains at once, so the check means something."""
    market = uniform_market(9, 6)
    contract = jsam.plan(market, jsam.JSAMCI(loss_weight=4.0))
    k = int(contract.epsilons.argmax())
    answer = jsam.JSAMCI(loss_weight=4.0).respond(market, k, np.linspace(0.01, 0.99, 200))
    assert (answer.payments - market.sensitivities[k] * answer.epsilons).max() > 0.01 * contract.payments.max()  # type: ignore[union-attr]


def by_published(market: jsam.Market, eta: float, step: float) -> tuple[FloatArray, float]:
    v = np.sort(market.virtual_costs)
    result = published_algorithm_1(v, eta=eta, delta_grid=step)
    return result.p, true_objective(result, v, eta=eta, Q=1.0)[0]


@pytest.mark.parametrize("step", [1e-2, 1e-3, 1e-4])
def test_agreement_with_the_published_algorithm_where_its_slips_do_not_bite(step: float) -> None:
    """Q = 1 and more than one client kept: its grid's first point is the optimum, so it agrees at every Δ."""
    for seed in range(8):
        market = uniform_market(20, seed)
        for eta in (1.0, 4.0, 20.0):
            contract = jsam.plan(market, jsam.JSAM(loss_weight=eta), payments=False)
            p, value = by_published(market, eta, step)
            assert contract.objective <= value * (1 + 1e-12)
            if contract.num_selected > 1:
                assert value == pytest.approx(contract.objective, rel=1e-12)
                assert np.sort(contract.selection_probs)[::-1] == pytest.approx(np.sort(p)[::-1], abs=1e-12)


def test_where_the_published_algorithm_slips() -> None:
    """Ours is strictly better where one client is best, and where Q is not 1; it loses its answer in small coin."""
    dear = np.array([0.45, 5667.5])
    market = jsam.Market(sensitivities=dear, prior=scipy.stats.uniform(0, 6000))
    ours = jsam.plan(market, jsam.JSAM(loss_weight=0.17), payments=False)
    _, value = by_published(market, 0.17, 1e-3)
    assert ours.num_selected == 1
    assert ours.objective < value * (1 - 1e-3)

    market = uniform_market(20, 0)
    v = np.sort(market.virtual_costs)
    dropped_q = true_objective(published_algorithm_1(v, eta=1.0, delta_grid=1e-3), v, eta=1.0, Q=100.0)[0]
    ours = jsam.plan(market, jsam.JSAM(loss_weight=1.0, noise_weight=100.0), payments=False)
    assert ours.objective < dropped_q * 0.9

    coins = jsam.Market(sensitivities=market.sensitivities * 1e9, prior=scipy.stats.uniform(0, 1e9))
    with pytest.raises(RuntimeError, match="initial f"):
        by_published(coins, 1e9, 1e-2)
    in_coins = jsam.plan(coins, jsam.JSAM(loss_weight=1e9), payments=False)
    assert in_coins.selection_probs == pytest.approx(
        jsam.plan(market, jsam.JSAM(loss_weight=1.0), payments=False).selection_probs
    )


def test_mechanisms_by_name() -> None:
    assert mechanism_names()[:7] == ("jsam", "jsam-even", "jsam-ci", "usbm", "usbm-compensated", "fsbm-M", "bbm-M")
    for name in ("jsam", "jsam-even", "jsam-ci", "usbm", "fsbm-7", "bbm-50"):
        mechanism = jsam.mechanism_named(name, loss_weight=2.0, noise_weight=3.0)
        assert mechanism.name == name
        assert (mechanism.loss_weight, mechanism.noise_weight) == (2.0, 3.0)
        assert mechanism.truthful is (name != "jsam-ci")
        changed = mechanism.with_loss_weight(9.0)
        assert (changed.loss_weight, changed.noise_weight, changed.name) == (9.0, 3.0, name)


@pytest.mark.parametrize("name", ["", "nosuch", "fsbm", "fsbm-", "fsbm-x", "fsbm-M", "fsbm--3", "jsam-3", "JSAM "])
def test_unknown_names_are_refused(name: str) -> None:
    with pytest.raises(
        InputError, match=r"unknown mechanism .*; allowed: jsam jsam-even jsam-ci usbm usbm-comp.* fsbm-50 bbm-50"
    ):
        jsam.mechanism_named(name, loss_weight=1.0)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        (name, value)
        for name, values in {
            "loss_weight": (0.0, -1.0, math.nan, math.inf),
            "noise_weight": (0.0, -1.0, math.nan, math.inf),
            "bias_weight": (-0.1, math.nan, math.inf),
            "max_selection_prob": (0.0, -0.5, 1.1, math.nan),
            "max_epsilon": (0.0, -1.0, math.nan, math.inf),
        }.items()
        for value in values
    ],
)
def test_settings_out_of_range_are_refused(setting: str, value: float) -> None:
    with pytest.raises(InputError, match=f"{setting} is .*; it must be ") as caught:
        jsam.JSAM(**{"loss_weight": 1.0, setting: value})
    assert "\n" not in str(caught.value)


def test_impossible_markets_are_refused() -> None:
    market = uniform_market(5, 7)
    bare = jsam.Market(sensitivities=market.sensitivities, prior=UNIFORM)
    cases: list[tuple[jsam.Market, RangeMechanism, str]] = [
        (market, jsam.FSBM(num_selected=6, loss_weight=1.0), "fsbm-6 selects 6 of 5 clients; 1 to 5 are possible"),
        (market, jsam.FSBM(num_selected=0, loss_weight=1.0), "fsbm-0 selects 0 of 5"),
        (market, jsam.BBM(num_selected=6, loss_weight=1.0), "bbm-6 selects 6 of 5"),
        (bare, jsam.BBM(num_selected=2, loss_weight=1.0), "selects by local loss: give the clients' losses"),
        (market, jsam.JSAM(loss_weight=1.0, max_selection_prob=0.19), "at least 1/5 = 0.2 is needed"),
        (market, jsam.USBM(loss_weight=1.0, max_selection_prob=0.19), "at least 1/5"),
        (market, jsam.FSBM(num_selected=2, loss_weight=1.0, max_selection_prob=0.4), "with probability 1/2, above"),
        (market, jsam.BBM(num_selected=2, loss_weight=1.0, max_selection_prob=0.4), "with probability 1/2, above"),
        (market, TwoTiers(num_selected=2, loss_weight=1.0, max_selection_prob=0.6), "with probability 2/3, above"),
        (market, jsam.USBM(loss_weight=1.0, selection_probs=[0.5, 0.5]), "must be 5 positive numbers that sum to 1"),
        (market, jsam.USBM(loss_weight=1.0, selection_probs=[0.3] * 5), "sum to 1"),
        (
            market,
            jsam.USBM(loss_weight=1.0, selection_probs=[0.6, 0.1, 0.1, 0.1, 0.1], max_selection_prob=0.5),
            "with probability 3/5, above max_selection_prob 0.5",
        ),
        (market, jsam.USBM(loss_weight=1.0, selection_probs=[0.0, 0.1, 0.2, 0.3, 0.4]), "positive"),
    ]
    for case, mechanism, says in cases:
        with pytest.raises(InputError, match=says) as caught:
            jsam.plan(case, mechanism)
        assert "\n" not in str(caught.value)


def test_respond_agrees_with_planning_anew() -> None:
    """What a client would get for each report, by the short cut and by whole new plans."""
    for prior in (UNIFORM, scipy.stats.beta(2, 5)):
        rng = np.random.default_rng(8)
        market = jsam.Market(
            sensitivities=prior.rvs(size=6, random_state=rng), prior=prior, losses=rng.uniform(0, 1, 6)
        )
        reports = np.array([0.02, 0.1, 0.2, 0.4, 0.7])
        mechanisms: list[RangeMechanism] = [
            jsam.JSAM(loss_weight=4.0),
            jsam.JSAM(loss_weight=4.0, max_selection_prob=0.4),
            jsam.JSAM(loss_weight=4.0, max_epsilon=0.8),
            jsam.JSAMCI(loss_weight=4.0),
            jsam.FSBM(num_selected=3, loss_weight=4.0),
            jsam.BBM(num_selected=3, loss_weight=4.0),
        ]
        for mechanism in mechanisms:
            for k in range(6):
                answer = mechanism.respond(market, k, reports)
                for i, z in enumerate(reports):
                    contract = jsam.plan(market.with_report(k, float(z)), mechanism)
                    assert contract.payments is not None
                    assert answer.epsilons[i] == pytest.approx(contract.epsilons[k], rel=1e-10, abs=0)
                    assert answer.payments[i] == pytest.approx(contract.payments[k], rel=3e-7, abs=0)


def test_contracts_and_markets_cannot_be_written_to() -> None:
    market = jsam.Market(sensitivities=np.array([0.2, 0.5]), prior=scipy.stats.uniform(0, 1))
    contract = jsam.plan(market, jsam.JSAM(loss_weight=5.0))
    for array in (market.sensitivities, contract.sensitivities, contract.epsilons, contract.payments):
        assert array is not None
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 99.0


@pytest.mark.parametrize("weight", ["5", None, float("inf"), 0.0])
def test_a_weight_that_is_no_positive_number_is_named(weight: Any) -> None:
    with pytest.raises(InputError, match="loss_weight is"):
        jsam.JSAM(loss_weight=weight)
