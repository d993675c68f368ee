"""ε over all campaigns: exact, checked by accountants that share no formula with it, and never passed."""

from __future__ import annotations

import importlib
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsam.campaign.client.client_ledger import ClientLedger
from jsam.campaign.client.policy import Policy
from jsam.campaign.refusal import Refused
from jsam.campaign.statement import Total
from jsam.privacy import Release, epsilon_of, gdp_mu
from jsam.privacy.accounting import PLD_TOLERANCE
from jsam.privacy.gaussian import composed_epsilon
from tests.campaign.books import MODEL, ask, noisy
from tests.campaign.offers import offer
from tests.conftest import require

CASES = [[0.3], [0.1, 0.2, 0.5], [1.0] * 4, [0.05] * 30, [2.0, 0.01, 0.7]]


@pytest.mark.parametrize("mus", CASES, ids=str)
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9])
def test_it_is_never_below_the_closed_form_and_never_above_what_other_accountants_bound(
    mus: list[float], delta: float
) -> None:
    """PLD of the composed events is a pessimistic estimate within a known coarseness; RDP is an upper bound."""
    require("dp_accounting", extra="train")
    dp = importlib.import_module("dp_accounting")
    rdp = importlib.import_module("dp_accounting.rdp")
    found = composed_epsilon(mus, delta)
    pld = dp.pld.PLDAccountant(value_discretization_interval=math.hypot(*mus) * 2e-3)
    bound = rdp.RdpAccountant()
    for mu in mus:
        pld.compose(dp.GaussianDpEvent(1 / mu))
        bound.compose(dp.GaussianDpEvent(1 / mu))
    assert dp.get_epsilon_gaussian(1 / math.sqrt(sum(mu**2 for mu in mus)), delta) <= found * (1 + 1e-12)
    assert found <= pld.get_epsilon(delta) * (1 + 1e-6)
    assert pld.get_epsilon(delta) <= epsilon_of(math.hypot(*mus) * (1 + PLD_TOLERANCE), delta)
    assert found <= bound.get_epsilon(delta)


def _delta_on_a_grid(first: float, second: float, epsilon: float) -> float:
    """max over sets S of P(S) − e^ε Q(S) for two outputs at once, summed over a plane: nothing but the densities."""
    x, step = np.linspace(-7, 9, 2001, retstep=True)
    densities = [np.exp(-((x - shift) ** 2) / 2) / math.sqrt(2 * math.pi) for shift in (0, first, second)]
    with_record = np.outer(densities[1], densities[2])
    without = np.outer(densities[0], densities[0])
    return float(np.maximum(with_record - math.exp(epsilon) * without, 0).sum() * step**2)


@pytest.mark.parametrize(("first", "second"), [(0.4, 0.3), (1.5, 0.4), (0.8, 0.8)])
def test_it_is_what_two_releases_together_give_by_brute_force(first: float, second: float) -> None:
    epsilon = composed_epsilon([first, second], 1e-3)
    assert _delta_on_a_grid(first, second, epsilon) == pytest.approx(1e-3, rel=2e-3)
    # An account that forgot the smaller campaign would be caught.
    assert _delta_on_a_grid(first, second, composed_epsilon([first], 1e-3)) > 1.1e-3


@settings(max_examples=60, deadline=None)
@given(
    sold=st.lists(
        st.tuples(st.floats(-3, 1).map(lambda e: 10**e), st.floats(-9, -3).map(lambda e: 10**e)), min_size=1, max_size=8
    )
)
def test_it_is_never_above_the_plain_sums_and_never_below_any_part(sold: list[tuple[float, float]]) -> None:
    mus = [gdp_mu(epsilon, delta) for epsilon, delta in sold]
    assert composed_epsilon(mus, sum(delta for _, delta in sold)) <= sum(epsilon for epsilon, _ in sold)
    for mu in mus:
        assert composed_epsilon(mus, 1e-6) >= epsilon_of(mu, 1e-6)


def test_a_weaker_guarantee_counts_twice_where_only_the_stronger_is_good_enough() -> None:
    """An add-remove campaign that an earlier policy allowed: replacing a record moves its mean twice as far."""
    weak, strong = Total.of_terms(offer()), Total.of_terms(offer(adjacency="replace"))
    both, only = Policy(), Policy(adjacency=("replace",))
    assert (both.total_adjacency, only.total_adjacency) == ("add-remove", "replace")
    assert only.epsilon_of(weak) == composed_epsilon([2 * offer().mu], 1e-5) > 2 * both.epsilon_of(weak)
    assert both.epsilon_of(strong) == only.epsilon_of(strong) == pytest.approx(1.5, rel=1e-5)


@pytest.mark.parametrize("adjacency", ["add-remove", "replace"])
def test_however_many_campaigns_are_opened_what_is_released_stays_within_the_total(
    adjacency: str, tmp_path: Path
) -> None:
    """By dp-accounting, over everything that left: twelve campaigns of ε = 1 are offered where 3 is the total."""
    require("dp_accounting", extra="train")
    dp = importlib.import_module("dp_accounting")
    policy, released = Policy(total_epsilon=3.0, total_delta=1e-5), list[Release]()
    ledger = ClientLedger(tmp_path, policy)

    def compute(release: Release) -> bytes:
        released.append(release)
        return noisy(release)

    accepted = 0
    for number in range(12):
        terms = offer(campaign=f"c{number}", epsilon=1.0, participations=2, adjacency=adjacency)
        try:
            ledger.accept(terms)
        except Refused:
            continue
        accepted += 1
        for round in range(2):
            ledger.answer(ask(terms, round), compute, model=MODEL)
    assert accepted > 3  # the plain sum would have allowed three
    together = math.hypot(*(release.sensitivity / release.noise_std for release in released))
    pld = dp.pld.PLDAccountant(value_discretization_interval=together * 2e-3)
    for release in released:
        pld.compose(dp.GaussianDpEvent(release.noise_std / release.sensitivity))
    assert 2.5 < pld.get_epsilon(1e-5) <= 3.0 * (1 + PLD_TOLERANCE)
    assert policy.epsilon_of(ledger.spent()) <= 3.0
