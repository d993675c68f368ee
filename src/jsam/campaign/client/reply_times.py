"""When a reply may leave: at times that follow from the number of records and the model, not from the records.

How long a computation takes is an answer without noise: a server that can make it slower for some record (a gradient
that overflows, a cache that misses) learns from the time of the reply whether this record is there. So a reply waits
for the next of equally spaced moments, counted from the arrival of the request. Their distance is found with made-up
records, as many as the client has and of the same shape, and is at least twice what they take: only what more than
doubles the time of a reply shows at all. It is kept beside the ledger, so that it is the same for a whole campaign.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from jsam.files import make_folder, write_atomically

SHORTEST_STEP = 0.25  # seconds; below, the disk and the system decide how long a reply takes
_MARGIN, _BESIDES = 2.0, 0.1
_LONGEST = 1e6


@dataclass(frozen=True, kw_only=True)
class Work:
    """What the time of a reply may depend on, besides the machine: the model, and number and form of the records.

    `shape` is that of all inputs and `labels` that of all targets; the first number of both is that of the records.
    """

    model: str
    kind: str
    shape: tuple[int, ...]
    labels: tuple[int, ...]

    @property
    def digest(self) -> str:
        words = json.dumps([self.model, self.kind, self.shape, self.labels])
        return hashlib.sha256(words.encode()).hexdigest()[:32]


def step_for(seconds: float) -> float:
    """The distance of the moments for a computation of so many seconds: 0.25, 0.375, 0.5, 0.75, 1, 1.5, 2, … s.

    At least twice as long, so that what usually disturbs a reply does not carry it past the first moment.
    """
    needed = max(SHORTEST_STEP, _MARGIN * (seconds + _BESIDES))
    power = SHORTEST_STEP * 2.0 ** math.floor(math.log2(needed / SHORTEST_STEP))
    return next(step for step in (power, 1.5 * power, 2 * power) if step >= needed)


@dataclass(frozen=True, kw_only=True)
class ReplyTimes:
    """Makes replies wait. `measure` says how many seconds a reply's computation takes on made-up records and with a
    made-up model. The clock is there for tests; nothing in a message can reach either."""

    measure: Callable[[Work], float]
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def step(self, folder: Path, work: Work) -> float:
        """Seconds between two moments: as kept in `folder`, else measured now and kept."""
        kept = folder / "reply-steps" / f"{work.digest}.json"
        known = _read(kept)
        if known is None:
            known = step_for(self.measure(work))
            make_folder(folder)
            make_folder(kept.parent)
            content = {"seconds": known, "model": work.model, "records": work.shape[0]}
            write_atomically(kept, json.dumps(content).encode())
        return known

    def wait(self, since: float, step: float) -> None:
        """Sleep until the next moment after a request that arrived at `since`; a step of 0 waits for nothing."""
        if step <= 0:
            return
        due = since + step * math.ceil(max(self.now() - since, step / 2) / step)
        while (left := due - self.now()) > 0:
            self.sleep(left)


def _read(path: Path) -> float | None:
    """What was kept; None if there is nothing that can be read, which is then found again."""
    try:
        seconds = json.loads(path.read_bytes())["seconds"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    good = isinstance(seconds, float) and SHORTEST_STEP <= seconds <= _LONGEST
    return seconds if good else None
