"""What biased selection and privacy noise cost in training: the paper's Theorem 1, simplified and whole."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from jsam.errors import InputError
from jsam.mechanism._arrays import FloatArray

BiasRule = Literal["total", "sample"]


def selection_bias(
    selection_probs: FloatArray, data_shares: FloatArray | None = None, rule: BiasRule = "total"
) -> float:
    """The distance from unbiased selection; equal shares u = 1/N unless given.

    "total" is the paper's ‖p − u‖₁, the worst case over what clients hold. "sample" is the root mean square if clients
    are dropped for reasons that have nothing to do with their data: ‖p − u‖₂. Where p follows the shares of those kept,
    their data are taken as representative, which gives sqrt(Σu² (1/U − 1)); for equal shares both are the same.
    """
    p = selection_probs
    u = np.full(len(p), 1 / len(p)) if data_shares is None else data_shares
    if rule == "total":
        return float(np.abs(p - u).sum())
    kept = p > 0
    U = float(u[kept].sum())
    if np.allclose(p[kept] * U, u[kept], rtol=1e-9, atol=0):
        return math.sqrt(float((u**2).sum()) * max(1 / U - 1, 0.0))
    return float(np.sqrt(np.square(p - u).sum()))


def noise_term(selection_probs: FloatArray, epsilons: FloatArray, data_shares: FloatArray | None = None) -> float:
    """Σ p²/ε² over the clients that are ever selected; infinite if one of them sells no privacy at all.

    With unequal shares a client's noise is that of an average client times 1/(N u).
    """
    kept = selection_probs > 0
    if np.any(epsilons[kept] <= 0):
        return math.inf
    p = selection_probs if data_shares is None else selection_probs / (len(data_shares) * data_shares)
    return float(np.square(p[kept] / epsilons[kept]).sum())


def loss_bound(
    selection_probs: FloatArray,
    epsilons: FloatArray,
    *,
    noise_weight: float = 1.0,
    bias_weight: float = 1.0,
    data_shares: FloatArray | None = None,
    bias_rule: BiasRule = "total",
) -> float:
    """The loss that the planner trades against money: d + sqrt(d² + Q Σ p²/ε²), with d = ζ‖p − u‖₁.

    `bias_rule` says which distance d is (`selection_bias`).

    >>> import numpy as np
    >>> loss_bound(np.array([0.5, 0.5]), np.array([1.0, 1.0]), noise_weight=2.0)
    1.0
    """
    d = bias_weight * selection_bias(selection_probs, data_shares, bias_rule)
    return d + math.sqrt(d * d + noise_weight * noise_term(selection_probs, epsilons, data_shares))


def noise_weight_of(
    *, rounds: int, dimension: int, smoothness: float, delta: float, samples: int = 1, c2: float = 1.0
) -> float:
    """Q = 2 c₂² log(1/δ) D √T L / M²: the weight that the theorem gives to the noise term.

    The paper puts the noise on the mean gradient without the division by M; `samples=1` gives that form.

    >>> round(noise_weight_of(rounds=1000, dimension=26_010, smoothness=1.0, delta=1e-5, samples=600), 1)
    52.6
    """
    if not 0 < delta < 1:
        raise InputError(f"delta is {delta}; it must lie strictly between 0 and 1")
    return 2 * c2**2 * math.log(1 / delta) * dimension * math.sqrt(rounds) * smoothness / samples**2


def gradient_norm_bound(
    selection_probs: FloatArray,
    noise_multipliers: FloatArray,
    participations: FloatArray,
    *,
    gradient_bound: float,
    smoothness: float,
    dimension: int,
    rounds: int,
    initial_gap: float,
    clipping_term: float = 0.0,
    samples: int = 1,
    data_shares: FloatArray | None = None,
) -> float:
    """The whole right-hand side of Theorem 1: a bound on the root mean squared gradient norm over T rounds.

    `gradient_bound` is R, `smoothness` L, `dimension` D, `rounds` T, `initial_gap` F(w₁) − F(w*), `clipping_term`
    G^clip. A client's noise enters as σ_k²/T_k (`noise_multipliers`, `participations`), divided by M² for noise of
    std σC/M on a mean over M `samples`.
    """
    p = np.asarray(selection_probs, dtype=np.float64)
    sigma = np.asarray(noise_multipliers, dtype=np.float64)
    times = np.asarray(participations, dtype=np.float64)
    kept = (p > 0) & (times > 0)
    bias = selection_bias(p, data_shares) + clipping_term
    variance = float((p[kept] ** 2 * sigma[kept] ** 2 / times[kept]).sum()) / samples**2
    noise = 2 * variance * dimension * math.sqrt(rounds) * smoothness
    vanishing = (initial_gap + 0.5 * smoothness * gradient_bound**2) / math.sqrt(rounds)
    return gradient_bound / 2 * (bias + math.sqrt(bias**2 + noise)) + math.sqrt(vanishing)
