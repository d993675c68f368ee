"""The benchmark of reply times can tell apart what differs, and does not what does not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.conftest import require

if not TYPE_CHECKING:
    require("flwr", extra="flower")

import torch

from benchmarks.reply_times import offer_model, overflowing, raising, told_apart
from jsam.training.federated.parameters import put_into
from jsam.training.models import build_model


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


def test_the_trap_differs_in_one_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    offer_model(tmp_path / "site")
    for trap, place in ((overflowing, 17), (raising, 27)):
        without, with_it, targets, parameters = trap(30)
        assert np.flatnonzero((without != with_it).reshape(30, -1).any(axis=1)).tolist() == [place]
        assert len(targets) == 30
        assert parameters.max() == np.float32(3e38)


def test_the_code_raises_at_the_trap_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    offer_model(tmp_path / "site")
    without, with_it, _, parameters = raising(30)
    model = build_model("raising", 0)
    put_into(model, parameters)
    model(torch.from_numpy(without))
    with pytest.raises(ArithmeticError):
        model(torch.from_numpy(with_it[27:28]))
