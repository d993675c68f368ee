"""One line of a benchmark's table, and how times are taken."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, kw_only=True)
class Row:
    """What was asked for and what a run gave."""

    what: str
    bar: str
    measured: str
    met: bool
    ours: str
    peer: str = ""


def timed(*works: Callable[[], object], repeat: int = 5) -> list[float]:
    """Median seconds of each, taken in turns so that a busy machine is unfair to none."""
    times: list[list[float]] = [[] for _ in works]
    for _ in range(repeat):
        for record, work in zip(times, works, strict=True):
            start = time.perf_counter()
            work()
            record.append(time.perf_counter() - start)
    return [median(record) for record in times]


def seconds(value: float) -> str:
    return f"{value:.3g} s" if value >= 1 else f"{value * 1e3:.3g} ms"
