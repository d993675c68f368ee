"""Stored results that nobody ran, for the real specifications: what is read from them can be known beforehand."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from reproduction.config import RunConfig
from reproduction.economics import planner_settings
from reproduction.paths import Places
from reproduction.spec import load_specs
from reproduction.store import Record, write_sorted
from reproduction.tuned_settings import Chosen

CHECKOUT = Path(__file__).parents[2]


def copied_places(folder: Path) -> Places:
    """The real specifications and chosen values, without any result."""
    shutil.copytree(CHECKOUT / "reproduction" / "specs", folder / "reproduction" / "specs")
    (folder / "results" / "paper").mkdir(parents=True)
    shutil.copy(CHECKOUT / "results" / "paper" / "chosen.toml", folder / "results" / "paper")
    return Places.of(folder)


def choose_noise_weight(places: Places, weight: float) -> None:
    """Another Q at the top of chosen.toml."""
    text = places.chosen.read_text()
    places.chosen.write_text(re.sub(r"^noise_weight = .*$", f"noise_weight = {weight}", text, count=1, flags=re.M))


def result(accuracy: float, **changes: Any) -> dict[str, Any]:
    return {
        "loss_weight": 1.0,
        "monetary_cost": 1.0,
        "total_payment": 1.1,
        "loss_bound": 2.0 - accuracy,
        "gradient_norm": 1.0 - accuracy / 2,
        "epsilon_exact_max": 7.0,
        "accuracy": accuracy,
        "seconds": 1.0,
        **changes,
    }


def store(
    places: Places,
    spec_id: str,
    accuracy: Callable[[RunConfig], float | None],
    *,
    runs: Sequence[RunConfig] = (),
    changes: Callable[[RunConfig], dict[str, Any]] = lambda config: {},
) -> None:
    """Make up a result for every run of a specification for which `accuracy` gives one."""
    (spec,) = load_specs(places, [spec_id])
    configs = runs or spec.runs(Chosen.load(places.chosen))
    values = [(config, accuracy(config)) for config in configs]
    records = [
        Record(config=config, result=result(value, **{"monetary_cost": config.cost, **changes(config)}))
        for config, value in values
        if value is not None
    ]
    write_sorted(places.results / f"{spec_id}.jsonl", records)


def store_planner(places: Places, spec_id: str, made: dict[str, Any]) -> None:
    """Make up a planner's result, with the settings that hold now unless it brings others."""
    (spec,) = load_specs(places, [spec_id])
    stored = {"settings_used": planner_settings(spec, Chosen.load(places.chosen)), **made}
    places.planner.mkdir(exist_ok=True)
    (places.planner / f"{spec_id}.json").write_text(json.dumps(stored))
