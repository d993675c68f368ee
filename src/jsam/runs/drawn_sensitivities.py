"""Simulated clients: what they would report, drawn from the prior before anything else is known."""

from __future__ import annotations

import numpy as np

from jsam.mechanism._arrays import FloatArray
from jsam.mechanism.market import virtual_cost_of
from jsam.mechanism.priors import Prior
from jsam.privacy import generator


def draw_sensitivities(prior: Prior, num_clients: int, seed: int) -> FloatArray:
    """One sensitivity a client, independent of data and schedule."""
    rng = generator(seed, "sensitivities")
    drawn = np.asarray(prior.rvs(size=num_clients, random_state=rng), dtype=np.float64)
    cost = virtual_cost_of(prior)
    # A draw at the very bottom of the support has no price; the next number has.
    return np.clip(drawn, max(cost.bottom, np.finfo(np.float64).tiny * 1e10), cost.top)
