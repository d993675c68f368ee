"""Claims are judged by the stored numbers: made-up results with a known answer get that answer."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from jsam.experiments.claims import FAILS, HOLDS, NOISE, NOT_RUN, SO_FAR, TOO_FEW, Claim, all_claims, judged
from jsam.experiments.config import RunConfig
from jsam.experiments.places import Places
from jsam.experiments.results import Difference, Results
from tests.experiments.made_up import copied_places, store


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return copied_places(tmp_path)


def claim(places: Places, words: str) -> Claim:
    (found,) = [c for c in all_claims(Results(places)) if words in c.statement]
    return found


def ranked(config: RunConfig) -> float:
    """JSAM 20 points above USBM, FSBM between, BBM last; seeds differ by a point, which hits all alike."""
    levels = {"jsam": 0.9, "jsam-ci": 0.89, "usbm": 0.7, "fsbm-50": 0.8, "fsbm-75": 0.75, "bbm-50": 0.6}
    spread = 0.03 if config.similarity == 0 else 0.01
    return levels[config.mechanism] + spread * config.seed


def test_nothing_stored_means_not_run(places: Places) -> None:
    assert {found.verdict for found in all_claims(Results(places))} == {NOT_RUN}


def test_panels_with_a_known_order(places: Places) -> None:
    store(places, "panels-mnist", ranked)
    assert claim(places, "MNIST: JSAM gains up to 15 points").verdict == HOLDS
    assert claim(places, "MNIST: JSAM is above the best baseline").verdict == HOLDS
    assert claim(places, "MNIST: JSAM is up to 8 points above").verdict == HOLDS
    assert claim(places, "MNIST: fsbm-50 is up to 12").verdict == FAILS
    assert claim(places, "MNIST: BBM stays below").verdict == HOLDS
    assert claim(places, "MNIST: accuracy varies more").verdict == HOLDS
    gain = claim(places, "MNIST: JSAM gains at least 8 points")
    assert gain.verdict == HOLDS
    assert "mean +20.0" in gain.numbers
    assert "above 0 in 12 of 12 settings, 3 seeds" in gain.numbers
    assert claim(places, "CIFAR-10: JSAM gains at least 8 points").verdict == NOT_RUN


def test_the_other_way_round_does_not_hold(places: Places) -> None:
    store(places, "panels-mnist", lambda c: 1 - ranked(c))
    assert claim(places, "MNIST: JSAM is above the best baseline").verdict == FAILS
    assert claim(places, "MNIST: JSAM gains at least 8 points").verdict == FAILS


def test_half_a_pair_is_no_pair(places: Places) -> None:
    """Runs of JSAM alone, or of other seeds than USBM's, are compared with nothing."""
    store(places, "panels-mnist", lambda c: 0.9 if (c.mechanism == "jsam") == (c.seed == 0) else None)
    assert claim(places, "MNIST: JSAM gains at least 8 points").verdict == NOT_RUN


def test_table_values_are_held_against_the_papers(places: Places) -> None:
    paper = {100.0: 0.9905, 70.0: 0.9893 - 0.0049, 30.0: 0.9888 - 0.0051, 0.0: 0.9813}
    store(places, "table-mnist", lambda c: paper[c.similarity] if c.seed == 0 else None)
    verdicts = {s: claim(places, f"MNIST, s = {s:g}: JSAM's table").verdict for s in paper}
    assert verdicts == {100.0: HOLDS, 70.0: HOLDS, 30.0: FAILS, 0.0: HOLDS}
    assert claim(places, "MNIST: at large cost JSAM and USBM are alike").verdict == HOLDS + SO_FAR  # one seed of three


def test_a_bound_that_orders_the_runs_has_rank_correlation_minus_one(places: Places) -> None:
    store(places, "panels-mnist", ranked)
    found = claim(places, "MNIST: a lower bound")
    assert found.verdict == HOLDS
    assert "-1.00 with accuracy, +1.00 with the gradient norm" in found.numbers


def test_the_straggler(places: Places) -> None:
    store(places, "straggler", lambda c: 0.9 if c.mechanism == "jsam" else 0.5 + (c.straggler_epsilon or 0) * 4)
    found = claim(places, "One client with a tiny ε")
    assert found.verdict == HOLDS
    assert "USBM loses 40.0 points, JSAM 0.0" in found.numbers


def test_two_standard_errors_are_noise() -> None:
    def difference(mean: float, error: float) -> Difference:
        return Difference(mean=mean, error=error, largest=mean, seeds=3, settings=1, ahead=1)

    assert judged(difference(1.0, 0.4)) == HOLDS
    assert judged(difference(1.0, 0.6)) == NOISE
    assert judged(difference(-1.0, 0.4)) == FAILS
    assert judged(difference(9.0, 0.4), 8.0) == HOLDS
    assert judged(difference(8.5, 0.4), 8.0) == NOISE
    assert judged(difference(50.0, math.inf)) == TOO_FEW


def test_the_error_of_a_difference_is_that_of_the_seeds() -> None:
    pairs = [(seed, setting, value) for seed, value in ((0, 1.0), (1, 3.0)) for setting in ("a", "b", "c")]
    found = Difference.of(pairs)
    assert found is not None
    assert found.error == pytest.approx(1.0)
    assert (found.mean, found.seeds, found.settings) == (2.0, 2, 3)
    assert Difference.of([]) is None


def test_a_setting_with_more_seeds_weighs_no_more_than_another() -> None:
    found = Difference.of([(0, "a", 1.0), (1, "a", 1.0), (2, "a", 1.0), (0, "b", 5.0)], complete=False)
    assert found is not None
    assert found.mean == 3.0
    assert "up to 3 seeds" in str(found)
