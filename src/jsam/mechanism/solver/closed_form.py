"""The best privacy budgets for given selection probabilities, in closed form.

With p fixed the problem is min over B of η(d + sqrt(e² + κ/B²)) + B, where κ = Q S³ and e² is d² plus the noise of
clients whose ε is capped. Put a = e² η/√κ and solve r³ − r = a for r ≥ 1; then B = sqrt(η√κ/r) and the objective is
ηd + B(1 + r²). No inner optimiser and no grid (docs/theory.md, "The cost in closed form").
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from jsam.mechanism._arrays import FloatArray, IntArray
from jsam.mechanism.solver.profiles import Profiles
from jsam.mechanism.solver.rows import Ranked
from jsam.mechanism.weights import Weights

# Beyond this `a` (a κ next to nothing) the cost is nothing beside the bias, as for κ = 0, and r³ would overflow.
LARGEST = 1e300
EPS = float(np.finfo(np.float64).eps)
MOST_STEPS = 100  # of Newton's method; three are usual


def cubic_root(a: FloatArray) -> FloatArray:
    """The root r ≥ 1 of r³ − r = a, for a ≥ 0, to machine precision.

    The start lies above the root by 15% at most; each of Halley's steps cubes the error.
    """
    r = np.cbrt(1 + 1.5 * a)
    for _ in range(3):
        square = r * r
        f = r * (square - 1) - a
        slope = 3 * square - 1
        r = r - f / (slope - 3 * r * (f / slope))  # the inner bracket keeps huge a from overflowing
    return np.asarray(np.maximum(r, 1))


def best_cost(
    bias: FloatArray, floor_squared: FloatArray, root_kappa: FloatArray, loss_weight: float
) -> tuple[FloatArray, FloatArray]:
    """Minimal objective and the cost B that attains it; arguments are d, e², √κ and η.

    κ = 0 (nobody's ε is free) costs nothing; κ = ∞ (a client of infinite cost is kept) is worth infinity.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        a = floor_squared * loss_weight / root_kappa
        nobody = (root_kappa == 0) | (a > LARGEST)
        r = cubic_root(np.where(a <= LARGEST, a, 0.0))
        B = np.sqrt(loss_weight * root_kappa) / np.sqrt(r)  # the quotient itself could underflow
        value = loss_weight * bias + B * (1 + r * r)
    nothing = loss_weight * (bias + np.sqrt(floor_squared))
    return np.where(nobody, nothing, value), np.where(nobody, 0.0, B)


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The minimal objective at one d and S, from which others are counted without losing digits.

    The objective is ηd + ψ, and ψ² = η²d² + η√κ(1/r + 3r). So the difference of two objectives follows from the
    changes of d, of √κ and of r, and in no sum of it do terms cancel that are larger than what they change the
    objective by (docs/theory.md, "For all clients at once").
    """

    bias: float  # d
    sums: float  # S
    loss_weight: float
    noise_weight: float

    @cached_property
    def _root_kappa(self) -> float:
        return math.sqrt(self.noise_weight) * self.sums * math.sqrt(self.sums)

    @cached_property
    def _root(self) -> float:
        return float(cubic_root(np.array(self.bias**2 * self.loss_weight / self._root_kappa)))

    @cached_property
    def _psi(self) -> float:
        r = self._root
        return math.sqrt(self.loss_weight * self._root_kappa / r) * (1 + r * r)

    def change(self, bias: FloatArray, sums: FloatArray) -> tuple[FloatArray, FloatArray]:
        """By how much the objective changes as d changes by `bias` and S by `sums`; and its slope in S there."""
        eta, r = self.loss_weight, self._root
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            growth, root_kappa, squares, x = self._moves(bias, sums)
            other = r + x
            noise = growth * (1 / other + 3 * other) + x * (3 - 1 / (r * other))
            total = eta * (self._root_kappa * noise + eta * squares)
            change = eta * bias + total / (self._psi + np.sqrt(self._psi**2 + total))
            slope = 1.5 * np.sqrt(eta * root_kappa / other) / (self.sums + sums)
        return np.where(np.isnan(change), np.inf, change), slope

    def rounding(self, bias: FloatArray, sums: FloatArray) -> FloatArray:
        """How far rounding can move `change`, its arguments taken as exact."""
        eta, r, d = self.loss_weight, self._root, self.bias
        growth, root_kappa, _, x = self._moves(bias, sums)
        squares, grown = np.abs(bias) * (2 * d + np.abs(bias)), np.abs(growth)
        least = np.minimum(r, r + x)
        shift = eta * (squares + d * d * grown) / root_kappa / (3 * least * least - 1)
        noise = self._root_kappa * (grown * (1 / least + 3 * np.maximum(r, r + x)) + 4 * shift)
        return np.asarray(64 * EPS * (eta * np.abs(bias) + eta * (noise + eta * squares) / self._psi))

    def _moves(self, bias: FloatArray, sums: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """The relative growth of √κ, √κ itself, the change of d², and the change of the root r."""
        growth = np.expm1(1.5 * np.log1p(sums / self.sums))
        root_kappa = self._root_kappa * (1 + growth)
        squares = bias * (2 * self.bias + bias)
        a = self.loss_weight * (squares - self.bias**2 * growth) / root_kappa
        return growth, root_kappa, squares, _root_change(self._root, a)


def _root_change(r: float, a: FloatArray) -> FloatArray:
    """By how much the root of r³ − r = a moves from r ≥ 1 as the right side changes by `a`, to all digits of it.

    The root is concave in the right side, so its tangent lies above it, and Newton's method falls from there.
    """
    slope = 3 * r * r - 1
    x = np.asarray(a / slope)
    for _ in range(MOST_STEPS):
        step = (x * (slope + x * (3 * r + x)) - a) / (slope + x * (6 * r + 3 * x))
        x = x - step
        if not np.any(np.abs(step) > EPS * np.abs(x)):
            break
    return np.asarray(np.maximum(x, 1 - r))


@dataclass(frozen=True, kw_only=True)
class Values:
    """Profiles evaluated on rows, each array of shape (rows, profiles)."""

    objective: FloatArray
    cost: FloatArray  # Σ v ε
    scale: FloatArray  # ε = min(scale · p^(2/3) v^(−1/3), cap)
    capped: IntArray | None = None  # how many of the cheapest are at the cap on ε, if there is one

    @property
    def arrays(self) -> dict[str, FloatArray | IntArray]:
        """The arrays that there are, by name."""
        return {name: array for name, array in vars(self).items() if array is not None}

    def put(self, row: IntArray, column: IntArray, single: Values) -> None:
        """Write down the values of one profile a row at these places."""
        for name, array in single.arrays.items():
            getattr(self, name)[row, column] = array[:, 0]


def evaluate(profiles: Profiles, which: IntArray, ranked: Ranked, weights: Weights) -> Values:
    """Objective, cost and ε scale of the profiles `which` (shape (m,) or (rows, m)) on every row."""
    which = np.atleast_2d(which)
    ends, steps = profiles.gather_ends, profiles.weight_steps
    S = sum(steps[which, j] * ranked.weight_sum(ends[which, j]) for j in range(ends.shape[1]))
    assert isinstance(S, np.ndarray)
    d = np.broadcast_to(weights.bias_weight * profiles.bias[which], S.shape)
    objective, B = best_cost(d, d * d, np.sqrt(weights.noise_weight) * S * np.sqrt(S), weights.loss_weight)
    with np.errstate(invalid="ignore"):
        scale = B / S
    if weights.max_epsilon is None:
        return Values(objective=objective, cost=B, scale=scale)
    return _capped(profiles, which, ranked, weights, S, d)


def _capped(
    profiles: Profiles, which: IntArray, ranked: Ranked, weights: Weights, S: FloatArray, d: FloatArray
) -> Values:
    """The same with ε ≤ E, by water-filling: the capped clients are the first j ranks.

    p falls and v rises with rank, so p²/v falls: whoever is capped stands before whoever is not. At the scale λ where
    rank j just touches the cap, λ³ · sqrt(e² + Q T/λ²) against ηQ says on which side of j the optimum lies
    (T = Σ (v p)^(2/3) over the uncapped). That test is monotone in j, so j is found by bisection.
    """
    E = weights.max_epsilon
    assert E is not None
    Q, eta = weights.noise_weight, weights.loss_weight
    which = np.broadcast_to(which, S.shape)
    ends, steps, squares = profiles.ends[which], profiles.weight_steps[which], profiles.square_steps[which]
    gather = profiles.gather_ends[which]
    blocks = range(ends.shape[2])

    def beyond(j: IntArray) -> tuple[FloatArray, FloatArray]:
        """e² with the first j ranks capped, and T over the rest."""
        inside = sum(steps[..., b] * ranked.weight_sum(np.minimum(gather[..., b], j)) for b in blocks)
        noise = sum(squares[..., b] * np.minimum(ends[..., b], j) for b in blocks)
        with np.errstate(invalid="ignore"):
            rest = np.where(np.isinf(S), np.inf, S - inside)
        return d * d + Q * np.asarray(noise) * (1 / E) ** 2, np.maximum(rest, 0.0)

    low = np.zeros(S.shape, dtype=np.int64)
    high = np.array(ends[..., -1])  # how many ranks are capped lies in [low, high]
    while np.any(low < high):
        j = (low + high) // 2
        e2, T = beyond(j)
        p = profiles.probs_at(which, j)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            touch = E * np.cbrt(ranked.cost_at(np.minimum(j, profiles.num_clients - 1)) / p**2)
            fits = ~(touch**3 * np.sqrt(e2 + Q * T / touch**2) < eta * Q)  # a cap that overflows binds nobody
        fits |= p == 0
        high = np.where(fits & (low < high), j, high)
        low = np.where(~fits & (low < high), j + 1, low)
    e2, T = beyond(low)
    T = np.where(low == ends[..., -1], 0.0, T)
    objective, B = best_cost(d, e2, np.sqrt(Q) * T * np.sqrt(T), eta)
    capped_cost = np.where(low > 0, E * ranked.cost_sum(low), 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = np.where(T > 0, B / T, np.inf)
    return Values(objective=objective + capped_cost, cost=B + capped_cost, scale=scale, capped=low)
