"""What several Gaussian mechanisms cost together: exactly, by μ = √(Σ μ²), never less (docs/theory.md).

The outputs of independent Gaussian mechanisms with μ_1, μ_2, … are, together, one Gaussian mechanism with
μ = √(Σ μ_i²), also where each was chosen after the earlier outputs were seen. So ε at a stated δ follows from μ alone.
Basic composition, (Σ ε_i, Σ δ_i), holds too and is larger.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from jsam.privacy.gaussian import epsilon_of


def composed_mu(mus: Iterable[float]) -> float:
    """μ of all together; it is correct to the last bit but one, far within the margin of `composed_epsilon`."""
    return math.hypot(*mus)


def composed_epsilon(mus: Iterable[float], delta: float) -> float:
    """ε of all together at this δ, rounded up: never less than what the releases cost."""
    return float(epsilon_of(composed_mu(mus), delta))
