"""Even shares are judged by the stored numbers: made-up results with a known answer get that answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from reproduction.config import RunConfig
from reproduction.even_results import capped_rows, even_claims, uncapped_rows, wrong_rows
from reproduction.paths import Places
from reproduction.results import Results
from reproduction.verdicts import FAILS, HOLDS, NOT_RUN, Claim
from tests.reproduction.made_up import copied_places, store


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return copied_places(tmp_path)


def claim(places: Places, words: str) -> Claim:
    (found,) = [c for c in even_claims(Results(places)) if words in c.statement]
    return found


def ours(config: RunConfig) -> float:
    """jsam-even has 0.9 with its own Q and less with another; JSAM is best, 0.85, at Q = 200."""
    if config.mechanism == "jsam-even":
        return 0.9 if config.noise_weight == 1.66 else 0.7
    return 0.85 if config.noise_weight == 200 else 0.6


def store_all(places: Places, rival: float, honest: float) -> None:
    store(places, "even-mnist", ours)
    rivals = {"pay-as-bid": honest, "csra": rival}
    store(places, "rivals-mnist", lambda c: rivals.get(c.mechanism, 0.4))


def test_nothing_stored_means_not_run(places: Places) -> None:
    assert {found.verdict for found in even_claims(Results(places))} == {NOT_RUN}
    assert uncapped_rows(Results(places)) == capped_rows(Results(places)) == wrong_rows(Results(places)) == []


@pytest.mark.parametrize(("best", "verdict"), [(0.911, HOLDS), (0.913, FAILS)])
def test_what_the_number_of_clients_costs(places: Places, best: float, verdict: str) -> None:
    store(places, "even-mnist", ours)
    store(places, "even-shares-mnist", lambda c: best if c.mechanism == "fsbm-5" else 0.5)
    verdict_found = claim(places, "MNIST: the number of clients")
    assert verdict_found.verdict == verdict
    assert f"{100 * (best - 0.9):+.2f} at s = 100" in verdict_found.numbers


def test_the_papers_mechanism_has_its_best_noise_weight(places: Places) -> None:
    store(places, "even-mnist", ours)
    store(places, "even-shares-mnist", lambda c: 0.9 if c.mechanism == "fsbm-5" else 0.5)
    assert claim(places, "s = 100, no cap").numbers.startswith("mean +5.0 points")
    assert claim(places, "s = 0, no cap").verdict == FAILS  # ten points are asked there
    row = uncapped_rows(Results(places))[0]
    assert (row[3], row[6], row[7], row[8]) == ("90.0", "5", "90.0", "85.0")


def test_a_rival_is_held_against_it_at_every_cost(places: Places) -> None:
    store_all(places, rival=0.905, honest=0.95)
    assert claim(places, "truthful rival").verdict == HOLDS
    found = claim(places, "pay-as-bid")
    assert found.verdict == FAILS
    assert found.numbers.count("-5.0 at s = ") == 20
    row = capped_rows(Results(places))[0]
    assert (row[6], row[7], row[9]) == ("90.5", "`csra`", "95.0")


def test_wrong_weights_have_a_column_each(places: Places) -> None:
    store(places, "even-mnist", ours)
    assert wrong_rows(Results(places))[0] == ["100", "70.0", "70.0", "90.0", "70.0", "70.0"]
