"""A learning rate from what is known before training: the noise that a contract brings, and the size of first weights.

Noise alone takes the weights for a random walk. The learning rate that suits a run is the one at which that walk ends
about three times as far from where it began as the first weights are from zero: shorter wastes what was bought, longer
drowns it. It looks at no data, so it costs no privacy, which a search would. docs/theory.md has the reason and what
the number rests on.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from jsam.mechanism.contract import Contract
from jsam.runs.noise_plan import NoisePlan
from jsam.runs.settings import TrainingSettings

if TYPE_CHECKING:
    from jsam.training.task import Task

REACH = 3.0
"""How far noise alone may take the weights, in norms of the first weights."""
LONGEST = 1.5
"""Where there is hardly any noise: mean step of a round, in clipping norms; CIFAR-10 broke at five."""


def fitted_learning_rate(settings: TrainingSettings, *, noise_norm: float, weights_norm: float) -> float:
    """The learning rate for noise of this norm in a typical round, and first weights of that norm.

    The one in the settings has no say.
    """
    moved = shifts(replace(settings, learning_rate=1.0))
    longest = LONGEST / (settings.clip_norm * math.fsum(moved) / settings.rounds)
    walk = noise_norm * math.sqrt(math.fsum(shift**2 for shift in moved))
    return min(longest, REACH * weights_norm / walk) if walk > 0 else longest


def shifts(settings: TrainingSettings) -> list[float]:
    """How far a unit that is added in a round, last round first, has moved the weights in the end.

    With momentum it goes on moving them for a while.
    """
    moved, later = [], 0.0
    for index in reversed(range(settings.rounds)):
        later = settings.learning_rate_at(index) + settings.momentum * later
        moved.append(later)
    return moved


def with_fitted_step(contract: Contract, task: Task, settings: TrainingSettings) -> TrainingSettings:
    """The settings with the learning rate that fits the noise of this contract."""
    return fitted_plan(contract, task, settings).settings


def fitted_plan(contract: Contract, task: Task, settings: TrainingSettings) -> NoisePlan:
    """The plan of the noise, and in its settings the learning rate that fits it."""
    plan = NoisePlan.of(contract, settings, task.partition.sizes)
    rate = fitted_learning_rate(
        settings,
        noise_norm=plan.typical_noise() * math.sqrt(task.num_parameters),
        weights_norm=task.weights_norm,
    )
    return replace(plan, settings=replace(settings, learning_rate=float(f"{rate:.3g}")))
