"""The schedule and the streams of randomness behind it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chisquare

import jsam.privacy.schedule as schedule_module
from jsam.errors import InputError, JsamError
from jsam.privacy import Schedule, derived_seed, generator


def test_draws_follow_the_selection_probabilities() -> None:
    p = np.random.default_rng(0).dirichlet(np.ones(20))
    counts = Schedule.draw(p, rounds=20_000, per_round=10, seed=3).participations
    assert counts.sum() == 200_000
    assert chisquare(counts, 200_000 * p).pvalue > 1e-3
    assert chisquare(counts, 200_000 * np.roll(p, 1)).pvalue < 1e-9


def test_slots_of_a_round_are_independent_draws_with_replacement() -> None:
    """With p = 1/10 two slots hold the same client in a tenth of all rounds."""
    draws = Schedule.draw(np.full(10, 0.1), rounds=100_000, per_round=2, seed=4).draws
    assert abs(np.mean(draws[:, 0] == draws[:, 1]) - 0.1) < 4 * np.sqrt(0.09 / 100_000)
    assert abs(np.mean(draws[1:, 0] == draws[:-1, 0]) - 0.1) < 4 * np.sqrt(0.09 / 100_000)


def test_a_client_of_probability_zero_is_never_drawn() -> None:
    p = np.array([0.0, 0.5, 0.0, 0.5, 0.0])
    counts = Schedule.draw(p, rounds=5000, per_round=10, seed=0).participations
    assert counts[[0, 2, 4]].tolist() == [0, 0, 0]
    assert counts.sum() == 50_000


def test_a_client_of_probability_zero_is_not_drawn_at_a_boundary_either(monkeypatch: pytest.MonkeyPatch) -> None:
    class Boundaries:
        def random(self, shape: tuple[int, int]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
            return np.array([[0.0, 0.5, np.nextafter(1.0, 0.0)]])

    monkeypatch.setattr(schedule_module, "generator", lambda seed, purpose: Boundaries())
    schedule = Schedule.draw([0.0, 0.5, 0.0, 0.5, 0.0], rounds=1, per_round=3, seed=0)
    assert schedule.draws.tolist() == [[1, 3, 3]]


def test_rounds_list_distinct_clients_with_their_multiplicities() -> None:
    schedule = Schedule(num_clients=5, draws=np.array([[3, 1, 3], [0, 0, 0]]))
    first, second = schedule
    assert (first.clients.tolist(), first.multiplicities.tolist()) == ([1, 3], [1, 2])
    assert (second.clients.tolist(), second.multiplicities.tolist()) == ([0], [3])
    assert schedule.participations.tolist() == [3, 1, 0, 2, 0]
    assert (schedule.rounds, schedule.per_round) == (2, 3)


def test_multiplicities_add_up_to_participations() -> None:
    schedule = Schedule.draw(np.full(30, 1 / 30), rounds=200, per_round=10, seed=1)
    total = np.zeros(30, dtype=np.int64)
    for drawn in schedule:
        total[drawn.clients] += drawn.multiplicities
    assert total.tolist() == schedule.participations.tolist()


def test_same_seed_same_schedule_and_same_bytes(tmp_path: Path) -> None:
    p = np.full(30, 1 / 30)
    for name in ("a", "b"):
        Schedule.draw(p, rounds=50, per_round=10, seed=11).save(tmp_path / name)
    Schedule.draw(p, rounds=50, per_round=10, seed=12).save(tmp_path / "c")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() != (tmp_path / "c").read_bytes()


def test_the_draws_of_a_seed_do_not_change_from_version_to_version() -> None:
    """A resumed run and a published seed rely on this; the numbers were computed once and written down."""
    assert Schedule.draw(np.full(100, 0.01), rounds=2, per_round=5, seed=7).draws.tolist() == FROZEN_DRAWS


def test_saved_and_loaded_is_the_same(tmp_path: Path) -> None:
    schedule = Schedule.draw([0.2, 0.3, 0.5], rounds=20, per_round=4, seed=2)
    schedule.save(tmp_path / "schedule.jsonl")
    loaded = Schedule.load(tmp_path / "schedule.jsonl")
    assert loaded.num_clients == 3
    assert np.array_equal(loaded.draws, schedule.draws)
    assert [path.name for path in tmp_path.iterdir()] == ["schedule.jsonl"]


def test_a_cut_or_foreign_schedule_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "schedule.jsonl"
    Schedule.draw([0.5, 0.5], rounds=20, per_round=4, seed=2).save(path)
    whole = path.read_bytes()
    for cut in range(len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(InputError, match=r"schedule\.jsonl"):
            Schedule.load(path)
    path.write_bytes(whole.replace(b'"jsam_schedule":1', b'"jsam_schedule":2'))
    with pytest.raises(InputError, match="format 2"):
        Schedule.load(path)
    with pytest.raises(InputError, match="cannot be read"):
        Schedule.load(tmp_path / "absent")


def test_a_folder_that_is_not_there_is_named_on_save(tmp_path: Path) -> None:
    with pytest.raises(JsamError, match="could not be written"):
        Schedule.draw([1.0], rounds=1, per_round=1, seed=0).save(tmp_path / "no" / "schedule.jsonl")


@pytest.mark.parametrize(
    ("p", "rounds", "per_round", "message"),
    [
        ([0.5, 0.4], 1, 1, "selection_probs sums to 0.9"),
        ([1.5, -0.5], 1, 1, r"selection_probs\[1\] is -0.5"),
        ([], 1, 1, "selection_probs has shape"),
        ([1.0], 0, 1, "rounds is 0; it must be at least 1"),
        ([1.0], 1, 0, "per_round is 0; it must be at least 1"),
    ],
)
def test_unusable_arguments_are_refused(p: list[float], rounds: int, per_round: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Schedule.draw(p, rounds=rounds, per_round=per_round, seed=0)


def test_a_schedule_cannot_be_changed_or_name_unknown_clients() -> None:
    schedule = Schedule(num_clients=2, draws=np.array([[0, 1]]))
    with pytest.raises(ValueError, match="read-only"):
        schedule.draws[0, 0] = 1
    with pytest.raises(InputError, match="must lie in 0 to 1"):
        Schedule(num_clients=2, draws=np.array([[0, 2]]))


def test_streams_are_repeatable_and_all_different() -> None:
    """Every name is another stream; absent is not the same as 0, and words of 32 bits do not slide."""
    keys: list[tuple[int, str, int | None, int | None]] = [
        (seed, purpose, round, client)
        for seed in (0, 1, 2**32, 2**127)
        for purpose in ("noise", "schedule", "")
        for round in (None, 0, 1, 2**32)
        for client in (None, 0, 1, 2**32)
    ]
    first = [generator(s, p, round=r, client=c).integers(2**63) for s, p, r, c in keys]
    again = [generator(s, p, round=r, client=c).integers(2**63) for s, p, r, c in reversed(keys)]
    assert first == again[::-1]
    assert len(set(first)) == len(keys)
    seeds = {derived_seed(s, p, round=r, client=c) for s, p, r, c in keys}
    assert len(seeds) == len(keys)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_neighbouring_streams_are_uncorrelated() -> None:
    a = np.array([generator(0, "noise", round=r, client=0).standard_normal(100) for r in range(200)])
    correlation = np.corrcoef(a)[np.triu_indices(200, 1)]
    assert abs(correlation.mean()) < 4 * 0.1 / np.sqrt(correlation.size)
    assert abs(correlation.std() - 0.1) < 0.01


def test_a_negative_seed_or_round_is_refused() -> None:
    with pytest.raises(InputError, match="seed is -1"):
        generator(-1, "noise")
    with pytest.raises(InputError, match="round is -1"):
        generator(1, "noise", round=-1)


FROZEN_DRAWS = [[66, 77, 47, 79, 43], [43, 98, 32, 10, 91]]
