"""Exact binomial bounds (Clopper and Pearson's): how sure a share that was seen makes a probability."""

from __future__ import annotations

import math


def at_most(failures: int, draws: int, chance: float) -> float:
    """P(no more than so many failures in so many independent draws), each failing with that chance."""
    if failures >= draws:
        return 1.0
    log_chance, log_rest = math.log(chance), math.log1p(-chance)
    total = math.lgamma(draws + 1)
    return math.fsum(
        math.exp(total - math.lgamma(k + 1) - math.lgamma(draws - k + 1) + k * log_chance + (draws - k) * log_rest)
        for k in range(failures + 1)
    )


def least_draws(probability: float, confidence: float) -> int:
    """The fewest draws that, all without a failure, show that success has at least that probability.

    >>> least_draws(0.95, 0.999)
    135
    """
    return math.ceil(math.log1p(-confidence) / math.log(probability))


def most_failures(draws: int, probability: float, confidence: float) -> int | None:
    """The most failures that still show that success has at least that probability; None if even 0 does not.

    >>> most_failures(400, 0.95, 0.999)
    7
    """
    failures, chance = -1, 1 - probability
    while failures < draws and at_most(failures + 1, draws, chance) <= 1 - confidence:
        failures += 1
    return None if failures < 0 else failures


def lower_bound(successes: int, draws: int, confidence: float) -> float:
    """A lower bound on the probability of success, which is wrong with a chance of at most 1 − `confidence`.

    >>> round(lower_bound(392, 400, 0.999), 3)
    0.948
    """
    if successes == 0:
        return 0.0
    low, high = 0.0, successes / draws
    for _ in range(60):
        middle = (low + high) / 2
        if middle > 0 and at_most(draws - successes, draws, 1 - middle) > 1 - confidence:
            high = middle
        else:
            low = middle
    return low
