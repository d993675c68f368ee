"""The bar for truthfulness: in over 200 markets of all sizes, priors and caps nobody gains by lying.

Payments against the bisecting oracle are in test_payments.py and test_payments_caps.py.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats

import jsam
from jsam.mechanism.audit import Probe, probe
from jsam.mechanism.families import Mechanism
from tests.conftest import number_of
from tests.mechanism import broken

GAIN = 1e-6
PRIORS = {
    "uniform": scipy.stats.uniform(0, 1),
    "beta": scipy.stats.beta(2, 5),
    "lognormal": scipy.stats.lognorm(s=0.5, scale=0.3),
}
# Payments under caps with a curved virtual cost take longest, so there are fewer and smaller markets of that kind.
MOST = {"no cap": 200, "p": 200, "epsilon": number_of(quick=16, full=24), "both": number_of(quick=10, full=16)}


def is_slow(prior: str, caps: str) -> bool:
    return prior != "uniform" and caps != "no cap"


def num_markets(prior: str, caps: str) -> int:
    return 4 if is_slow(prior, caps) else 30


def num_clients(prior: str, caps: str) -> int:
    """How many of a market's clients try lies."""
    if is_slow(prior, caps):
        return number_of(quick=3, full=4)
    return 6 if prior == "uniform" else number_of(quick=4, full=6)


def random_case(prior: str, caps: str, i: int) -> tuple[jsam.Market, jsam.JSAM]:
    """Weights over decades, caps that bind for somebody, and once in each kind as many clients as there may be."""
    rng = np.random.default_rng([i, list(PRIORS).index(prior), list(MOST).index(caps)])
    most = 200 if prior == "uniform" and caps != "both" else MOST[caps]
    N = most if i == 0 else round(math.exp(rng.uniform(math.log(5), math.log(most))))
    market = jsam.Market(sensitivities=PRIORS[prior].rvs(size=N, random_state=rng), prior=PRIORS[prior])
    loss_weight, noise_weight, bias_weight = (float(x) for x in 10.0 ** rng.uniform([-0.5, -1, -1], [2, 1.5, 0.5]))
    cap_p = float(math.exp(rng.uniform(math.log(1 / N), 0))) if caps in ("p", "both") else None
    free = jsam.JSAM(
        loss_weight=loss_weight, noise_weight=noise_weight, bias_weight=bias_weight, max_selection_prob=cap_p
    )
    if caps not in ("epsilon", "both"):
        return market, free
    eps = free.plan(market, payments=False).epsilons
    cap_eps = float(rng.uniform(0.3, 1.0) * eps.max())
    return market, jsam.JSAM(
        loss_weight=loss_weight,
        noise_weight=noise_weight,
        bias_weight=bias_weight,
        max_selection_prob=cap_p,
        max_epsilon=cap_eps,
    )


def telling_clients(contract: jsam.Contract, count: int, rng: np.random.Generator) -> list[int]:
    """The cheapest, the last kept, the first dropped, then others at random."""
    order = np.argsort(contract.virtual_costs, kind="stable")
    kept, dropped = order[contract.epsilons[order] > 0], order[contract.epsilons[order] == 0]
    telling = [order[0], kept[-1], *dropped[:1], *rng.permutation(contract.num_clients)]
    return list(dict.fromkeys(int(k) for k in telling))[:count]


def probes_of(market: jsam.Market, mechanism: Mechanism, *, count: int, grid: int) -> list[Probe]:
    rng = np.random.default_rng(0)
    contract = mechanism.plan(market)
    clients = telling_clients(contract, count, rng)
    return [probe(market, mechanism, contract, k, grid=grid, dense=0, rng=rng) for k in clients]


def test_there_are_enough_markets() -> None:
    assert sum(num_markets(prior, caps) for prior in PRIORS for caps in MOST) >= 200


@pytest.mark.parametrize("caps", MOST)
@pytest.mark.parametrize("prior", PRIORS)
def test_nobody_gains_by_lying_and_epsilon_never_rises(prior: str, caps: str) -> None:
    """Largest gain over max(truthful payment, lying payment, 1e-9 Σπ), and ex-post monotonicity of ε_k(z)."""
    for i in range(num_markets(prior, caps)):
        market, mechanism = random_case(prior, caps, i)
        for found in probes_of(market, mechanism, count=num_clients(prior, caps), grid=16 if prior == "uniform" else 4):
            assert found.senseless is None
            assert found.relative_gain <= GAIN, (i, found.client, found.worst_report, found.relative_gain)
            assert found.rise[0] <= 1e-7, (i, found.client, found.rise)


def test_the_bar_notices_a_rent_that_is_short_by_a_hundredth() -> None:
    """Scaling rents by 1 − δ brings a liar only about δ² of a payment; the lies that are tried find it."""
    market, honest = random_case("uniform", "no cap", 3)
    for found in probes_of(market, broken.Underpays(honest=honest, share=0.99), count=1, grid=4):
        assert GAIN < found.relative_gain < 1e-2


@pytest.mark.parametrize("caps", ["no cap", "p"])
def test_revenue_equivalence(caps: str) -> None:
    """What is paid in total is, on average over the prior, the expected cost B that the server counts with."""
    rng = np.random.default_rng(20 if caps == "p" else 21)
    draws, N = 2100, 30
    prior = PRIORS["uniform"]
    mechanism = jsam.JSAM(loss_weight=4.0, noise_weight=2.0, max_selection_prob=0.12 if caps == "p" else None)
    paid, expected = np.empty(draws), np.empty(draws)
    for i in range(draws):
        contract = mechanism.plan(jsam.Market(sensitivities=prior.rvs(size=N, random_state=rng), prior=prior))
        assert contract.total_payment is not None
        paid[i], expected[i] = contract.total_payment, contract.expected_cost
    error = float((paid - expected).std(ddof=1)) / math.sqrt(draws)
    assert error < 0.01 * expected.mean()
    assert abs(float((paid - expected).mean())) <= 3 * error
