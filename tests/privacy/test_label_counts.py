"""Label counts are exactly as private as was sold, and their charge and the training's together never read as more."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import mpmath as mp  # type: ignore[import-untyped,unused-ignore]
import numpy as np
import pytest

from jsam.errors import InputError
from jsam.privacy import (
    Client,
    Ledger,
    Query,
    Release,
    check_contract,
    label_noise,
    left_for_training,
    noise_multiplier,
    read_ledger,
    sold_in_all,
)
from jsam.privacy.expected_releases import Demands, differences

DELTA = 1e-5


def curve(epsilon: float, mu: mp.mpf) -> mp.mpf:
    """δ of a Gaussian mechanism at ε, in 50 digits."""
    a, b = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    return (mp.erfc(a / mp.sqrt(2)) - mp.exp(epsilon) * mp.erfc(b / mp.sqrt(2))) / 2


def exact_mu(epsilon: float) -> mp.mpf:
    """The μ of a Gaussian mechanism that spends this ε at `DELTA`, by halving."""
    low, high = mp.mpf(0), mp.mpf(100)
    for _ in range(90):
        middle = (low + high) / 2
        low, high = (low, middle) if curve(epsilon, middle) > DELTA else (middle, high)
    return low


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-3])
@pytest.mark.parametrize("epsilon", [0.01, 0.1, 0.5, 3.0])
@pytest.mark.parametrize(("adjacency", "moved"), [("add-remove", 1), ("replace", mp.sqrt(2))])
def test_the_noise_is_what_the_guarantee_needs_and_no_more(
    epsilon: float, delta: float, adjacency: str, moved: mp.mpf
) -> None:
    with mp.workdps(50):
        mu = moved / mp.mpf(label_noise(epsilon, delta, adjacency))
        assert curve(epsilon, mu) <= delta
        assert curve(epsilon, mu * (1 + mp.mpf(1e-5))) > delta


@pytest.mark.parametrize(("adjacency", "other"), [("add-remove", (39, 20)), ("replace", (39, 21))])
def test_two_noisy_counts_tell_neighbours_apart_exactly_as_much_as_was_sold(
    adjacency: str, other: tuple[int, int]
) -> None:
    """By the densities of both counts themselves: what one has beyond e^ε times the other's, summed over a plane."""
    epsilon, delta = 0.7, 1e-3
    std = label_noise(epsilon, delta, adjacency)
    x, step = np.linspace(-9, 9, 3001, retstep=True)

    def density(mean: float, about: float) -> np.ndarray:
        return np.asarray(np.exp(-0.5 * (x - (mean - about) / std) ** 2) / np.sqrt(2 * np.pi))

    here = np.outer(density(40, 40), density(20, 20))
    there = np.outer(density(other[0], 40), density(other[1], 20))
    for one, two in ((here, there), (there, here)):
        apart = np.maximum(one - np.exp(epsilon) * two, 0).sum() * step**2
        assert apart == pytest.approx(delta, rel=1e-4)


def test_what_was_sold_in_all_is_the_epsilon_of_both_together() -> None:
    for training, labels in itertools.product((0.05, 1.0, 9.5), (0.02, 0.5, 4.0)):
        sold = float(sold_in_all(np.array([training]), labels, DELTA)[0])
        with mp.workdps(30):
            together = mp.sqrt(exact_mu(training) ** 2 + exact_mu(labels) ** 2)
            assert curve(sold, together) <= DELTA  # never less than both cost
            assert curve(sold * (1 - 1e-7), together) > DELTA
    assert sold_in_all(np.array([0.0]), 0.5, DELTA).tolist() == [0.5]


def test_both_together_cost_a_client_no_more_than_it_is_paid_for() -> None:
    """Each is paid by its own ε; at the same δ the ε of both is below their sum."""
    training = np.logspace(-3, 2, 40)
    for delta, labels in itertools.product((1e-10, 1e-5, 1e-3), np.logspace(-2, 2, 20).tolist()):
        assert np.all(sold_in_all(training, labels, delta) <= training + labels)


def test_what_is_left_for_training_keeps_the_cap_for_both() -> None:
    for most, labels in itertools.product((0.3, 1.0, 10.0, 200.0), (0.01, 0.1, 0.29)):
        left = left_for_training(most, labels, DELTA)
        sold = float(sold_in_all(np.array([left]), labels, DELTA)[0])
        assert most * (1 - 1e-5) < sold <= most
    assert left_for_training(1.0, 1.0, DELTA) == 0.0
    assert left_for_training(1.0, 2.0, DELTA) == 0.0


@pytest.mark.parametrize("epsilon", [0.0, -1.0, 0.009, float("inf"), float("nan")])
def test_an_epsilon_that_tells_nothing_is_refused(epsilon: float) -> None:
    with pytest.raises(InputError, match=r"epsilon of label counts is .* 0\.01 or more"):
        label_noise(epsilon, DELTA)


def charge(client: Client, *, epsilon: float = 0.5, adjacency: str = "add-remove") -> Release:
    std = label_noise(epsilon, DELTA, adjacency)
    return Release.of_label_counts(client=client, samples=80, noise_std=std, adjacency=adjacency, delta=DELTA)


def gradient(client: Client, round: int, *, epsilon: float = 2.0, adjacency: str = "add-remove") -> Release:
    return Release.of_draws(
        round=round,
        client=client,
        multiplicity=1,
        noise_multiplier=noise_multiplier(epsilon, DELTA, 2, adjacency=adjacency),
        clip_norm=1.0,
        samples=80,
        adjacency=adjacency,
        delta=DELTA,
    )


@pytest.mark.parametrize("adjacency", ["add-remove", "replace"])
def test_a_ledger_has_charge_and_rounds_side_by_side_and_both_are_spent(tmp_path: Path, adjacency: str) -> None:
    releases = [charge(c, adjacency=adjacency) for c in ("a", "b")]
    rounds = [gradient("a", index, adjacency=adjacency) for index in (0, 1)]
    path = tmp_path / "ledger.jsonl"
    with Ledger(path) as ledger:
        assert ledger.append(releases) == 2
        assert ledger.append(rounds) == 2
        assert ledger.append(releases) == 0  # repeated, recorded once
        with pytest.raises(InputError, match="label counts, client a is in ledger"):
            ledger.append([replace(releases[0], noise_std=1.0)])
    assert read_ledger(path) == (*releases, *rounds)
    assert ["query" in line for line in path.read_text().splitlines()[1:]] == [True, True, False, False]
    sold = sold_in_all(np.array([2.0, 0.0]), 0.5, DELTA).tolist()
    report = check_contract(read_ledger(path), dict(zip("ab", sold, strict=True)), DELTA)
    assert report.kept
    assert [(entry.releases, entry.participations) for entry in report.clients] == [(3, 2), (1, 0)]
    # To within the margin of the noise, all that was sold is spent: whoever sold the training alone is over.
    assert [entry.spent for entry in report.clients] == pytest.approx(sold, rel=1e-5)
    without = check_contract(read_ledger(path), {"a": 2.0, "b": 0.0}, DELTA)
    assert [entry.over for entry in without.clients] == [True, True]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"round": 1}, "label counts are asked for before round 0"),
        ({"query": "pixels"}, "query is 'pixels'; it must be one of: gradient, label counts"),
        ({"sensitivity": 0.99}, "sensitivity is 0.99"),
    ],
)
def test_a_charge_that_cannot_be_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Release.from_record(charge("a").to_record() | changes)


def test_swapped_records_move_two_counts() -> None:
    with pytest.raises(InputError, match="sensitivity is 1; "):
        replace(charge("a", adjacency="replace"), sensitivity=1.0)


DEMANDS = Demands(
    epsilons={"a": 2.0, "b": 0.0},
    draws={(0, "a"): 1, (1, "a"): 1},
    delta=DELTA,
    adjacency="add-remove",
    clip_norm=1.0,
    noise="exact",
    c2=None,
    samples={"a": 80, "b": 80},
    applied=2,
    label_epsilon=0.5,
)
ROUNDS = (gradient("a", 0), gradient("a", 1))


@pytest.mark.parametrize("adjacency", ["add-remove", "replace"])
def test_honest_charges_are_as_demanded(adjacency: str) -> None:
    rounds = [gradient("a", index, adjacency=adjacency) for index in (0, 1)]
    charges = [charge(client, adjacency=adjacency) for client in ("a", "b")]
    assert list(differences([*charges, *rounds], replace(DEMANDS, adjacency=adjacency))) == []


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda _: None, "the ledger lacks the charge for the label counts of client a"),
        (lambda r: replace(r, noise_std=r.noise_std * (1 + 2e-5)), "has noise std"),
        (lambda r: replace(r, noise_std=r.noise_std * (1 - 1e-5)), "has noise std"),
        (lambda r: replace(r, sensitivity=2.0, noise_std=2 * r.noise_std), "has sensitivity 2 for label counts"),
        (lambda r: replace(r, samples=81), "has samples 81 for label counts of client a; it must be 80"),
        (lambda r: replace(r, delta=1e-4), "has delta 0.0001"),
        (lambda r: replace(r, multiplicity=2), "has multiplicity 2"),
        (lambda r: replace(r, client="c"), "label counts of client c, which this run did not ask for"),
    ],
)
def test_any_edit_of_a_charge_is_found(edit: Callable[[Release], Release | None], words: str) -> None:
    charges = [release for release in (edit(charge("a")), charge("b")) if release is not None]
    assert any(words in line for line in differences([*charges, *ROUNDS], DEMANDS))


def test_a_charge_that_nobody_asked_for_is_found() -> None:
    lines = list(differences([charge("a"), *ROUNDS], replace(DEMANDS, label_epsilon=None)))
    assert lines == ["the ledger has label counts of client a, which this run did not ask for"]
    assert charge("a").query is Query.LABEL_COUNTS
