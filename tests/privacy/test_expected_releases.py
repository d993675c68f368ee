"""What a contract demands is derived apart from the calibration, and every edit of a ledger shows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import replace

import mpmath as mp  # type: ignore[import-untyped,unused-ignore]
import numpy as np
import pytest

from jsam.errors import InputError
from jsam.privacy import Client, Release, Schedule, gdp_mu, noise_multiplier
from jsam.privacy.expected_releases import MOST_ABOVE, Demands, differences, needed_mus
from jsam.privacy.gaussian import CALIBRATION_MARGIN

EPSILONS = np.array([0.3, 2.0, 7.0, 0.01])
SCHEDULE = Schedule.draw(np.full(4, 0.25), rounds=12, per_round=5, seed=2)


@pytest.mark.parametrize("delta", [1e-300, 1e-12, 1e-5, 0.01, 0.5, 0.999])
def test_two_ways_to_the_noise_agree_where_they_share_no_formula(delta: float) -> None:
    eps = np.logspace(-9, 6, 61)
    # The calibration takes μ lower by its margin, and by no more.
    np.testing.assert_allclose(gdp_mu(eps, delta), needed_mus(eps, delta) * (1 - CALIBRATION_MARGIN), rtol=1e-10)


@pytest.mark.parametrize("eps", [1e-6, 0.5, 40.0, 2000.0])
def test_the_needed_mu_solves_the_privacy_curve_in_50_digits(eps: float) -> None:
    with mp.workdps(50):
        mu = mp.mpf(float(needed_mus(np.array([eps]), 1e-5)[0]))
        a, b = eps / mu - mu / 2, eps / mu + mu / 2
        delta = (mp.erfc(a / mp.sqrt(2)) - mp.exp(eps) * mp.erfc(b / mp.sqrt(2))) / 2
        assert float(delta) == pytest.approx(1e-5, rel=1e-9)


def ledger_and_demands(
    *, adjacency: str = "add-remove", noise: str = "exact", c2: float | None = None
) -> tuple[list[Release], Demands]:
    multipliers = noise_multiplier(EPSILONS, 1e-5, SCHEDULE.participations, noise=noise, c2=c2, adjacency=adjacency)
    draws: dict[tuple[int, Client], int] = {}
    releases = []
    for drawn in SCHEDULE:
        for client, m in zip(drawn.clients.tolist(), drawn.multiplicities.tolist(), strict=True):
            draws[drawn.index, client] = m
            releases.append(
                Release.of_draws(
                    round=drawn.index,
                    client=client,
                    multiplicity=m,
                    noise_multiplier=float(multipliers[client]),
                    clip_norm=1.5,
                    samples=50 + client,
                    adjacency=adjacency,
                    delta=1e-5,
                )
            )
    demands = Demands(
        epsilons=dict(enumerate(EPSILONS.tolist())),
        draws=draws,
        delta=1e-5,
        adjacency=adjacency,
        clip_norm=1.5,
        noise=noise,
        c2=c2,
        samples={k: 50 + k for k in range(4)},
    )
    return releases, demands


@pytest.mark.parametrize("adjacency", ["add-remove", "replace"])
@pytest.mark.parametrize(("noise", "c2"), [("exact", None), ("lemma1", 0.2)])
def test_an_honest_ledger_is_as_demanded(adjacency: str, noise: str, c2: float | None) -> None:
    releases, demands = ledger_and_demands(adjacency=adjacency, noise=noise, c2=c2)
    assert any(release.multiplicity > 1 for release in releases)
    assert list(differences(releases, demands)) == []
    # Stopped in the middle of round 3.
    stopped = [release for release in releases if release.round < 3]
    stopped.append(next(release for release in releases if release.round == 3))
    assert list(differences(stopped, demands)) == []
    assert list(differences(stopped, dataclasses.replace(demands, applied=4))) != []


Edit = Callable[[Release], Release]


@pytest.mark.parametrize(("noise", "c2"), [("exact", None), ("lemma1", 0.2)])
@pytest.mark.parametrize(
    ("edit", "word"),
    [
        (lambda r: replace(r, noise_std=r.noise_std * 2), "noise std"),
        (lambda r: replace(r, noise_std=r.noise_std * (1 + 1.1 * MOST_ABOVE)), "noise std"),
        (lambda r: replace(r, noise_std=r.noise_std * (1 - 1.1 * MOST_ABOVE)), "noise std"),
        (lambda r: replace(r, noise_std=0.0), "noise std"),
        (lambda r: replace(r, clip_norm=r.clip_norm / 2), "clip_norm 0.75"),
        (lambda r: replace(r, samples=9000), "samples 9000"),
        (lambda r: replace(r, delta=1e-3), "delta 0.001"),
        (lambda r: replace(r, sensitivity=r.sensitivity * 1.001), "sensitivity"),
        (lambda r: replace(r, sensitivity=r.sensitivity * 2, adjacency=type(r.adjacency)("replace")), "adjacency"),
        (lambda r: replace(r, multiplicity=r.multiplicity + 1), "times; in the schedule"),
        (lambda r: replace(r, round=200), "in round 200"),
    ],
)
def test_any_edit_of_one_release_is_found_and_the_release_named(
    edit: Edit, word: str, noise: str, c2: float | None
) -> None:
    releases, demands = ledger_and_demands(noise=noise, c2=c2)
    target = releases[7]
    found = list(differences([*releases[:7], edit(target), *releases[8:]], demands))
    assert any(word in line for line in found)
    assert all(f"client {target.client} in round " in line for line in found)


def test_a_missing_release_and_a_strangers_are_found() -> None:
    releases, demands = ledger_and_demands()
    assert list(differences(releases[1:], demands)) == [
        f"the ledger lacks the release of client {releases[0].client} in round 0"
    ]
    stranger = replace(releases[0], client="x")
    assert any("client x in round 0" in line for line in differences([*releases, stranger], demands))


def test_where_the_sizes_are_not_stored_they_must_at_least_not_change() -> None:
    releases, demands = ledger_and_demands()
    unknown = dataclasses.replace(demands, samples=None)
    assert list(differences(releases, unknown)) == []
    mine = [index for index, release in enumerate(releases) if release.client == releases[0].client]
    assert len(mine) > 1
    releases[mine[-1]] = replace(releases[mine[-1]], samples=9000)
    assert any("samples 9000" in line for line in differences(releases, unknown))


def test_what_an_unknown_noise_demands_cannot_be_told() -> None:
    releases, demands = ledger_and_demands()
    with pytest.raises(InputError, match="noise is 'laplace'; what it demands cannot be told"):
        list(differences(releases, dataclasses.replace(demands, noise="laplace")))


def test_lemma1_needs_its_constant() -> None:
    releases, demands = ledger_and_demands(noise="lemma1", c2=0.2)
    with pytest.raises(InputError, match="without c2"):
        list(differences(releases, dataclasses.replace(demands, c2=None)))
