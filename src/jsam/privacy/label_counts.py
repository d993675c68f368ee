"""Label counts that a client releases once, with Gaussian noise, and what they and the training cost it together.

Both are Gaussian mechanisms, so together they are one with μ² = μ_labels² + μ_training², at the same δ. What a client
sold in all is the ε of that μ: less than the sum of both ε, and never less than what is spent.
"""

from __future__ import annotations

import numpy as np

from jsam.errors import InputError
from jsam.privacy.adjacency import Adjacency
from jsam.privacy.gaussian import CALIBRATION_MARGIN, FloatArray, epsilon_of, gdp_mu

# With less, noise drowns the counts of thousands of records; more protects nobody.
LEAST_EPSILON, MOST_EPSILON = 0.01, 100.0
MOST_DELTA = 1e-3  # up to it the ε of both is at most the sum of both, but for an ε of the training next to nothing


def label_noise(epsilon: float, delta: float, adjacency: str = Adjacency.ADD_REMOVE) -> float:
    """The standard deviation of the noise on each count of labels, so that all of them are (ε, δ)-DP, exactly.

    >>> round(label_noise(1.0, 1e-5), 4), round(label_noise(1.0, 1e-5, "replace"), 4)
    (3.7306, 5.2759)
    """
    if not LEAST_EPSILON <= epsilon < np.inf:
        raise InputError(
            f"epsilon of label counts is {epsilon:g}; it must be a finite number of {LEAST_EPSILON} or more"
        )
    return Adjacency.of(adjacency).count_sensitivity / gdp_mu(epsilon, delta)


def sold_in_all(epsilons: FloatArray, label_epsilon: float, delta: float) -> FloatArray:
    """The ε of label counts and training together, for each client that sold so much for its training; rounded up.

    >>> sold_in_all(np.array([0.0, 10.0]), 0.5, 1e-5).round(3)
    array([ 0.5  , 10.031])
    """
    sold = np.full(len(epsilons), float(label_epsilon))
    drawn = epsilons > 0
    if np.any(drawn):
        together = np.hypot(_sold_mu(epsilons[drawn], delta), _sold_mu(np.array([label_epsilon]), delta))
        sold[drawn] = epsilon_of(together, delta)
    return sold


def left_for_training(most: float, label_epsilon: float, delta: float) -> float:
    """The largest ε for the training at which a client sells no more than `most` in all; 0 if there is none."""
    # `gdp_mu` is below what `most` allows by its margin, and that is wider than all rounding up here.
    left = gdp_mu(most, delta) ** 2 - float(_sold_mu(np.array([label_epsilon]), delta)[0]) ** 2
    return epsilon_of(float(np.sqrt(left)), delta) if left > 0 else 0.0


def _sold_mu(epsilons: FloatArray, delta: float) -> FloatArray:
    """The μ of each ε itself, without the margin by which noise is higher."""
    return gdp_mu(epsilons, delta) / (1 - CALIBRATION_MARGIN)
