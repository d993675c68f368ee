"""Σπ of many markets at once, near enough for a distribution over markets, with how far each may be off.

A contract's own payments are certified one by one; to set a budget thousands of markets are paid for several η. Here
one client of one market is a row, its report is moved along a few nodes, and ∫ ε dz over a panel is ΔG · Δz/Δv, the
envelope identity (docs/theory.md, "Payments"). The same with half of the panels shows the error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from jsam.mechanism._arrays import BoolArray, FloatArray, IntArray
from jsam.mechanism.budget.drawn_markets import Tables
from jsam.mechanism.budget.quantiles import QuantileTable
from jsam.mechanism.families.base import RangeMechanism
from jsam.mechanism.market import Market
from jsam.mechanism.solver.allocation import CHUNK, SLACK, Rule, budgets, minimise
from jsam.mechanism.solver.closed_form import evaluate
from jsam.mechanism.solver.response import curves
from jsam.mechanism.solver.rows import MovedRows, SortedRows

PANELS = 16
NEWTON_STEPS = 3
# In markets of more clients than this, rents of about so many are computed and the others' filled in.
ALL_UP_TO, ANCHORS, FIRST_ANCHORS = 64, 32, 8
MARGIN = 3  # so many clients on either side of the last one that is kept
CERTIFIED = 1e-4  # of a payment, where the contract's own payments are taken


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Σπ of each market, and how far each may be off."""

    amounts: FloatArray
    errors: FloatArray

    @property
    def most(self) -> FloatArray:
        return self.amounts + self.errors


class DrawnPayments:
    """Markets drawn once, whose payments are computed at any η."""

    def __init__(
        self,
        mechanism: RangeMechanism,
        template: Market,
        rule: Rule,
        tables: Tables,
        draws: int,
        rng: np.random.Generator,
    ) -> None:
        self._mechanism, self._template, self._rule = mechanism, template, rule
        self._active = mechanism.active(template)
        self._everything, v = tables.markets(rng.random((draws, template.num_clients)))
        group = np.zeros(template.num_clients, dtype=np.int64)
        for number, (_, members) in enumerate(tables.groups):
            group[members] = number
        self._tables = [table for table, _ in tables.groups]
        c, v, group = self._everything[:, self._active], v[:, self._active], group[self._active]
        # Among equal virtual costs the position decides: it knows nothing of the reports.
        by_cost = SortedRows.of(v)
        self._v, self._order = by_cost.v, by_cost.order
        self._c, self._group = np.take_along_axis(c, self._order, axis=1), group[self._order]
        self._tops = np.array([table.virtual_costs[-1] for table in self._tables])
        self._scaled: Totals | None = None
        self._last: tuple[float, Totals] | None = None

    @property
    def draws(self) -> int:
        return len(self._v)

    def totals(self, eta: float, rows: IntArray | None = None) -> Totals:
        """Σπ at η, of all markets or of some."""
        if rows is None:
            if self._last is None or self._last[0] != eta:
                self._last = eta, self.totals(eta, np.arange(self.draws))
            return self._last[1]
        if self._scales_with_root:
            # Equal shares and no bias: every ε and every payment goes with √η, so they are computed once.
            if self._scaled is None:
                self._scaled = self._computed(1.0, np.arange(self.draws))
            at_one, factor = self._scaled, math.sqrt(eta)
            return Totals(amounts=at_one.amounts[rows] * factor, errors=at_one.errors[rows] * factor)
        return self._computed(eta, rows)

    def _computed(self, eta: float, rows: IntArray) -> Totals:
        if not self._can_drop:
            return self._certified(eta, rows)
        rule = replace(self._rule, weights=replace(self._rule.weights, loss_weight=eta))
        N = self._v.shape[1]
        step = max(1, CHUNK // (4 * N * max(N, len(rule.profiles))))
        parts = [self._chunk(rule, rows[start : start + step]) for start in range(0, len(rows), step)]
        return Totals(
            amounts=np.concatenate([amounts for amounts, _ in parts]),
            errors=np.concatenate([errors for _, errors in parts]),
        )

    @property
    def _scales_with_root(self) -> bool:
        profiles = self._rule.profiles
        return bool(self._rule.weights.max_epsilon is None and len(profiles) == 1 and not np.any(profiles.bias))

    @property
    def _can_drop(self) -> bool:
        """Whether any client is dropped once it asks too much; who cannot be is paid for the prior's whole tail.

        A selection by sizes has no profiles by rank, so that its markets are planned one by one too.
        """
        by_rank = not self._mechanism.counts_sizes(self._template)
        return by_rank and bool(self._rule.profiles.num_selected.min() < self._v.shape[1])

    def _certified(self, eta: float, rows: IntArray) -> Totals:
        """Compute the totals by planning each market, which is slow."""
        mechanism = replace(self._mechanism, loss_weight=eta, tolerance=CERTIFIED)
        amounts = np.empty(len(rows))
        for place, row in enumerate(rows):
            total = mechanism.plan(replace(self._template, sensitivities=self._everything[row])).total_payment
            assert total is not None
            amounts[place] = total
        return Totals(amounts=amounts, errors=amounts * CERTIFIED)

    def _chunk(self, rule: Rule, rows: IntArray) -> tuple[FloatArray, FloatArray]:
        v = self._v[rows]
        base = SortedRows(v, self._order[rows])
        truth = minimise(rule, base, len(rows))
        ranks = np.arange(v.shape[1])
        p = rule.profiles.probs_at(truth.profile[:, None], ranks)
        eps = budgets(p, v, truth.scale[:, None], rule.weights.max_epsilon)
        costs = (self._c[rows] * eps).sum(axis=1)
        kept = eps > 0
        sparse = len(self._tables) == 1 and v.shape[1] > ALL_UP_TO
        counts = kept.sum(axis=1)
        # Where the tie order decides who is dropped, neighbours' rents have little to do with each other.
        tied = _tied_at_margin(v, counts, self._tables[0].levels)[:, None] if sparse else True
        row, rank = np.nonzero(kept & (_anchors(counts, v.shape[1]) | tied))
        if self._mechanism.knows_sensitivities:
            return costs, np.zeros(len(rows))
        markets = np.arange(len(rows))
        dearest = MovedRows(base, markets, np.zeros_like(markets), np.full(len(rows), self._tops.max()))
        clients = _Clients(rule=rule, base=base, row=row, rank=rank, which=_possible(rule, base, dearest))
        group = self._group[rows][row, rank]
        at_top, eps_top = clients.at(self._tops[group])
        fine, coarse = np.zeros(len(row)), np.zeros(len(row))
        for number, table in enumerate(self._tables):
            some = np.flatnonzero(group == number)
            if len(some):
                fine[some], coarse[some] = _rents(
                    clients.take(some),
                    table,
                    self._c[rows][row[some], rank[some]],
                    eps[row[some], rank[some]],
                    truth.objective[row[some]],
                    at_top[some],
                    eps_top[some],
                )
        # Half the step leaves about a quarter of the error.
        best, errors = fine + (fine - coarse) / 3, fine - coarse
        if not sparse:
            added = [np.bincount(row, weights=part, minlength=len(rows)) for part in (best, errors)]
            return costs + added[0], np.abs(added[1])
        amounts, spread = costs.copy(), np.zeros(len(rows))
        for market in range(len(rows)):
            mine, h = row == market, int(kept[market].sum())
            c, at = self._c[rows[market], :h], rank[mine]
            amounts[market] += _filled(c, eps[market, :h], at, best[mine])
            rougher = costs[market] + _filled(c, eps[market, :h], *_every_second(at, best[mine]))
            spread[market] = abs(amounts[market] - rougher) + abs(_filled(c, eps[market, :h] * 0, at, errors[mine]))
        return amounts, spread


def _anchors(kept: IntArray, clients: int) -> BoolArray:
    """Which ranks of a large market to compute: the first ones, some between, and the last that is kept."""
    ranks = np.arange(clients)
    some = (ranks < FIRST_ANCHORS) | (ranks % max(1, clients // ANCHORS) == 0)
    return np.asarray(some | (ranks == kept[:, None] - 1))


def _tied_at_margin(v: FloatArray, kept: IntArray, levels: FloatArray) -> BoolArray:
    """Markets in which some of the clients about the last one that is kept lie on a level of v."""
    near = np.clip(kept[:, None] + np.arange(-MARGIN, MARGIN), 0, v.shape[1] - 1)
    return np.asarray(np.isin(np.take_along_axis(v, near, axis=1), levels).any(axis=1))


def _filled(c: FloatArray, eps: FloatArray, rank: IntArray, rents: FloatArray) -> float:
    """Σ of all kept clients' rents from those of a few.

    Neighbours' rents differ by about ∫ ε dz between their reports, and ε is known at all of them. What is left over
    changes little from rank to rank.
    """
    steps = (eps[1:] + eps[:-1]) / 2 * np.diff(c)
    guess = np.append(np.cumsum(steps[::-1])[::-1], 0.0)
    return float((guess + np.interp(np.arange(len(c)), rank, rents - guess[rank])).sum())


def _every_second(rank: IntArray, rents: FloatArray) -> tuple[IntArray, FloatArray]:
    chosen = np.unique(np.concatenate([np.arange(min(len(rank), 2)), np.arange(0, len(rank), 2), [len(rank) - 1]]))
    return rank[chosen], rents[chosen]


def _possible(rule: Rule, base: SortedRows, dearest: MovedRows) -> IntArray:
    """Profiles that some client of some of these markets may get.

    Raising a report only raises a profile's value, and most so if it is the cheapest client's that goes to the top.
    """
    which = np.arange(len(rule.profiles))
    least = evaluate(rule.profiles, which, base, rule.weights).objective
    most = evaluate(rule.profiles, which, dearest, rule.weights).objective.min(axis=1)
    return np.flatnonzero((least <= most[:, None] * SLACK).any(axis=0))


def _rents(
    clients: _Clients,
    table: QuantileTable,
    c: FloatArray,
    eps: FloatArray,
    objective: FloatArray,
    at_top: FloatArray,
    eps_top: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """∫ ε dz from each report to where the client is dropped: with all panels, and with every second node."""
    start, top = clients.own, table.virtual_costs[-1]
    if len(table.reports) == 2:
        # v is one straight line, so ΔG tells all.
        slope = np.diff(table.reports) / np.diff(table.virtual_costs)
        rents = np.maximum(at_top - objective, 0.0) * slope
        return rents, rents
    # Newton's method on G, which is concave: no step overshoots (docs/theory.md, "Other priors").
    end, G, slope = start.copy(), objective.copy(), eps.copy()
    for step in range(NEWTON_STEPS + 1):
        if step:
            G, slope = clients.at(end)
        with np.errstate(divide="ignore", invalid="ignore"):
            ahead = np.where(slope > 0, end + np.maximum(at_top - G, 0.0) / slope, end)
        end = np.minimum(ahead, top)
    end = np.where(eps_top > 0, top, _held_by_levels(clients, table.levels, start, end))
    last = np.maximum(table.report_at(end), c)
    z = c[:, None] + (last - c)[:, None] * np.linspace(0, 1, PANELS + 1)
    v = np.clip(table.virtual_cost(z), start[:, None], np.maximum(end, start)[:, None])
    v[:, 0] = start
    values = [clients.at(v[:, node]) for node in range(1, PANELS + 1)]
    G = np.stack([objective, *(value for value, _ in values)], axis=1)
    eps = np.stack([eps, *(slope for _, slope in values)], axis=1)
    # What Newton's method has not reached counts as the last panel does.
    G[:, -1] = np.where(eps_top > 0, G[:, -1], at_top)
    return _panels(z, v, G, eps), _panels(z[:, ::2], v[:, ::2], G[:, ::2], eps[:, ::2])


def _held_by_levels(clients: _Clients, levels: FloatArray, start: FloatArray, end: FloatArray) -> FloatArray:
    """Where each client is dropped: `end`, but for what happens on levels of v.

    On a level clients tie, and whom the tie order favours is kept and paid up to the last report of the stretch. G does
    not show it, as at the level another client can be had at the same price. ε does. It falls as v rises, so the last
    level at which a client sells something is found by halving.
    """
    first = np.searchsorted(levels, start)
    low, high = first.copy(), np.full(len(start), len(levels))
    while len(some := np.flatnonzero(low < high)):
        middle = (low[some] + high[some]) // 2
        sells = clients.take(some).at(levels[middle])[1] > 0
        low[some], high[some] = np.where(sells, middle + 1, low[some]), np.where(sells, high[some], middle)
    between = np.concatenate([[-math.inf], levels, [math.inf]])
    # The next level, where nothing is sold, is out of reach: its stretch must not be paid for.
    below = np.nextafter(between[low + 1], -math.inf)
    return np.clip(end, np.where(low > first, between[low], -math.inf), np.maximum(below, start))


def _panels(z: FloatArray, v: FloatArray, G: FloatArray, eps: FloatArray) -> FloatArray:
    """Σ ΔG · Δz/Δv, held between what a falling ε allows; where v stands still, ε · Δz."""
    dz, dv, dG = (np.diff(x, axis=1) for x in (z, v, G))
    low, high = np.minimum(eps[:, 1:], eps[:, :-1]) * dz, eps[:, :-1] * dz
    with np.errstate(divide="ignore", invalid="ignore"):
        inside = np.where(dv > 1e-13 * v[:, 1:], dG * dz / dv, high)
    return np.asarray(np.clip(inside, low, high).sum(axis=1))


@dataclass(frozen=True, kw_only=True, eq=False)
class _Clients:
    """Clients of many markets, each of which may move its own report while the others of its market stay."""

    rule: Rule
    base: SortedRows
    row: IntArray
    rank: IntArray
    which: IntArray

    @property
    def own(self) -> FloatArray:
        return np.asarray(self.base.v[self.row, self.rank])

    def take(self, some: IntArray) -> _Clients:
        return replace(self, row=self.row[some], rank=self.rank[some])

    def at(self, v: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Minimal objective and own ε of each client at its virtual cost v."""
        step = max(1, CHUNK // max(len(self.which), self.base.v.shape[1]))
        at = curves(self.rule, self.base, self.which, self.row, self.rank, v, step)
        return at.objective, at.epsilon
