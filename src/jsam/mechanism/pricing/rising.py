"""Where a function that rises, but for small dips, crosses zero."""

from __future__ import annotations

import math
from collections.abc import Callable

LARGEST = 600.0  # e to this is still far from the largest double


def crossing(
    excess: Callable[[float], float],
    *,
    start: float,
    step: float,
    near: float,
    never: Exception,
    width: float = 1e-9,
    progress: Callable[[float], None] | None = None,
) -> float:
    """An x with `excess` at most 0 there and more than 0 just above: by at most `near`, or at most `width` away.

    A bracket is found from `start` in growing steps, then narrowed by secants, with a halving now and then for the
    steps that the function makes. If it never exceeds 0, `never` is raised.
    """
    low = high = start
    below = above = excess(start)
    reach = step
    while below > 0:
        high, above = low, below
        low -= reach
        reach *= 2
        below = excess(low)
    reach = step
    while above <= 0:
        low, below = high, above
        if high > LARGEST:
            raise never
        high += reach
        reach *= 2
        above = excess(min(high, LARGEST + 1))
    for number in range(200):
        if below > -near or high - low < width:
            break
        if progress is not None:
            progress(1 - 0.7 ** (number + 1))
        secant = low + (high - low) * below / (below - above) if math.isfinite(below) else low
        middle = (low + high) / 2 if number % 2 or not low < secant < high else secant
        value = excess(middle)
        if value <= 0:
            low, below = middle, value
        else:
            high, above = middle, value
    return low
