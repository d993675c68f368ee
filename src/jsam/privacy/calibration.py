"""From the privacy a client sold to the noise its releases carry (docs/theory.md).

Client k's T_k releases are together one Gaussian mechanism of sensitivity √T_k Δ, so the noise below is exact: no
composition bound, and no amplification by client sampling, because the server knows who was drawn.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from jsam.errors import InputError
from jsam.privacy.adjacency import Adjacency
from jsam.privacy.gaussian import Numbers, as_given, checked, checked_delta
from jsam.privacy.noise import NoiseRule, noise_rule


def noise_multiplier(
    epsilon: Numbers,
    delta: float,
    participations: ArrayLike,
    *,
    noise: str | NoiseRule = "exact",
    c2: float | None = None,
    adjacency: str = Adjacency.ADD_REMOVE,
) -> Numbers:
    """Noise std of one draw's release ÷ (C/M), for a contract (ε, δ) over so many draws. Vectorised over clients.

    A client who is never drawn releases nothing: its multiplier is 0, whatever ε it sold. One who is drawn must have
    sold an ε above 0.
    """
    rule = noise_rule(noise, c2) if isinstance(noise, str) else noise
    kind = Adjacency.of(adjacency)
    checked_delta(delta)
    eps, times = np.broadcast_arrays(
        checked("epsilon", epsilon, low=0.0), checked("participations", participations, low=0.0)
    )
    drawn = times > 0
    if np.any(broken := times != np.floor(times)):
        place = int(np.argmax(broken))
        raise InputError(f"participations of client {place} is {times.ravel()[place]:g}; it must be a whole number")
    if np.any(unsold := drawn & (eps == 0)):
        place = int(np.argmax(unsold))
        raise InputError(
            f"epsilon of client {place} is 0 though it takes part; it must be above 0 for whoever is drawn"
        )
    multipliers = np.zeros(eps.shape)
    if np.any(drawn):
        multipliers[drawn] = rule.multipliers(eps[drawn], delta, times[drawn], kind)
    return as_given(epsilon, multipliers)
