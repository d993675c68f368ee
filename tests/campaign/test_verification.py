"""A client's own check finds every way in which an offer can be worse than it says."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsam.campaign.terms import Terms
from jsam.campaign.verification import Status, check_loss_weight, verify
from jsam.errors import InputError
from jsam.mechanism.budget.loss_weight import loss_weight_for_budget
from jsam.mechanism.priors import parse_prior
from jsam.mechanism.registry import mechanism_named
from jsam.privacy import spent_epsilons_pld
from tests.campaign.offers import forged, offer, public_inputs
from tests.conftest import require


def violated(terms: Terms, **own: Any) -> set[str]:
    return {check.name for check in verify(terms, **own) if check.status is Status.VIOLATED}


def test_a_sound_offer_passes_every_check() -> None:
    found = verify(offer(), sensitivity=0.5, samples=600)
    assert {check.status for check in found} == {Status.PASSED}


def test_what_was_not_given_is_not_checked_and_says_so() -> None:
    found = {check.name: check.status for check in verify(offer())}
    assert found["payment"] is found["samples"] is Status.NOT_CHECKED


@given(
    epsilon=st.floats(1e-4, 1e12),
    delta=st.floats(1e-12, 1e-3),
    participations=st.integers(1, 24),
    samples=st.integers(1, 900),
    clip_norm=st.floats(1e-3, 1e3),
    adjacency=st.sampled_from(["add-remove", "replace"]),
)
def test_every_honest_offer_passes_and_a_little_less_noise_does_not(**changes: Any) -> None:
    terms = offer(**changes)
    assert not violated(terms)
    share = 1 - 1e-5
    less = forged(terms, noise_multiplier=terms.noise_multiplier * share, noise_std=terms.noise_std * share)
    assert violated(less) == {"noise"}


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"noise_std": 0.0, "noise_multiplier": 0.0}, {"noise"}),
        ({"epsilon": 0.1}, {"noise"}),
        ({"participations": 6}, {"noise"}),
        ({"delta": 1e-7}, {"noise"}),
        ({"adjacency": "replace"}, {"noise"}),
        ({"epsilon": 0.0}, {"noise"}),
        # Either of these alone makes the std on the mean too small for the clip norm that it is to hide.
        ({"clip_norm": 4.0}, {"noise std", "noise"}),
        ({"samples": 60}, {"noise std", "noise"}),
        ({"noise_multiplier": 99.0}, {"noise std"}),
        ({"participations": 25, "epsilon": 100.0}, {"participations"}),
        ({"delta": 0.5}, {"delta"}),
        # The noise fits, but in fp32 squares of such gradients vanish, and nothing is clipped.
        ({"clip_norm": 1e-25, "noise_std": offer(clip_norm=1e-25).noise_std}, {"clip norm"}),
        ({"clip_norm": 1e30, "noise_std": offer(clip_norm=1e30).noise_std}, {"clip norm"}),
        ({"public": public_inputs(max_epsilon=1.0)}, {"epsilon cap"}),
    ],
)
def test_a_forged_offer_is_caught_though_its_hash_fits(changes: dict[str, Any], names: set[str]) -> None:
    assert violated(forged(offer(), **changes)) == names


def test_a_changed_number_under_the_old_hash_is_caught() -> None:
    assert violated(dataclasses.replace(offer(), payment=0.7)) == {"hash"}


def test_the_payment_must_cover_the_own_cost() -> None:
    terms = offer()
    cost = terms.payment / terms.epsilon
    assert not violated(terms, sensitivity=cost)
    assert violated(terms, sensitivity=cost * 1.000001) == {"payment"}


def test_the_number_of_records_must_be_the_own() -> None:
    assert violated(offer(), samples=599) == {"samples"}


def test_a_client_that_is_never_drawn_needs_no_noise() -> None:
    assert not violated(offer(participations=0, epsilon=0.0), sensitivity=0.5)


@pytest.mark.parametrize("sensitivity", [-1.0, math.nan, math.inf])
def test_an_impossible_sensitivity_is_bad_input(sensitivity: float) -> None:
    with pytest.raises(InputError, match="sensitivity"):
        verify(offer(), sensitivity)


@pytest.mark.parametrize("epsilon", [5e-324, 1e-300, 1e300])
@pytest.mark.parametrize("delta", [5e-324, 1e-300, 1e-3])
def test_extreme_numbers_are_judged_and_never_crash(epsilon: float, delta: float) -> None:
    assert "noise" in violated(forged(offer(), epsilon=epsilon, delta=delta, noise_multiplier=0.0, noise_std=0.0))


@pytest.fixture
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.usefixtures("_own_cache")
def test_the_loss_weight_must_be_what_the_budget_gives() -> None:
    rule = mechanism_named("usbm", loss_weight=1.0)
    right = loss_weight_for_budget(rule, 10.0, prior=parse_prior("uniform:0,1"), num_clients=3).loss_weight
    for weight, status in ((right, Status.PASSED), (right * 1.001, Status.VIOLATED)):
        terms = offer(public=public_inputs(mechanism="usbm", budget=10.0, loss_weight=weight))
        assert check_loss_weight(terms).status is status


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"budget": None}, Status.PASSED),
        ({"budget": 10.0, "prior": "empirical:/etc/passwd"}, Status.NOT_CHECKED),
        ({"budget": 10.0, "prior": "nonsense:1"}, Status.VIOLATED),
        ({"budget": 10.0, "mechanism": "nonsense"}, Status.VIOLATED),
    ],
)
def test_a_loss_weight_that_cannot_be_computed_says_so(changes: dict[str, Any], status: Status) -> None:
    assert check_loss_weight(offer(public=public_inputs(**changes))).status is status


def test_a_second_accountant_agrees_that_the_offer_is_kept() -> None:
    """dp-accounting, which shares no formula with the noise."""
    require("dp_accounting", extra="train")
    terms = offer()
    spent = spent_epsilons_pld([terms.release(0, 2), terms.release(1, 3)], terms.delta)[terms.client]
    assert spent == pytest.approx(terms.epsilon, rel=1e-3)
