"""Whom to select how often and how much ε to buy: the exact minimum over a range of profiles."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from jsam.mechanism._arrays import FloatArray, IntArray
from jsam.mechanism.contract import RunnerUp
from jsam.mechanism.solver.closed_form import Values, evaluate
from jsam.mechanism.solver.profiles import Profiles
from jsam.mechanism.solver.rows import Ranked, SortedRows
from jsam.mechanism.weights import Weights

# Rows × profiles evaluated at once: large enough to be quick, small enough for the cache and for memory.
CHUNK = 1 << 19
# Profiles tried first where there are quick bounds, to get a value that rules most others out.
FIRST_TRIES = 8
# A bound that rounding could break is not a bound.
SLACK = 1 + 1e-12


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A range of profiles and the server's weights."""

    profiles: Profiles
    weights: Weights


@dataclass(frozen=True, kw_only=True)
class Optimum(Values):
    """The best profile of each row and its values, each array with one entry for each row."""

    profile: IntArray


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """Selection probabilities and budgets of one market, in the clients' own order."""

    selection_probs: FloatArray
    epsilons: FloatArray
    objective: float
    runner_up: RunnerUp | None


def minimise(rule: Rule, ranked: Ranked, rows: int, which: IntArray | None = None) -> Optimum:
    """The best of every row over all profiles, or over those in `which` if given."""
    which = np.arange(len(rule.profiles)) if which is None else which
    values = _values(rule, ranked, rows, which)
    best = values.objective.argmin(axis=1)
    at = np.arange(rows), best
    return Optimum(profile=which[best], **{name: array[at] for name, array in values.arrays.items()})


def _values(rule: Rule, ranked: Ranked, rows: int, which: IntArray, *, every: bool = False) -> Values:
    """The profiles `which` on every row.

    Those that cannot be the best are left at infinity, unless `every` one is asked for and there is no cap on ε.
    """
    E, free = rule.weights.max_epsilon, replace(rule.weights, max_epsilon=None)
    if E is None and (every or rule.profiles.floors is None):
        return evaluate(rule.profiles, which, ranked, free)
    lower = _lower_bounds(rule, ranked, rows, which)
    found = Values(
        objective=np.full(lower.shape, np.inf),
        cost=np.zeros(lower.shape),
        scale=np.zeros(lower.shape),
        capped=None if E is None else np.zeros(lower.shape, dtype=np.int64),
    )

    def fill(row: IntArray, column: IntArray) -> None:
        for start in range(0, len(row), CHUNK):
            i, j = row[start : start + CHUNK], column[start : start + CHUNK]
            some, profile = ranked.take(i), which[j][:, None]
            values = evaluate(rule.profiles, profile, some, free)
            found.put(i, j, values)
            if E is None:
                continue
            # p²/v falls with rank, so nobody is at the cap if the cheapest is not; then all stays, to the last digit.
            p, v = rule.profiles.levels[profile, 0], some.cost_at(np.zeros((1, 1), dtype=np.int64))
            binds = (budgets(p, v, values.scale, None) > E)[:, 0]
            i, j = i[binds], j[binds]
            values = evaluate(rule.profiles, profile[binds], some.take(np.flatnonzero(binds)), rule.weights)
            found.put(i, j, values)

    first = np.argpartition(lower, min(FIRST_TRIES, len(which)) - 1, axis=1)[:, :FIRST_TRIES]
    fill(np.repeat(np.arange(rows), first.shape[1]), first.ravel())
    tried = np.zeros(lower.shape, dtype=bool)
    tried[np.arange(rows)[:, None], first] = True
    fill(*np.nonzero((lower <= found.objective.min(axis=1, keepdims=True)) & ~tried))
    return found


def _lower_bounds(rule: Rule, ranked: Ranked, rows: int, which: IntArray) -> FloatArray:
    """What each profile's objective is at least, quickly.

    Lifting the cap on ε can only help, so a profile's value without it is one bound; the value of its floor is another.
    """
    profiles = rule.profiles
    free = replace(rule.weights, max_epsilon=None)
    if profiles.floors is None or profiles.floor_of is None:
        return evaluate(profiles, which, ranked, free).objective
    floor_of = profiles.floor_of[which]
    alone = floor_of < 0
    lower = np.empty((rows, len(which)))
    if alone.any():
        lower[:, alone] = evaluate(profiles, which[alone], ranked, free).objective
    floors, back = np.unique(floor_of[~alone], return_inverse=True)
    if len(floors):
        values = evaluate(profiles.floors, floors, ranked, rule.weights).objective
        lower[:, ~alone] = (values / SLACK)[:, back]
    return lower


def probs_at(rule: Rule, optimum: Optimum, rank: IntArray) -> FloatArray:
    """Selection probability of the client at `rank` (one for each row) under each row's optimum."""
    return rule.profiles.probs_at(optimum.profile, rank)


def budgets(p: FloatArray, v: FloatArray, scale: FloatArray | float, max_epsilon: float | None) -> FloatArray:
    """ε = scale · p^(2/3) v^(−1/3), capped; 0 for whoever is not selected (the paper's Theorem 4)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        eps = np.where(p > 0, scale * np.cbrt(p * p / v), 0.0)
    return eps if max_epsilon is None else np.minimum(eps, max_epsilon)


def allocate(rule: Rule, market: SortedRows) -> Allocation:
    """Solve one market, a single row."""
    (order,), (ordered,) = market.order, market.v
    which = np.arange(len(rule.profiles))
    values = _values(rule, market, 1, which, every=True)
    best = int(values.objective[0].argmin())
    p_ranked = rule.profiles.probabilities(best)
    p, eps = np.empty(len(order)), np.empty(len(order))
    p[order] = p_ranked
    eps[order] = budgets(p_ranked, ordered, float(values.scale[0, best]), rule.weights.max_epsilon)
    kept = int((p_ranked > 0).sum())
    others = np.where(rule.profiles.num_selected == kept, np.inf, values.objective[0])
    second = int(others.argmin())
    runner_up = None
    if np.isfinite(others[second]):
        runner_up = RunnerUp(num_selected=int(rule.profiles.num_selected[second]), objective=float(others[second]))
    return Allocation(selection_probs=p, epsilons=eps, objective=float(values.objective[0, best]), runner_up=runner_up)
