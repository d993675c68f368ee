"""The benchmark of reply times can tell apart what differs, and does not what does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tests.conftest import require

if not TYPE_CHECKING:
    require("flwr", extra="flower")

from benchmarks.reply_times import told_apart, trap


def test_times_that_differ_are_told_apart_and_times_that_do_not_are_not() -> None:
    rng = np.random.default_rng(0)
    same = [rng.normal(1.0, 0.1, 200) for _ in range(2)]
    assert told_apart(same[0], same[1] + 1.0)["held_out"] > 0.98
    assert told_apart(same[0] + 1.0, same[1])["held_out"] > 0.98
    shares = [told_apart(rng.normal(1.0, 0.1, 200), rng.normal(1.0, 0.1, 200))["held_out"] for _ in range(50)]
    assert abs(float(np.mean(shares)) - 0.5) < 0.02


def test_times_on_a_grid_are_told_apart_as_little_as_a_coin_would() -> None:
    """Nearly all replies leave at one moment; to be right in half of them is no more than to guess."""
    rng = np.random.default_rng(0)
    without, with_it = (np.where(rng.random(200) < 0.02, 2.0, 1.0) for _ in range(2))
    assert abs(told_apart(without, with_it)["held_out"] - 0.5) < 0.03


def test_the_trap_differs_in_one_record() -> None:
    without, with_it, targets, parameters = trap(30)
    assert np.flatnonzero((without != with_it).any(axis=(1, 2, 3))).tolist() == [17]
    assert len(targets) == 30
    assert parameters.max() == np.float32(3e38)
