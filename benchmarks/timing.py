"""Repeated, interleaved timings, so that a noisy machine disturbs both sides of a ratio alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Medians in seconds: on the clock, and on the processor (which other processes disturb less)."""

    wall: float
    cpu: float

    def __str__(self) -> str:
        return f"{readable(self.wall)} ({readable(self.cpu)} cpu)"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table: what was timed, against what, and how it stands to its bar."""

    what: str
    bar: str
    measured: str
    ratio: float
    met: bool
    numbers: Mapping[str, Any]


def readable(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{1e3 * seconds:.3g} ms"


def once(run: Callable[[], Any]) -> Timing:
    """One run."""
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return Timing(wall=time.perf_counter() - wall, cpu=time.process_time() - cpu)


def interleaved(runs: Mapping[str, Callable[[], Any]], repetitions: int) -> dict[str, Timing]:
    """Medians of several rounds; each round runs every candidate once. One round before them warms up caches."""
    for run in runs.values():
        run()
    rounds: dict[str, list[Timing]] = {name: [] for name in runs}
    for _ in range(repetitions):
        for name, run in runs.items():
            rounds[name].append(once(run))
    return {name: median(timings) for name, timings in rounds.items()}


def median(timings: Sequence[Timing]) -> Timing:
    """The median of each clock."""
    return Timing(wall=statistics.median(t.wall for t in timings), cpu=statistics.median(t.cpu for t in timings))


def seconds(timings: Mapping[str, Timing]) -> dict[str, float]:
    """All timings as plain numbers, for the stored results."""
    return {f"{name} {clock}": getattr(timing, clock) for name, timing in timings.items() for clock in ("wall", "cpu")}
