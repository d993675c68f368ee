"""Whether the learning rate that suits a mechanism follows from the noise of its contract, whatever the mechanism."""

from __future__ import annotations

import math
import statistics
from functools import lru_cache
from typing import NamedTuple

from scipy.stats import spearmanr

from jsam.runs.settings import TrainingSettings
from jsam.training.learning_rate import fitted_learning_rate, shifts
from reproduction.config import RunConfig
from reproduction.results import Results
from reproduction.verdicts import FAILS, HOLDS, NAMES, NOT_RUN, TOO_FEW, Claim, so_far

SOURCE = "Found here"
MIN_SETTINGS = 10  # by chance alone fewer are often in one order
STRONG = 0.9
NEAR = 2.0  # a step that was tried stands for one that is at most so many times longer or shorter
CLOSE = 1.0  # points
OWN = {
    **{f"exact-{dataset}": f"{name}, exact accounting" for dataset, name in NAMES.items()},
    **{f"own-steps-{dataset}": f"{name}, Lemma 1's noise" for dataset, name in NAMES.items()},
}


class Step(NamedTuple):
    """The noise of a mechanism at a cost (see `NoisePlan.noise_ratio`), and the step that was best for it."""

    noise: float
    length: float
    """Mean over rounds, in clipping norms; with momentum, of what it adds up to."""


def step_claims(results: Results) -> list[Claim]:
    return [*(_ranked(results, spec_id, name) for spec_id, name in OWN.items()), *_fitted(results)]


def steps_of(results: Results, spec_id: str) -> list[Step]:
    """A step for every mechanism and cost that has one of its own, at s = 100, where it was chosen."""
    return [
        Step(noise=statistics.fmean(noises), length=_length(cell.config))
        for cell in results.cells(spec_id)
        if cell.config.similarity == 100 and _is_own(results, cell.config) and (noises := cell.values("noise_ratio"))
    ]


def _is_own(results: Results, config: RunConfig) -> bool:
    return results.chosen.step(config.as_dict()) is not None


def _length(config: RunConfig) -> float:
    return config.clip_norm * statistics.fmean(shifts(_settings(config)))


def _settings(config: RunConfig) -> TrainingSettings:
    """Return the settings that the learning rate depends on."""
    return TrainingSettings(
        rounds=config.rounds,
        clip_norm=config.clip_norm,
        learning_rate=config.learning_rate,
        learning_rate_schedule=config.learning_rate_schedule,
        momentum=config.momentum,
    )


def _ranked(results: Results, spec_id: str, name: str) -> Claim:
    steps = steps_of(results, spec_id)
    claimed = "the more noise, the smaller the best learning rate, whatever the mechanism"
    statement = f"{name}: {claimed} (ρ below −{STRONG})"
    if len(steps) < MIN_SETTINGS:
        verdict = TOO_FEW if steps else NOT_RUN
        return Claim(source=SOURCE, statement=statement, verdict=verdict, numbers=f"{len(steps)} learning rates")
    rank = float(spearmanr([step.noise for step in steps], [step.length for step in steps]).statistic)
    there, wanted = results.stored(spec_id)
    verdict = HOLDS if rank < -STRONG else FAILS
    numbers = f"ρ = {rank:+.2f} over {len(steps)} mechanisms and costs"
    verdict = so_far(verdict) if there < wanted else verdict
    return Claim(source=SOURCE, statement=statement, verdict=verdict, numbers=numbers)


def _fitted(results: Results) -> list[Claim]:
    """What the fitted learning rate loses against the best of those tried, for each noise rule and data set."""
    losses: dict[tuple[str, str], list[float]] = {}
    for tried in _tried(results):
        config, noise_ratio = tried[0][:2]
        best = max(accuracy for *_, accuracy in tried)
        fitted = fitted_learning_rate(
            _settings(config),
            noise_norm=noise_ratio * config.clip_norm * math.sqrt(config.rounds),
            weights_norm=_weights_norm(config.dataset, config.seed),
        )
        away, accuracy = min((abs(math.log(c.learning_rate / fitted)), accuracy) for c, _, accuracy in tried)
        if len(tried) > 1 and away <= math.log(NEAR):
            losses.setdefault((config.noise, config.dataset), []).append(100 * (best - accuracy))
    claims = []
    for noise, dataset in (("exact", "mnist"), ("exact", "cifar10"), ("lemma1", "mnist"), ("lemma1", "cifar10")):
        rule = "exact accounting" if noise == "exact" else "Lemma 1's noise"
        statement = (
            f"{NAMES[dataset]}, {rule}: the fitted learning rate is within a point of the best tried, on average"
        )
        lost = losses.get((noise, dataset), [])
        if len(lost) < MIN_SETTINGS:
            verdict = TOO_FEW if lost else NOT_RUN
            claims.append(Claim(source=SOURCE, statement=statement, verdict=verdict, numbers=f"{len(lost)} settings"))
            continue
        mean = statistics.fmean(lost)
        numbers = (
            f"{mean:.2f} points below on average, {max(lost):.1f} at most, over {len(lost)} settings "
            f"in which a learning rate within {NEAR:g} times of the fitted one was tried (held out)"
        )
        verdict = HOLDS if mean <= CLOSE else FAILS
        claims.append(Claim(source=SOURCE, statement=statement, verdict=verdict, numbers=numbers))
    return claims


def _tried(results: Results) -> list[list[tuple[RunConfig, float, float]]]:
    """Held-out runs that differ in their step alone: configuration, noise and accuracy, the shortest step first."""
    groups: dict[str, list[tuple[RunConfig, float, float]]] = {}
    for record in results.known.values():
        config, result = record.config, record.result
        if config.held_out and result.get("noise_ratio") is not None and "same_as" not in result:
            alike = {**config.as_dict(), "learning_rate": 1.0}
            run = config, result["noise_ratio"], float(result["accuracy"])
            groups.setdefault(RunConfig.from_dict(alike).key, []).append(run)
    return [sorted(group, key=lambda run: run[0].learning_rate) for group in groups.values()]


@lru_cache(maxsize=16)
def _weights_norm(dataset: str, seed: int) -> float:
    from jsam.training.task import weights_norm
    from reproduction.tasks import first_model

    return weights_norm(first_model(dataset, seed))
