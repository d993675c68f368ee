"""The words for what stored results say of a statement, and the usual rule behind them: two standard errors."""

from __future__ import annotations

import math
from dataclasses import dataclass

from reproduction.results import Difference

HOLDS, FAILS, NOISE = "holds", "does not hold", "within noise"
FAR = "holds, far larger"  # more than twice what is claimed is not what the paper saw
NOT_RUN, TOO_FEW = "not run", "too few runs"
SO_FAR = " so far"  # where runs are lacking that the specification asks for
ONE_SEED = " (one seed)"  # where it asks for no more: how far seeds differ is not known
NAMES = {"mnist": "MNIST", "cifar10": "CIFAR-10"}


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A statement, where it comes from, what the stored results say of it, and the numbers behind that."""

    source: str
    statement: str
    verdict: str
    numbers: str


def judged(difference: Difference | None, at_least: float = 0.0) -> str:
    """Two standard errors either way are noise."""
    if difference is None:
        return NOT_RUN
    if math.isinf(difference.error):
        return TOO_FEW
    if difference.mean - 2 * difference.error > at_least:
        return HOLDS
    return FAILS if difference.mean + 2 * difference.error < at_least else NOISE


def judged_below(difference: Difference | None) -> str:
    """The usual rule for a difference that is to be negative."""
    verdict = judged(difference)
    return {HOLDS: FAILS, FAILS: HOLDS}.get(verdict, verdict)


def so_far(verdict: str, words: str = SO_FAR) -> str:
    """The verdict where runs are still lacking, or other words go with it.

    >>> so_far(HOLDS), so_far(FAR), so_far(TOO_FEW), so_far(FAILS, ONE_SEED)
    ('holds so far', 'holds so far, far larger', 'too few runs', 'does not hold (one seed)')
    """
    if verdict in (NOT_RUN, TOO_FEW):
        return verdict
    word, comma, rest = verdict.partition(",")
    return f"{word}{words}{comma}{rest}"


def claim_of(
    source: str,
    statement: str,
    difference: Difference | None,
    verdict: str | None = None,
    *,
    numbers: str | None = None,
) -> Claim:
    """A claim about a difference; by the usual rule and with the usual numbers where none are given."""
    if difference is None:
        return Claim(source=source, statement=statement, verdict=NOT_RUN, numbers="no pair of runs is stored")
    words = SO_FAR if not difference.complete else ONE_SEED if difference.seeds == 1 else ""
    return Claim(
        source=source,
        statement=statement,
        verdict=so_far(verdict or judged(difference), words),
        numbers=str(difference) if numbers is None else numbers,
    )


def claim_up_to(source: str, statement: str, difference: Difference | None, points: float) -> Claim:
    """That the largest value over settings is as large as claimed; far larger is said to be so."""
    if difference is None:
        return claim_of(source, statement, None)
    largest = difference.largest
    verdict = FAILS if largest < points else FAR if largest > 2 * points else HOLDS
    numbers = f"largest {largest:+.1f} against {points:g}; {difference.mean_text} ({difference.where})"
    return claim_of(source, statement, difference, verdict, numbers=numbers)
