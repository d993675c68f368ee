"""ζ² from label counts with known noise: what the noise adds is taken out again, and nothing is learned of anybody.

A single noisy count says little, but all clients' counts together say how true shares of labels are spread. Their
distribution is fitted by maximum likelihood on a grid (Kiefer and Wolfowitz; by expectation maximization, which ends
before it follows the noise); each client's χ² is then what is to be expected after its noisy counts were seen. All of
this is post-processing of the release, so it costs no privacy.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from jsam.mechanism._arrays import FloatArray
from jsam.mechanism.heterogeneity import lost

_SHARES = 101  # points of the grid
_STEPS = 200
_MOST_CLIENTS = 4096  # more say the same


def spread_of_noisy(counts: ArrayLike, records: ArrayLike, noise_std: float) -> float:
    """ζ² of clients with these noisy counts of labels, a row each, and these public numbers of records.

    Returns the mean over clients of (1 + χ²)/M, so at least the mean of 1/M, as for clients that are alike.
    """
    noisy, held = np.asarray(counts, dtype=np.float64), np.asarray(records, dtype=np.float64)
    whole = np.maximum(noisy.sum(axis=0), 0.0)
    whole = whole / whole.sum() if whole.sum() > 0 else np.full(noisy.shape[1], 1 / noisy.shape[1])
    step = -(-len(noisy) // _MOST_CLIENTS)
    seen, size = noisy[::step], held[::step, None, None]
    grid = np.concatenate([[0.0], np.geomspace(1 / held.max(), 1.0, _SHARES - 1)])
    likely = _likelihood(seen[:, :, None] / size, grid, noise_std / size)
    after = likely * _fitted(likely)
    after /= after.sum(axis=2, keepdims=True)
    chi = (after * lost(grid, whole[:, None], size)).sum(axis=(1, 2))
    # What was left out is taken for as far apart as what was seen.
    return float(np.mean(1 / held) * (1 + np.average(chi, weights=1 / held[::step])))


def _likelihood(shares: FloatArray, grid: FloatArray, noise_std: FloatArray) -> FloatArray:
    """Of each noisy share under each true one, as a fraction of the largest."""
    squares = ((shares - grid) / noise_std) ** 2
    return np.asarray(np.exp(-0.5 * (squares - squares.min(axis=2, keepdims=True))))


def _fitted(likely: FloatArray) -> FloatArray:
    """The distribution of true shares on the grid."""
    weights = np.full(likely.shape[2], 1 / likely.shape[2])
    flat = likely.reshape(-1, likely.shape[2])
    for _ in range(_STEPS):
        weights = weights * ((1 / (flat @ weights)) @ flat) / len(flat)
    return weights
