"""How selections of clients with unequal data are counted: everybody kept adds a weight, and F(U, Σ w) is the rest.

U is the number of records that the selection holds. Once such a form is found, the best selection is a knapsack over
records (docs/theory.md, "Unequal data"). A `Stage` is one such form; the objective is the least over all stages. Noise
is counted relative to a client of average size: with M_k records it is M̄/M_k times as large.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from jsam.mechanism._arrays import BoolArray, FloatArray, IntArray
from jsam.mechanism.solver.closed_form import best_cost
from jsam.mechanism.solver.profiles import two_thirds
from jsam.mechanism.weights import Weights

SLACK = 1e-12
# The tangents of a capped loss lie so far apart, relatively; their least is above the root by less than 3e-4 of it.
TANGENT_STEP = 1.05
# Sizes are rounded where records are more than this over the number of clients, and more than so many for each.
CLIENTS_TIMES_UNITS, UNITS_EACH = 8_000_000, 40
PIECES = 4  # of each client's data, for a lower bound


@dataclass(frozen=True, kw_only=True, eq=False)
class Sizes:
    """How much data each client holds, in whole units, and the weights and caps of the server. All of it is public."""

    samples: IntArray
    unit: int  # records in a unit
    weights: Weights
    lot: float | None = None  # records, by which the noise of a client counts

    @classmethod
    def of(cls, samples: Sequence[int], weights: Weights, lot: float | None = None) -> Sizes:
        """The sizes of clients with so many samples, rounded to a unit that follows from the sizes alone."""
        M = np.asarray(samples, dtype=np.int64)
        most = max(CLIENTS_TIMES_UNITS // len(M), UNITS_EACH * len(M), 1)
        unit = max(1, -(-int(M.sum()) // most))
        common = int(np.gcd.reduce(M))
        return cls(samples=M, unit=common if common >= unit else unit, weights=weights, lot=lot)

    @property
    def exact(self) -> Sizes:
        """The same without rounding."""
        return replace(self, unit=int(np.gcd.reduce(self.samples)))

    @cached_property
    def units(self) -> IntArray:
        if self.lot is not None:
            # Were they rounded up, an owner could have more units by splitting its records.
            return self.samples // self.unit
        return np.maximum(1, np.rint(self.samples / self.unit).astype(np.int64))

    @cached_property
    def noise(self) -> FloatArray:
        """How much the noise of each client counts: with a lot, by the lots that it holds."""
        return np.ones(len(self)) if self.lot is None else self.samples / self.lot

    @cached_property
    def rounded_up(self) -> int:
        """Records by which the units of any selection may overstate what it holds."""
        return int(np.maximum(self.units * self.unit - self.samples, 0).sum())

    @cached_property
    def rounded_down(self) -> int:
        """Records by which they may understate it."""
        return int(np.maximum(self.samples - self.units * self.unit, 0).sum())

    @property
    def rounded(self) -> bool:
        return self.rounded_up + self.rounded_down > 0

    @cached_property
    def total(self) -> int:
        return int(self.units.sum())

    @cached_property
    def shares(self) -> FloatArray:
        return np.asarray(self.units / self.total)

    @cached_property
    def share_squares(self) -> float:
        return float((self.shares**2).sum())

    def __len__(self) -> int:
        return len(self.units)


@dataclass(frozen=True, kw_only=True, eq=False)
class EvenStage:
    """Whoever is kept is drawn as its share of the data kept says: p = u/U, so that noise counts alike for all.

    F is η(d + sqrt(d² + Q S³/B²)) + B at the best B, S = (N U)^(−2/3) Σ v^(2/3) and d = ζ sqrt(Σu² (1/U − 1)). Where
    the noise of a client counts `noise` times, v² does.
    """

    sizes: Sizes
    skipped: int = -1
    falls_with_units = True

    def some(self, which: BoolArray) -> EvenStage:
        """The stage for some of its numbers of units."""
        return self

    def weight(self, v: FloatArray, noise: FloatArray | float = 1.0) -> FloatArray:
        return np.asarray(np.cbrt(noise) * two_thirds(v))

    def slope(self, v: FloatArray, noise: FloatArray | float = 1.0) -> FloatArray:
        """The weight's derivative."""
        return np.asarray(np.cbrt(noise) * 2 / 3 / np.cbrt(v))

    def value(self, units: IntArray, weight: FloatArray) -> tuple[FloatArray, FloatArray]:
        """F, and its derivative by the sum of weights."""
        s, w = self.sizes, self.sizes.weights
        U = units / s.total
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            S = weight / two_thirds(len(s) * U)
            d = even_bias(s, U)
            G, B = best_cost(d, d * d, np.sqrt(w.noise_weight) * S * np.sqrt(S), w.loss_weight)
            return G, 1.5 * B / weight

    def between(self, low: IntArray, high: IntArray, weight: FloatArray) -> FloatArray:
        """A lower bound on F from `low` to `high` units, where the selection weighs so much at least."""
        return self.value(high, weight)[0]


@dataclass(frozen=True, kw_only=True, eq=False)
class CappedEvenStage:
    """Even shares with a cap on ε, with one tangent to the square root in the loss.

    sqrt(x) is the least of x/(2y) + y/2 over y. With y = t/U² a client adds g(v), the least of η Q/(2 N² t ε²) + v ε
    over ε ≤ E, whatever U is. The tangents of a fixed grid of t stand for the root, so what is minimised is a loss that
    does not look at the reports either.
    """

    sizes: Sizes
    tangent: float | FloatArray  # t; several stand beside as many numbers of units
    lowest: float | None = None  # if given, bounds hold for all tangents from here up to `tangent`
    skipped: int = -1
    falls_with_units = False

    @property
    def _noise(self) -> FloatArray:
        w = self.sizes.weights
        return np.asarray(w.loss_weight * w.noise_weight / (2 * len(self.sizes) ** 2 * self.tangent))

    def weight(self, v: FloatArray, noise: FloatArray | float = 1.0) -> FloatArray:
        eps = self.slope(v, noise)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(np.isinf(v), np.inf, noise * self._noise / eps**2 + v * eps)

    def slope(self, v: FloatArray, noise: FloatArray | float = 1.0) -> FloatArray:
        E = self.sizes.weights.max_epsilon
        assert E is not None
        with np.errstate(divide="ignore"):
            return np.minimum(np.cbrt(2 * noise * self._noise / v), E)

    def value(self, units: IntArray, weight: FloatArray) -> tuple[FloatArray, FloatArray]:
        s, t = self.sizes, self.tangent
        with np.errstate(divide="ignore", invalid="ignore"):
            U = units / s.total
            d = even_bias(s, U)
            rest = s.weights.loss_weight * (d + (d * U) ** 2 / (2 * t) + t / (2 * U**2))
        return rest + weight, np.ones(np.broadcast_shapes(rest.shape, weight.shape))

    def some(self, which: BoolArray) -> CappedEvenStage:
        return replace(self, tangent=self.tangent[which]) if isinstance(self.tangent, np.ndarray) else self

    def between(self, low: IntArray, high: IntArray, weight: FloatArray) -> FloatArray:
        """A lower bound on F from `low` to `high` units, where the selection weighs so much at least."""
        s, eta, t = self.sizes, self.sizes.weights.loss_weight, self.tangent
        U, most = low / s.total, high / s.total
        spread = s.weights.bias_weight**2 * s.share_squares * np.minimum(U * (1 - U), most * (1 - most))
        lowest = t if self.lowest is None else self.lowest
        rest = even_bias(s, most) + np.maximum(spread, 0.0) / (2 * t) + lowest / (2 * most**2)
        return np.asarray(eta * rest + weight)


def even_bias(sizes: Sizes, kept: FloatArray) -> FloatArray:
    """d = ζ sqrt(Σu² (1/U − 1)): the bias of a random sample of clients that holds the share U of all data."""
    with np.errstate(divide="ignore"):
        return np.asarray(sizes.weights.bias_weight * np.sqrt(sizes.share_squares * np.maximum(1 / kept - 1, 0.0)))


@dataclass(frozen=True, kw_only=True, eq=False)
class ReceiverStage:
    """The paper's loss: the client `skipped` receives the draws of all dropped ones, whoever else is kept has p = u.

    S = N^(−2/3) Σ v^(2/3) + (v_r e_r)^(2/3), e_r = p_r/(N u_r), and d = 2ζ times the share of data dropped. `v` is the
    receiver's virtual cost.
    """

    sizes: Sizes
    skipped: int
    v: float
    falls_with_units = True

    def some(self, which: BoolArray) -> ReceiverStage:
        """The stage for some of its numbers of units."""
        return self

    def weight(self, v: FloatArray, noise: FloatArray | float = 1.0) -> FloatArray:
        return np.asarray(np.cbrt(noise) * two_thirds(v / len(self.sizes)))

    def slope(self, v: FloatArray, noise: FloatArray | float = 1.0) -> FloatArray:
        return np.asarray(np.cbrt(noise) * 2 / 3 / np.cbrt(v) / float(len(self.sizes)) ** (2 / 3))

    def value(self, units: IntArray, weight: FloatArray) -> tuple[FloatArray, FloatArray]:
        G, B, S, _ = self._at(units, weight, np.array(self.v))
        with np.errstate(divide="ignore", invalid="ignore"):
            return G, 1.5 * B / S

    def between(self, low: IntArray, high: IntArray, weight: FloatArray) -> FloatArray:
        """A lower bound on F from `low` to `high` units, where the selection weighs so much at least."""
        return self.value(high, weight)[0]

    def received(self, units: IntArray, weight: FloatArray, v: FloatArray) -> tuple[FloatArray, FloatArray]:
        """F and the receiver's own ε where its virtual cost is v, with the others' units and weights."""
        G, B, S, e = self._at(units, weight, v)
        with np.errstate(divide="ignore", invalid="ignore"):
            return G, B / S * np.cbrt(e * e / v)

    def probability(self, units: IntArray) -> FloatArray:
        """The receiver's selection probability while the others kept hold so many units."""
        return np.asarray(1 - units / self.sizes.total)

    def _at(
        self, units: IntArray, weight: FloatArray, v: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        s, w = self.sizes, self.sizes.weights
        own = s.shares[self.skipped]
        p = self.probability(units)
        e = p / (len(s) * own)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            S = weight + two_thirds(v * e)
            d = 2 * w.bias_weight * np.maximum(p - own, 0.0)
            G, B = best_cost(d, d * d, np.sqrt(w.noise_weight) * S * np.sqrt(S), w.loss_weight)
        return G, B, S, e


Stage = EvenStage | CappedEvenStage | ReceiverStage


def weights_of(stage: Stage, v: FloatArray) -> FloatArray:
    """What each client weighs; infinity for the one that a stage skips, and for whoever holds less than a unit."""
    weights = np.where(stage.sizes.units > 0, stage.weight(v, stage.sizes.noise), np.inf)
    if stage.skipped >= 0:
        weights[stage.skipped] = np.inf
    return weights


def lower_bound(stage: Stage, v: FloatArray, allowed: BoolArray, rounds: int = 0) -> float:
    """A lower bound on F over all selections that are allowed, from selections that may keep parts of clients.

    Between two numbers of units F is at least what its terms are at their better ends. In each further round the
    pieces that may hold the least are cut.
    """
    sizes, weights = stage.sizes, weights_of(stage, v)
    order = np.argsort(weights / sizes.units)
    order = order[np.isfinite(weights[order])]
    ends = np.concatenate([[0], np.cumsum(sizes.units[order])])
    weighed = np.concatenate([[0.0], np.cumsum(weights[order])])
    inner = ends[:-1, None] + np.diff(ends)[:, None] * (np.arange(PIECES) / PIECES)
    units = np.append(inner.ravel(), ends[-1])
    first, last = int(allowed.argmax()), len(allowed) - 1 - int(allowed[::-1].argmax())
    low, high = units[:-1], units[1:]
    inside = (high >= first) & (low <= last)
    low, high = low[inside], high[inside]
    for left in range(rounds, -1, -1):
        least = np.interp(low, ends, weighed)
        if stage.skipped < 0:
            least = np.maximum(least, weights.min())
        bounds = stage.between(low, high, least)
        if left == 0 or len(bounds) == 0:
            break
        at_most = stage.between(high, high, np.interp(high, ends, weighed)).min()
        may = bounds <= at_most
        parts = low[may, None] + (high - low)[may, None] * (np.arange(PIECES + 1) / PIECES)
        low, high = (np.concatenate([x[~may], y.ravel()]) for x, y in ((low, parts[:, :-1]), (high, parts[:, 1:])))
    return float(bounds.min(initial=np.inf))


def even_range(sizes: Sizes) -> BoolArray:
    """Which numbers of units may be kept under even shares: caps and floors are held whoever is among the kept.

    p_k = M_k/ΣM keeps to a cap for all if those kept hold at least the largest size over the cap, and to a floor if
    they hold at most the smallest size over the floor; more units than the `min_clients` − 1 largest hold keep
    `min_clients`. All of it follows from the sizes alone. Where they are rounded, what that may hide is allowed for.
    """
    units, w, M = np.arange(sizes.total + 1), sizes.weights, sizes.samples
    records = units * float(sizes.unit)
    everybody = units == sizes.total  # but for those who hold less than a unit
    held = M[sizes.units > 0].sum()
    good = units > 0
    if w.max_selection_prob is not None:
        least = np.where(everybody, held, records - sizes.rounded_up)
        good &= least * w.max_selection_prob >= M.max() * (1 - SLACK)
    if w.min_selection_prob:
        most = np.where(everybody, held, records + sizes.rounded_down)
        good &= most * w.min_selection_prob <= M.min() * (1 + SLACK)
    if w.min_clients is not None and w.min_clients > 1:
        largest = np.sort(sizes.units)[::-1][: int(w.min_clients) - 1]
        good &= (units > largest.sum()) | (everybody & (np.count_nonzero(sizes.units) >= w.min_clients))
    return np.asarray(good)


def receiver_range(sizes: Sizes) -> BoolArray:
    """Which numbers of units the clients kept beside a receiver may hold: p_r = 1 − U and p = u keep to caps."""
    units, w, M = np.arange(sizes.total + 1), sizes.weights, sizes.samples
    good = np.ones(sizes.total + 1, dtype=bool)
    total, largest_share, smallest_share = float(M.sum()), M.max() / M.sum(), M.min() / M.sum()
    if w.max_selection_prob is not None:
        least = (1 - w.max_selection_prob - SLACK) * total
        good &= units * float(sizes.unit) - sizes.rounded_up >= least
        good &= largest_share <= w.max_selection_prob * (1 + SLACK)
    if w.min_selection_prob:
        good &= smallest_share >= w.min_selection_prob * (1 - SLACK)
    if w.min_clients is not None and w.min_clients > 1:
        largest = np.sort(sizes.units)[::-1][: int(w.min_clients) - 2]
        good &= units > largest.sum()
    return np.asarray(good)
