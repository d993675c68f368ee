"""What the ledger costs: two accountants, on the safe side, and contracts that are found broken when they are."""

from __future__ import annotations

import math
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jsam.privacy.accounting as accounting
from jsam.errors import InputError, NotSupportedError
from jsam.privacy import (
    Client,
    Release,
    Schedule,
    check_contract,
    epsilon_of,
    gdp_mu,
    needed_c2,
    noise_multiplier,
    spent_epsilons,
    spent_epsilons_pld,
    spent_mus,
)

FloatArray = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def train(
    epsilons: FloatArray,
    *,
    delta: float = 1e-5,
    rounds: int = 40,
    seed: int = 0,
    adjacency: str = "add-remove",
    noise: str = "exact",
    c2: float | None = None,
    clip_norm: float = 6.0,
) -> list[Release]:
    """The releases of a whole training, client k having 100 + k records."""
    n = len(epsilons)
    schedule = Schedule.draw(np.full(n, 1 / n), rounds=rounds, per_round=5, seed=seed)
    multipliers = noise_multiplier(epsilons, delta, schedule.participations, noise=noise, c2=c2, adjacency=adjacency)
    return [
        Release.of_draws(
            round=drawn.index,
            client=int(client),
            multiplicity=int(times),
            noise_multiplier=float(multipliers[client]),
            clip_norm=clip_norm,
            samples=100 + int(client),
            adjacency=adjacency,
            delta=delta,
        )
        for drawn in schedule
        for client, times in zip(drawn.clients, drawn.multiplicities, strict=True)
    ]


def scaled(releases: list[Release], factor: float) -> list[Release]:
    return [replace(release, noise_std=release.noise_std * factor) for release in releases]


@settings(derandomize=True, max_examples=80, deadline=None)
@given(
    logs=st.lists(st.floats(-12, 6), min_size=1, max_size=12),
    log_delta=st.floats(-100, -0.5),
    seed=st.integers(0, 2**32),
    adjacency=st.sampled_from(["add-remove", "replace"]),
    clip_norm=st.floats(-6, 6).map(lambda x: 10.0**x),
)
def test_calibrated_noise_never_overspends_a_contract(
    logs: list[float], log_delta: float, seed: int, adjacency: str, clip_norm: float
) -> None:
    """spent ≤ bought outright, also where the noise's scale has been through float32, for absurd contracts too."""
    epsilons, delta = 10.0 ** np.array(logs), 10.0**log_delta
    releases = train(epsilons, delta=delta, seed=seed, adjacency=adjacency, clip_norm=clip_norm)
    rounded = [replace(release, noise_std=float(np.float32(release.noise_std))) for release in releases]
    for version in (releases, rounded):
        report = check_contract(version, epsilons, delta)
        assert report.kept, report.lines()


@settings(derandomize=True, max_examples=60, deadline=None)
@given(logs=st.lists(st.floats(-4, 3), min_size=1, max_size=12), seed=st.integers(0, 2**32))
def test_a_hair_less_noise_puts_every_drawn_client_over(logs: list[float], seed: int) -> None:
    epsilons = 10.0 ** np.array(logs)
    releases = scaled(train(epsilons, seed=seed), 1 - 1e-5)
    report = check_contract(releases, epsilons, 1e-5)
    assert {entry.client for entry in report.violations} == {release.client for release in releases}


def test_halved_noise_is_caught_by_either_accountant_and_each_client_named() -> None:
    epsilons = np.geomspace(1e-3, 100, 8)
    releases = scaled(train(epsilons), 0.5)
    report = check_contract(releases, epsilons, 1e-5, second_opinion=True)
    assert not report.kept
    assert len(report.violations) == 8
    assert report.lines()[0].startswith("8 of 8 clients are OVER their contract (δ = 1e-05, one record added")
    assert [line.split(":")[0] for line in report.lines()[1:]] == [f"client {k}" for k in range(8)]
    for client, spent in spent_epsilons_pld(releases, 1e-5).items():
        assert spent > 1.5 * epsilons[int(client)]


def test_the_second_opinion_alone_is_enough_to_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    epsilons = np.array([1.0, 2.0])
    monkeypatch.setattr(accounting, "_pld_epsilon", lambda history, delta: 1.01)
    report = check_contract(train(epsilons), epsilons, 1e-5, second_opinion=True)
    assert [entry.client for entry in report.violations] == [0]
    assert "second accountant 1.01" in report.lines()[1]


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-3])
def test_the_accountants_agree_over_histories_of_several_multiplicities(delta: float) -> None:
    epsilons = np.geomspace(1e-4, 1e3, 12)
    releases = train(epsilons, delta=delta, rounds=60)
    exact, other = spent_epsilons(releases, delta), spent_epsilons_pld(releases, delta)
    assert exact.keys() == other.keys()
    assert len(exact) == 12
    for client in exact:
        assert exact[client] * (1 - 1e-6) <= other[client] <= exact[client] * (1 + 1e-4)


@pytest.mark.parametrize("epsilon", [1e-9, 1e-6, 1e-4, 1.0, 300.0, 699.0, 720.0, 1e3, 1e4])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.1])
def test_a_kept_contract_is_kept_for_the_second_accountant_too(epsilon: float, delta: float) -> None:
    """Its coarseness does not cry wolf, not above ε = 700 nor for ε far below δ; 1% less noise it does not miss."""
    epsilons = np.full(3, epsilon)
    releases = train(epsilons, delta=delta)
    assert check_contract(releases, epsilons, delta, second_opinion=True).kept
    less = spent_epsilons_pld(scaled(releases, 0.99), delta)
    limits = accounting._second_limits(epsilons.tolist(), delta)
    assert all(less[client] > limit for client, limit in enumerate(limits))


def test_the_second_accountant_computes_equal_histories_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []

    def counted(history: object, delta: float) -> float:
        calls.append(history)
        return 1.0

    monkeypatch.setattr(accounting, "_pld_epsilon", counted)
    one = train(np.array([1.0]))
    many = [replace(release, client=f"c{k}") for k in range(20) for release in one]
    assert len(spent_epsilons_pld(many, 1e-5)) == 20
    assert len(calls) == 1


def test_several_draws_in_one_round_cost_what_as_many_rounds_cost() -> None:
    def release(round: int, multiplicity: int) -> Release:
        return Release.of_draws(
            round=round,
            client="a",
            multiplicity=multiplicity,
            noise_multiplier=noise_multiplier(2.0, 1e-5, 6),
            clip_norm=1.0,
            samples=50,
            adjacency="add-remove",
            delta=1e-5,
        )

    split, merged = [release(r, 1) for r in range(6)], [release(0, 2), release(1, 4)]
    assert spent_mus(split)["a"] == pytest.approx(spent_mus(merged)["a"], rel=1e-15)
    assert spent_mus(merged)["a"] == pytest.approx(gdp_mu(2.0, 1e-5), rel=1e-15)


def test_spending_is_the_gaussian_of_the_summed_squares() -> None:
    releases = train(np.array([1.0]), rounds=7)
    uneven = [replace(r, noise_std=r.noise_std * (1 + i)) for i, r in enumerate(releases)]
    mu = math.sqrt(math.fsum((r.sensitivity / r.noise_std) ** 2 for r in uneven))
    assert spent_mus(uneven)[0] == pytest.approx(mu, rel=1e-14)
    assert spent_epsilons(uneven, 1e-5)[0] == pytest.approx(epsilon_of(mu, 1e-5), rel=1e-12)
    assert spent_epsilons_pld(uneven, 1e-5)[0] == pytest.approx(epsilon_of(mu, 1e-5), rel=1e-4)


def test_noise_for_adding_a_record_does_not_cover_replacing_one() -> None:
    epsilons = np.array([0.5, 5.0])
    releases = [replace(r, adjacency="replace", sensitivity=2 * r.sensitivity) for r in train(epsilons)]  # type: ignore[arg-type]
    assert len(check_contract(releases, epsilons, 1e-5).violations) == 2
    assert check_contract(train(epsilons, adjacency="replace"), epsilons, 1e-5, second_opinion=True).kept


def test_lemma1_keeps_a_contract_only_from_the_needed_c2_on() -> None:
    epsilons = np.full(4, 2.0)
    need = needed_c2(2.0, 1e-5)
    for c2, over in [(0.1, 4), (need * (1 - 1e-4), 4), (need, 0), (1.5 * need, 0)]:
        releases = train(epsilons, noise="lemma1", c2=c2)
        assert len(check_contract(releases, epsilons, 1e-5).violations) == over


def test_taking_part_without_having_sold_anything_is_over() -> None:
    """Even with noise so large that the release is (0, δ)-DP."""
    stranger = scaled(train(np.array([1.0]), rounds=1), 1e12)
    assert spent_epsilons(stranger, 1e-5) == {0: 0.0}
    named: dict[Client, float] = {"a": 1.0}
    report = check_contract(stranger, named, 1e-5)
    assert [(entry.client, entry.over) for entry in report.clients] == [("a", False), (0, True)]
    assert not check_contract(stranger, [0.0], 1e-5).kept


def test_who_was_never_drawn_spent_nothing_and_is_listed() -> None:
    report = check_contract(train(np.array([1.0])), {0: 1.0, 1: 3.0, 2: 0.0}, 1e-5)
    assert [(entry.client, entry.participations) for entry in report.clients] == [(0, 200), (1, 0), (2, 0)]
    assert report.kept
    assert report.clients[1].spent == 0.0
    assert report.lines() == [
        (
            "no contract was overspent: 2 clients under contract "
            "(δ = 1e-05, one record added, removed or zeroed with M held fixed (sensitivity C/M))"
        )
    ]
    assert check_contract([], [1.0], 1e-5, second_opinion=True).kept


def test_a_release_without_noise_spends_everything() -> None:
    releases = train(np.array([1.0, 1.0]), rounds=5)
    broken = [replace(releases[0], noise_std=0.0), *releases[1:]]
    client = releases[0].client
    assert spent_epsilons(broken, 1e-5)[client] == math.inf == spent_epsilons_pld(broken, 1e-5)[client]
    assert [entry.client for entry in check_contract(broken, np.ones(2), 1e-5).violations] == [client]
    assert check_contract(broken, [math.inf, math.inf], 1e-5, second_opinion=True).kept


def test_unusable_input_is_refused_in_words() -> None:
    releases = train(np.array([1.0]), rounds=2)
    mixed = [releases[0], replace(releases[1], adjacency="replace", sensitivity=1.0)]  # type: ignore[arg-type]
    with pytest.raises(InputError, match="adjacency add-remove and for replace"):
        spent_epsilons(mixed, 1e-5)
    with pytest.raises(InputError, match="delta is 0"):
        spent_epsilons(releases, 0.0)
    with pytest.raises(NotSupportedError, match="PLD needs at least 1e-12"):
        spent_epsilons_pld(releases, 1e-13)
    with pytest.raises(InputError, match="epsilon bought from client b is nan"):
        check_contract(releases, {"b": math.nan}, 1e-5)


def test_the_second_accountant_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(NotSupportedError, match=r"extra .train."):
        spent_epsilons_pld(train(np.array([1.0]), rounds=2), 1e-5)
