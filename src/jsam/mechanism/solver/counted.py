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
from jsam.mechanism.solver.knapsack import empty_table, selection, with_clients, without_each
from jsam.mechanism.solver.profiles import two_thirds
from jsam.mechanism.weights import Weights

SLACK = 1e-12
# The tangents of a capped loss lie so far apart, relatively; their least is above the root by less than 3e-4 of it.
TANGENT_STEP = 1.05
# The unit is such that clients times units stay below this; under a cap on ε there are many tables to fill.
CLIENTS_TIMES_UNITS, WITH_CAP = 8_000_000, 1_000_000
PIECES = 4  # of each client's data, for a lower bound
ROUGHLY = 6  # every so many tangents give a bound on the best without a client


@dataclass(frozen=True, kw_only=True, eq=False)
class Sizes:
    """How much data each client holds, in whole units, and the weights and caps of the server. All of it is public."""

    units: IntArray
    weights: Weights
    noise: FloatArray  # how much each client's noise counts

    @classmethod
    def of(cls, samples: Sequence[int], weights: Weights, lot: float | None = None) -> Sizes:
        """The sizes of clients with so many samples, rounded to a unit that follows from the sizes alone.

        With a lot the noise of a client counts by the lots that it holds. Sizes are then rounded down: were they
        rounded up, an owner could have more units by splitting its records.
        """
        M = np.asarray(samples, dtype=np.int64)
        most = CLIENTS_TIMES_UNITS if weights.max_epsilon is None else WITH_CAP
        unit = max(1, -(-int(M.sum()) * len(M) // most))
        common = int(np.gcd.reduce(M))
        unit = common if common >= unit else unit
        if lot is not None:
            return cls(units=M // unit, weights=weights, noise=M / lot)
        units = np.maximum(1, np.rint(M / unit).astype(np.int64))
        return cls(units=units, weights=weights, noise=np.ones(len(M)))

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

    def weight(self, v: FloatArray, noise: FloatArray | float) -> FloatArray:
        return np.asarray(np.cbrt(noise) * two_thirds(v))

    def slope(self, v: FloatArray, noise: FloatArray | float) -> FloatArray:
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


@dataclass(frozen=True, kw_only=True, eq=False)
class CappedEvenStage:
    """Even shares with a cap on ε, with one tangent to the square root in the loss.

    sqrt(x) is the least of x/(2y) + y/2 over y. With y = t/U² a client adds g(v), the least of η Q/(2 N² t ε²) + v ε
    over ε ≤ E, whatever U is. The tangents of a fixed grid of t stand for the root, so what is minimised is a loss that
    does not look at the reports either.
    """

    sizes: Sizes
    tangent: float | FloatArray  # t; several stand beside as many numbers of units
    skipped: int = -1
    falls_with_units = False

    @property
    def _noise(self) -> FloatArray:
        w = self.sizes.weights
        return np.asarray(w.loss_weight * w.noise_weight / (2 * len(self.sizes) ** 2 * self.tangent))

    def weight(self, v: FloatArray, noise: FloatArray | float) -> FloatArray:
        eps = self.slope(v, noise)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(np.isinf(v), np.inf, noise * self._noise / eps**2 + v * eps)

    def slope(self, v: FloatArray, noise: FloatArray | float) -> FloatArray:
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

    def least(self, v: FloatArray) -> float:
        """A lower bound on F over all selections, from selections that may keep parts of clients."""
        s, eta, t = self.sizes, self.sizes.weights.loss_weight, self.tangent
        w = self.weight(v, s.noise)
        order = np.argsort(w / np.maximum(s.units, SLACK))
        ends = np.concatenate([[0.0], np.cumsum(s.shares[order])])
        # Between two ends of a piece F is at least what its terms are at their better ends, so pieces are short.
        inner = ends[:-1, None] + np.diff(ends)[:, None] * (np.arange(PIECES) / PIECES)
        U = np.append(inner.ravel(), 1.0)
        W = np.maximum(np.interp(U, ends, np.concatenate([[0.0], np.cumsum(w[order])])), w.min())
        low, high = U[:-1], np.minimum(U[1:], 1.0)
        d = even_bias(s, high)
        spread = s.weights.bias_weight**2 * s.share_squares * np.minimum(low * (1 - low), high * (1 - high))
        bound = eta * (d + np.maximum(spread, 0.0) / (2 * t) + t / (2 * high**2)) + W[:-1]
        return float(bound.min())


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

    def weight(self, v: FloatArray, noise: FloatArray | float) -> FloatArray:
        return np.asarray(np.cbrt(noise) * two_thirds(v / len(self.sizes)))

    def slope(self, v: FloatArray, noise: FloatArray | float) -> FloatArray:
        return np.asarray(np.cbrt(noise) * 2 / 3 / np.cbrt(v) / float(len(self.sizes)) ** (2 / 3))

    def value(self, units: IntArray, weight: FloatArray) -> tuple[FloatArray, FloatArray]:
        G, B, S, _ = self._at(units, weight, np.array(self.v))
        with np.errstate(divide="ignore", invalid="ignore"):
            return G, 1.5 * B / S

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


def even_range(sizes: Sizes) -> BoolArray:
    """Which numbers of units may be kept under even shares: caps and floors are held whoever is among the kept.

    p_k = u_k/U keeps to a cap for all if U is at least the largest share over the cap, and to a floor if U is at most
    the smallest share over the floor; more units than the `min_clients` − 1 largest hold keep `min_clients`. All of it
    follows from the sizes alone.
    """
    units, total, w = np.arange(sizes.total + 1), sizes.total, sizes.weights
    good = units > 0
    if w.max_selection_prob is not None:
        good &= units * w.max_selection_prob >= sizes.units.max() * (1 - SLACK)
    if w.min_selection_prob:
        good &= units * w.min_selection_prob <= sizes.units.min() * (1 + SLACK)
    if w.min_clients is not None and w.min_clients > 1:
        largest = np.sort(sizes.units)[::-1][: int(w.min_clients) - 1]
        good &= (units > largest.sum()) | (units == total)
    return np.asarray(good)


def receiver_range(sizes: Sizes) -> BoolArray:
    """Which numbers of units the clients kept beside a receiver may hold: p_r = 1 − U and p = u keep to caps."""
    units, total, w = np.arange(sizes.total + 1), sizes.total, sizes.weights
    good = np.ones(sizes.total + 1, dtype=bool)
    if w.max_selection_prob is not None:
        least = total - w.max_selection_prob * total
        good &= (units >= least - SLACK * total) & (sizes.shares.max() <= w.max_selection_prob * (1 + SLACK))
    if w.min_selection_prob:
        good &= sizes.shares.min() >= w.min_selection_prob * (1 - SLACK)
    if w.min_clients is not None and w.min_clients > 1:
        largest = np.sort(sizes.units)[::-1][: int(w.min_clients) - 2]
        good &= units > largest.sum()
    return np.asarray(good)


def receiver_stages(sizes: Sizes, v: FloatArray) -> tuple[Stage, ...]:
    """A stage for each client that may receive, though another moves its report.

    Without a cap on p a client is never the best receiver if another one has more data and a lower v/u. If only one
    other does, it may become the best once that one's report has moved.
    """
    N = len(sizes)
    if sizes.weights.max_selection_prob is not None:
        return tuple(ReceiverStage(sizes=sizes, skipped=r, v=float(v[r])) for r in range(N))
    price = v / sizes.shares
    order = np.lexsort((-sizes.units, price))
    stages, largest = [], [-1, -1]  # of those before in the order of price
    for r in order.tolist():
        if sizes.units[r] > largest[0]:
            stages.append(ReceiverStage(sizes=sizes, skipped=r, v=float(v[r])))
            largest = sorted([*largest, int(sizes.units[r])])[1:]
    return tuple(stages)


@dataclass(frozen=True, kw_only=True)
class Best:
    """The best selection of all stages: its objective, its stage and the units that it holds."""

    objective: float
    stage: Stage
    units: int


def best_selection(stages: Sequence[Stage], bounds: FloatArray, v: FloatArray, allowed: BoolArray) -> Best:
    """The best over all stages; one whose lower bound is above what was found need not be looked at."""
    best: Best | None = None
    for i in np.argsort(bounds, kind="stable"):
        if best is not None and bounds[i] > best.objective * (1 + SLACK):
            break
        stage = stages[i]
        sizes = stage.sizes
        table = with_clients(empty_table(sizes.total), sizes.units, stage.weight(v, sizes.noise), stage.skipped)
        units = np.flatnonzero(np.isfinite(table) & allowed)
        if len(units) == 0:
            continue
        G, _ = stage.value(units, table[units])
        if best is None or G.min() < best.objective:
            best = Best(objective=float(G.min()), stage=stage, units=int(units[G.argmin()]))
    assert best is not None
    return best


def even_tangents(sizes: Sizes, v: FloatArray) -> tuple[list[Stage], FloatArray]:
    """The stages of even shares in which the best selection may lie, with lower bounds on what each can give."""
    if sizes.weights.max_epsilon is None:
        return [EvenStage(sizes=sizes)], np.zeros(1)
    stages = _tangents_within(sizes, *_window(sizes, v))
    return list(stages), np.array([stage.least(v) for stage in stages])


def even_stages(sizes: Sizes, v: FloatArray, allowed: BoolArray) -> tuple[Stage, ...]:
    """The stages of even shares that can matter for these virtual costs, or for whoever of these raises its own."""
    stages, bounds = even_tangents(sizes, v)
    if len(stages) == 1:
        return tuple(stages)
    best = best_selection(stages, bounds, v, allowed)
    held = selection(sizes.units, best.stage.weight(v, sizes.noise), best.units)
    most = max(best.objective, _best_without_anyone(sizes, v, stages[::ROUGHLY], held, allowed))
    return tuple(stage for stage, bound in zip(stages, bounds, strict=True) if bound <= most * (1 + SLACK))


def _window(sizes: Sizes, v: FloatArray) -> tuple[float, float]:
    """Between which tangents the best one lies, whatever selection it has.

    F is at least η t/2, and at least η Q q/(2 N² t E²) from a single client at the cap, whose noise counts q. Both must
    stay below what keeping everybody at some tangent gives.
    """
    w, N = sizes.weights, len(sizes)
    E = w.max_epsilon
    assert E is not None
    eps = np.minimum(np.cbrt(np.median(v) / v) * E, E)
    known = w.loss_weight * np.sqrt(w.noise_weight * (sizes.noise / eps**2).sum()) / N + float(v @ eps)
    single = w.loss_weight * w.noise_weight * float(sizes.noise.min()) / (2 * N**2 * E**2)
    return single / known / TANGENT_STEP, 2 * known / w.loss_weight


def _tangents_within(sizes: Sizes, low: float, high: float) -> list[CappedEvenStage]:
    """Tangents are powers of one number, so the grid does not depend on where it is looked at."""
    step = np.log(TANGENT_STEP)
    powers = np.arange(np.floor(np.log(low) / step), np.ceil(np.log(high) / step) + 1)
    return [CappedEvenStage(sizes=sizes, tangent=float(np.exp(step * power))) for power in powers]


def _best_without_anyone(
    sizes: Sizes, v: FloatArray, some: Sequence[Stage], held: IntArray, allowed: BoolArray
) -> float:
    """An upper bound on the least objective without a client, for the client for whom it is largest."""
    weights, nobody = [stage.weight(v, sizes.noise) for stage in some], [-1] * len(some)
    units = np.flatnonzero(allowed)
    worst = 0.0
    for _, tables in without_each(sizes.units, weights, nobody, held):
        values = [stage.value(units, table[units])[0].min() for stage, table in zip(some, tables, strict=True)]
        worst = max(worst, float(min(values)))
    return worst
