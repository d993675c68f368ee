"""A checkout with small experiments on scikit-learn's digits."""

from __future__ import annotations

from pathlib import Path

import pytest

from reproduction.paths import Places
from tests.conftest import require

require("torch", extra="train")
require("sklearn", extra="train")

SPEC = """
order = 1
title = "Digits at two costs"
kind = "training"
shows = "nothing of the paper"

[settings]
dataset = "digits"
num_clients = 10
rounds = 4
per_round = 3
noise = "lemma1"
c2 = "chosen"
noise_weight = "chosen"
clip_norm = 1
learning_rate = 0.5

[[grid]]
seed = [0, 1]
similarity = [100, 0]
cost = 5
mechanism = ["jsam", "bbm-5"]
"""

PLANNER = """
order = 3
title = "Ten clients"
kind = "planner"
shows = "nothing of the paper"

[settings]
what = "structure"
num_clients = 10
seed = 1
etas = [0.5]
noise_weight = "chosen"
"""

CHOSEN = """
noise_weight = 9.0

[lemma1]
c2 = 0.1
"""


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for folder, name, text in (("reproduction/specs", "small.toml", SPEC), ("results/paper", "chosen.toml", CHOSEN)):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / name).write_text(text)
    return Places.of(tmp_path)
