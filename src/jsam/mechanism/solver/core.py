"""Which clients are certain to be kept, or dropped, in every selection that can matter, so that few are left to search.

At a price λ for a unit of records each client has an excess w − λM: kept if it is below 0, dropped if above, it costs
nothing beyond λU + R, R the sum of all excesses below 0. Every client that is not where its excess says adds that
excess. So a selection in which client j is not there is worth at least the least of F(U, λU + R + |excess of j|), and
where that is above what some selection gives, j is certain (docs/theory.md, "Unequal data").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from jsam.mechanism._arrays import BoolArray, FloatArray, IntArray
from jsam.mechanism.solver.counted import Sizes, Stage, weights_of
from jsam.mechanism.solver.knapsack import empty_table, selection, with_clients, without_each

SLACK = 1 + 1e-12
AROUND = 6  # so many greedy selections on either side of the best one give upper bounds
MARKS = 16  # excesses at which the lower bound is tabulated
COARSE = 512  # cells of all numbers of units, to see where the best can lie
MOST_CELLS = 4096  # there, or four for each client


@dataclass(frozen=True, kw_only=True, eq=False)
class Core:
    """The uncertain clients of a stage, and what the certain ones hold and weigh that are kept."""

    sizes: Sizes
    weights: FloatArray
    free: IntArray  # the uncertain clients, by position
    kept: BoolArray  # the certain ones that are kept
    price: float
    most: float  # excess that a selection that can matter has at most

    def alternatives(self, clients: IntArray) -> Iterator[tuple[int, IntArray, FloatArray]]:
        """For each of `clients`, in rising order: the units and weights of selections of all the others.

        Among them are all that can be the best without the client, or beside it at whatever higher price.
        """
        inside = np.intersect1d(clients, self.free)
        tables, those = self._without(inside), set(inside.tolist())
        units, weights = self.whole
        for client in clients.tolist():
            if client in those:
                yield client, *next(tables)
            elif self.kept[client]:
                yield client, units - int(self.sizes.units[client]), weights - self.weights[client]
            else:
                yield client, units, weights

    @cached_property
    def _base(self) -> tuple[int, float]:
        return int(self.sizes.units[self.kept].sum()), float(self.weights[self.kept].sum())

    @cached_property
    def whole(self) -> tuple[IntArray, FloatArray]:
        """Units and weights of the selections of all clients that can be the best."""
        total = int(self.sizes.units[self.free].sum())
        table = with_clients(empty_table(total), self.sizes.units[self.free], self.weights[self.free])
        return self._those_that_matter(table, self.free)

    def _without(self, clients: IntArray) -> Iterator[tuple[IntArray, FloatArray]]:
        """The same without each of some uncertain clients."""
        if len(clients) == 0:
            return
        places = np.searchsorted(self.free, clients)
        for place, (table,) in without_each(self.sizes.units[self.free], [self.weights[self.free]], [-1], places):
            yield self._those_that_matter(table, np.delete(self.free, place))

    def _those_that_matter(self, table: FloatArray, members: IntArray) -> tuple[IntArray, FloatArray]:
        """Entries of a table over some uncertain clients whose excess is not too large, with all that is certain."""
        units = np.flatnonzero(np.isfinite(table))
        if math.isfinite(self.most):
            own = self.weights[members] - self.price * self.sizes.units[members]
            excess = table[units] - self.price * units - np.minimum(own, 0.0).sum()
            units = units[excess <= self.most * SLACK + 1e-12 * np.abs(table[units])]
        base_units, base_weight = self._base
        return units + base_units, table[units] + base_weight

    def members(self, units: int) -> IntArray:
        """The clients of the best selection that holds so many units."""
        base_units, _ = self._base
        some = selection(self.sizes.units[self.free], self.weights[self.free], units - base_units)
        return np.sort(np.concatenate([np.flatnonzero(self.kept), self.free[some]]))


def core_of(stage: Stage, v: FloatArray, allowed: BoolArray, *, moving: bool = True) -> Core:
    """The core of a stage for these virtual costs, and if `moving` for whoever raises its own or leaves."""
    return _Search(stage=stage, weights=weights_of(stage, v), allowed=allowed).core(moving=moving)


def without_each_greedily(stage: Stage, v: FloatArray, allowed: BoolArray) -> FloatArray:
    """Upper bounds on the least objective of a stage without each client."""
    return _Search(stage=stage, weights=weights_of(stage, v), allowed=allowed).without_each


@dataclass(frozen=True, kw_only=True, eq=False)
class _Search:
    """Greedy selections of a stage, and what they prove."""

    stage: Stage
    weights: FloatArray
    allowed: BoolArray

    @property
    def _units(self) -> IntArray:
        return self.stage.sizes.units

    @cached_property
    def _usable(self) -> BoolArray:
        return np.isfinite(self.weights)

    @cached_property
    def _order(self) -> IntArray:
        """Clients that can be had at all, the cheapest for each unit first."""
        order = np.argsort(self.weights / self._units, kind="stable")
        return order[self._usable[order]]

    @cached_property
    def _held(self) -> IntArray:
        return np.concatenate([[0], np.cumsum(self._units[self._order])])

    @cached_property
    def _weighed(self) -> FloatArray:
        return np.concatenate([[0.0], np.cumsum(self.weights[self._order])])

    def _value(self, units: IntArray, weights: FloatArray) -> FloatArray:
        """F where so many units may be kept, infinity elsewhere."""
        inside = (units >= 0) & self.allowed[np.maximum(units, 0)]
        value, _ = self.stage.value(np.where(inside, units, self.stage.sizes.total), weights)
        return np.where(inside, value, np.inf)

    @cached_property
    def greedy(self) -> FloatArray:
        """The objective of each greedy selection: the first so many clients of the order."""
        return self._value(self._held, self._weighed)

    @cached_property
    def _window(self) -> IntArray:
        """The best greedy selection and those around it."""
        best = int(self.greedy.argmin())
        around = np.arange(max(0, best - AROUND), min(len(self._order), best + AROUND) + 1)
        return around[np.isfinite(self.greedy[around])]

    @cached_property
    def without_each(self) -> FloatArray:
        """The least that greedy selections of the window give without each client."""
        place = np.full(len(self.weights), len(self._order))
        place[self._order] = np.arange(len(self._order))
        own = np.where(self._usable, self.weights, 0.0)
        least = np.full(len(self.weights), np.inf)
        for i in self._window.tolist():
            inside = place < i
            units = self._held[i] - np.where(inside, self._units, 0)
            least = np.minimum(least, self._value(units, self._weighed[i] - np.where(inside, own, 0.0)))
        return least

    @cached_property
    def _everybody(self) -> Core:
        """The core if nobody is certain."""
        return Core(
            sizes=self.stage.sizes,
            weights=self.weights,
            free=np.flatnonzero(self._usable),
            kept=np.zeros(len(self.weights), dtype=bool),
            price=0.0,
            most=math.inf,
        )

    def core(self, *, moving: bool) -> Core:
        best = float(self.greedy.min())
        without = self.without_each if moving else np.full(len(self.weights), best)
        highest = float(without[self._usable].max(initial=best))
        priced = self._priced(highest) if math.isfinite(highest) else None
        if priced is None:
            return self._everybody
        price, floor = priced
        excess = np.where(self._usable, self.weights - price * self._units, np.inf)
        # Of these the greedy selections of the window do not all say the same as the price does.
        near = excess < 0
        near[self._order[: self._window[0]]] ^= True
        near[self._order[self._window[0] : self._window[-1]]] = True
        kept = (excess < 0) & ~near
        largest = float(-excess[kept].min(initial=0.0))
        marks = np.linspace(0.0, largest, MARKS) if moving and largest > 0 else np.zeros(1)
        beyond = np.geomspace(1e-6, 1, MARKS // 2) * (largest + float(np.abs(excess[self._usable]).max()))
        excesses = np.concatenate([marks, marks[-1] + beyond])
        floors = np.array([floor(x) for x in excesses.tolist()])

        def excess_at(value: FloatArray) -> FloatArray:
            """The excess from which on the floor is above a value. The floor is concave, so lines lie below it."""
            return np.asarray(np.interp(np.minimum(value, highest) * SLACK, floors, excesses, right=np.inf))

        bounds = [float(excess_at(np.array([best]))[0])]
        if moving:
            bounds.append(float(excess_at(without[near]).max(initial=0.0)))
            bounds.append(float((excess_at(without[kept]) + excess[kept]).max(initial=0.0)))
            bounds.append(self._while_kept(marks, excess_at))
        most = max(bounds)
        if not math.isfinite(most):
            return self._everybody
        free = self._usable & (near | (np.abs(excess) <= most * SLACK))
        return Core(
            sizes=self.stage.sizes,
            weights=self.weights,
            free=np.flatnonzero(free),
            kept=kept & ~free,
            price=price,
            most=most,
        )

    def _while_kept(self, marks: FloatArray, excess_at: Callable[[FloatArray], FloatArray]) -> float:
        """The excess that can matter while the weight of a kept client rises from one mark to the next.

        The best greedy selection has a tangent in between, which lies above the least objective.
        """
        held, weighed = self._held[self._window], self._weighed[self._window]
        most = 0.0
        for low, high in zip(marks[:-1].tolist(), marks[1:].tolist(), strict=True):
            middle = (low + high) / 2
            values, slopes = self.stage.value(held, weighed + middle)
            best = int(values.argmin())
            ends = np.array([low, high])
            tangent = values[best] + np.broadcast_to(slopes, values.shape)[best] * (ends - middle)
            most = max(most, float((excess_at(tangent) - ends).max()))
        return most

    def _priced(self, highest: float) -> tuple[float, _Floor] | None:
        """The price that proves most with its floor; None if some selection that matters weighs nothing by it."""
        best = int(self.greedy.argmin())
        ratios = self.weights[self._order] / self._units[self._order]
        prices = [*ratios[max(0, best - 1) : best + 1].tolist()]
        if best == len(ratios):
            prices += [float(ratios[-1]) * factor for factor in (1.25, 1.5, 2.0, 3.0, 5.0)]
        elif best > 0:
            prices.append(float(ratios[best - 1] + ratios[best]) / 2)
        low, high = self._cells(highest)
        floors = [_Floor.at(self, price, low, high) for price in prices]
        sound = [(floor(0.0), i) for i, floor in enumerate(floors) if floor.sound]
        if not sound:
            return None
        _, chosen = max(sound)
        return prices[chosen], floors[chosen]

    def _cells(self, highest: float) -> tuple[IntArray, IntArray]:
        """Runs of numbers of units that may be kept, first and last, where the objective may be below `highest`."""
        total = self.stage.sizes.total
        marks = np.unique(np.linspace(0, total, COARSE + 1).astype(np.int64))
        least = np.interp(marks[:-1], self._held, self._weighed)  # parts of clients count as such
        matter = self.stage.between(marks[:-1], marks[1:], least) <= highest * SLACK
        inside = np.zeros(total + 1, dtype=bool)
        for i in np.flatnonzero(matter).tolist():
            inside[marks[i] : marks[i + 1] + 1] = True
        units = np.flatnonzero(inside & self.allowed)
        step = -(-len(units) // max(MOST_CELLS, 4 * len(self.weights)))
        if step <= 1:
            return units, units
        last = np.append(units[step - 1 :: step], units[-1:] if len(units) % step else units[:0])
        return units[::step], last


@dataclass(frozen=True, kw_only=True, eq=False)
class _Floor:
    """A lower bound on the objective of every selection with some excess, at one price for each unit."""

    stage: Stage
    low: IntArray
    high: IntArray
    least: FloatArray  # weights without any excess

    @classmethod
    def at(cls, search: _Search, price: float, low: IntArray, high: IntArray) -> _Floor:
        own = search.weights[search._usable] - price * search._units[search._usable]
        return cls(stage=search.stage, low=low, high=high, least=price * low + np.minimum(own, 0.0).sum())

    @property
    def sound(self) -> bool:
        """Whether it is concave in the excess: no weight is below 0."""
        return len(self.low) > 0 and bool(self.least.min() >= 0)

    def __call__(self, excess: float) -> float:
        return float(self.stage.between(self.low, self.high, self.least + excess).min())
