"""Runs that want a learning rate of their own before one is chosen: how many wait, and what to run first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reproduction.config import RunConfig
from reproduction.paths import PROGRAM, Places
from reproduction.spec import Spec, load_specs
from reproduction.store import read_places
from reproduction.tuned_settings import Chosen, variant_key

TUNES_STEPS = "tuning-steps-"  # what the experiments that `choose` takes such learning rates from are called


def waiting_lines(specs: Sequence[Spec], chosen: Chosen, places: Places) -> dict[str, str]:
    """For each experiment with runs that wait, a line that says for what."""
    waiting = {spec.id: settings for spec in specs if (settings := spec.waiting(chosen))}
    if not waiting:
        return {}
    known = read_places(places)
    tuning = {spec.id: spec.runs(chosen) for spec in load_specs(places) if spec.id.startswith(TUNES_STEPS)}
    lines = {}
    for name, settings in waiting.items():
        wanted = {_variant(run) for run in settings}
        costs = {(noise, dataset, cost) for noise, dataset, _, cost in wanted}
        able = [other for other, runs in tuning.items() if any(_variant(run.as_dict()) in wanted for run in runs)]
        # At a cost nothing is chosen before every variant has been tuned there.
        first = [other for other in able if any(run.key not in known and _cost(run) in costs for run in tuning[other])]
        then = f"run {' '.join(first)}, then {PROGRAM} choose" if first else "choose"
        what = f"first {PROGRAM} {then}" if able else "no experiment tunes them"
        waits = f"{len(settings)} run{' waits' if len(settings) == 1 else 's wait'}"
        lines[name] = f"{name}: {waits} for learning rates that are not chosen yet; {what}"
    return lines


def _variant(settings: Mapping[str, Any]) -> tuple[str, str, str, float]:
    variant = variant_key(settings["mechanism"], settings.get("max_selection_prob"))
    return str(settings.get("noise")), str(settings.get("dataset")), variant, float(settings["cost"])


def _cost(config: RunConfig) -> tuple[str, str, float]:
    return config.noise, config.dataset, config.cost
