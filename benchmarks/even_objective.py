"""`python -m benchmarks.even_objective [--markets N] [--json FILE]`: is `jsam-even` the best of its range?

Random markets of 2 to 10 clients, under three priors, with equal and unequal data, without and with each kind of cap
and floor. Every contract is held against all subsets of the clients; for each subset the best ε is searched for by code
that shares nothing with the planner. With unequal data a cap on ε is planned with tangents to the root in the loss, so
there the range is all subsets and all tangents, and what the tangents lose is a row of its own. With unequal data caps
and floors on p narrow the range to sizes that keep them whoever is kept; what this loses is a row, too.

For equal data SLSQP searches the whole simplex from several starts: even shares leave this gap, by choice.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats

import jsam
from benchmarks.output import print_table, store
from benchmarks.timing import Row
from jsam.mechanism._arrays import FloatArray
from jsam.mechanism.families import EvenJSAM
from jsam.mechanism.solver.counted import TANGENT_STEP
from tests.oracles import best_even, best_even_by_tangents, least_over_simplex

PACKAGES = ("numpy", "scipy", "jsam")
PRIORS = (scipy.stats.uniform(0, 1), scipy.stats.beta(2, 5), scipy.stats.lognorm(0.6, scale=0.3))
BOUNDS = ("no bound", "cap on ε", "cap on p", "floor on p", "least number")
FEWEST, MOST = 2, 10  # clients
EXACT = 1e-9
GAP = 5e-3  # in the mean
TANGENTS = math.cosh(math.log(TANGENT_STEP) / 2) - 1
ROUNDING = 1e-12


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A market, and the mechanism that is judged there."""

    equal: bool
    bound: str
    market: jsam.Market
    mechanism: EvenJSAM

    @property
    def kind(self) -> str:
        return f"{'equal' if self.equal else 'unequal'} data, {self.bound}"

    @property
    def shares(self) -> FloatArray:
        u, N = self.market.data_shares, self.market.num_clients
        return np.full(N, 1 / N) if u is None else u

    def within_range(self, p: FloatArray) -> bool:
        """Whether those kept hold so much that each cap and floor is kept whoever they are."""
        u, rules = self.shares, self.mechanism
        held = float(u[p > 0].sum())
        fewer = np.sort(u)[::-1][: (rules.min_clients or 1) - 1].sum()
        return bool(
            (rules.max_selection_prob is None or held * rules.max_selection_prob >= u.max() * (1 - ROUNDING))
            and held * (rules.min_selection_prob or 0.0) <= u.min() * (1 + ROUNDING)
            and (held > fewer * (1 + ROUNDING) or (p > 0).all())
        )

    def within_bounds(self, p: FloatArray) -> bool:
        """Whether this selection keeps each cap and floor."""
        kept, rules = p[p > 0], self.mechanism
        return bool(
            kept.max() <= (rules.max_selection_prob or 1.0) * (1 + ROUNDING)
            and kept.min() >= (rules.min_selection_prob or 0.0) * (1 - ROUNDING)
            and len(kept) >= (rules.min_clients or 1)
        )


@dataclass(frozen=True, kw_only=True)
class Judged:
    """How one contract stands, each number relative to the objective that it is held against."""

    kind: str
    difference: float  # from the least over the range
    tangents: float | None  # above the least with the root itself, where tangents stand for it
    narrowed: float | None  # above the least of all selections that keep the bounds
    gap: float | None  # above the least over the whole simplex
    some_dropped: bool


def drawn(number: int, seed: int) -> Drawn:
    """The market of this number; bounds and kinds of data take turns."""
    rng = np.random.default_rng([seed, number])
    bound, equal = BOUNDS[number % len(BOUNDS)], number // len(BOUNDS) % 2 == 0
    N, prior = int(rng.integers(FEWEST, MOST + 1)), PRIORS[rng.integers(len(PRIORS))]
    c = np.clip(prior.rvs(N, random_state=rng), 1e-6, None)
    samples = [40] * N if equal else rng.integers(3, 60, N).tolist()
    market = jsam.Market(sensitivities=c, prior=prior, samples=samples)
    u = np.asarray(samples) / sum(samples)
    choices: dict[str, dict[str, Any]] = {
        "no bound": {},
        "cap on ε": {"max_epsilon": float(np.exp(rng.uniform(-2, 2)))},
        "cap on p": {"max_selection_prob": float(rng.uniform(u.max(), 1))},
        "floor on p": {"min_selection_prob": float(u.min() / rng.uniform(u.min(), 1))},
        "least number": {"min_clients": int(rng.integers(2, N + 1))},
    }
    mechanism = EvenJSAM(
        loss_weight=float(10 ** rng.uniform(-1, 2)),
        noise_weight=float(10 ** rng.uniform(-1, 1.5)),
        bias_weight=float(10 ** rng.uniform(-1.5, 0.5)),
        **choices[bound],
    )
    return Drawn(equal=equal, bound=bound, market=market, mechanism=mechanism)


def judged(case: Drawn, rng: np.random.Generator) -> Judged:
    """The contract of a market against brute force, and against SLSQP where clients hold equal data."""
    contract = jsam.plan(case.market, case.mechanism, payments=False)
    v, u, weights, p = case.market.virtual_costs, case.shares, contract.weights, contract.selection_probs
    if not (case.within_range(p) and case.within_bounds(p)):
        return Judged(kind=case.kind, difference=math.inf, tangents=None, narrowed=None, gap=None, some_dropped=True)
    least = best_even(v, u, weights, case.within_range)
    above, tangents, narrowed, gap = contract.objective / least - 1, None, None, None
    difference = abs(above)
    if case.bound == "cap on ε" and not case.equal:

        def as_planned(other: FloatArray) -> bool:
            return bool(np.array_equal(other > 0, p > 0))

        tangents = above
        reached = best_even_by_tangents(v, u, weights, as_planned, TANGENT_STEP)
        difference = reached / best_even_by_tangents(v, u, weights, case.within_range, TANGENT_STEP) - 1
    elif case.bound != "no bound" and not case.equal:
        narrowed = contract.objective / best_even(v, u, weights, case.within_bounds) - 1
    if case.equal and case.bound in ("no bound", "cap on ε", "cap on p"):
        gap = contract.objective / least_over_simplex(v, weights, p, rng) - 1
    dropped = contract.num_selected < len(v)
    return Judged(
        kind=case.kind, difference=difference, tangents=tangents, narrowed=narrowed, gap=gap, some_dropped=dropped
    )


def differences(results: list[Judged]) -> list[Row]:
    """The largest difference from the least over the range, for each kind of market and for all."""
    kinds = list(dict.fromkeys(each.kind for each in results))
    rows = []
    for name, of in [("all", results), *((kind, [each for each in results if each.kind == kind]) for kind in kinds)]:
        largest = max(each.difference for each in of)
        rows.append(_row(f"{name}: against all subsets", len(of), largest, EXACT))
    tangents = [each.tangents for each in results if each.tangents is not None]
    if tangents:
        rows.append(
            _row("unequal data, cap on ε: above the least with the root", len(tangents), max(tangents), TANGENTS)
        )
    return rows


def _row(what: str, markets: int, largest: float, bar: float) -> Row:
    return Row(
        what=what,
        bar=f"≤ {bar:.3g}, relative",
        measured=f"{largest:.2e} at most in {markets} markets",
        ratio=largest / bar,
        met=largest <= bar,
        numbers={"markets": markets, "largest": largest},
    )


def gaps(results: list[Judged]) -> list[Row]:
    """How far even shares are above the least over the whole simplex, and what a narrower range loses."""
    rows = []
    for bound in ("no bound", "cap on ε", "cap on p"):
        of = [each for each in results if each.kind == f"equal data, {bound}" and each.gap is not None]
        rows += _means(f"equal data, {bound}: above the whole simplex", of, lambda each: each.gap, judge=True)
        some = [each for each in of if each.some_dropped]
        rows += _means(f"the same where somebody is dropped ({bound})", some, lambda each: each.gap, judge=False)
    for bound in BOUNDS[2:]:
        of = [each for each in results if each.kind == f"unequal data, {bound}"]
        rows += _means(
            f"unequal data, {bound}: above all selections within it", of, lambda each: each.narrowed, judge=False
        )
    return rows


def _means(what: str, of: list[Judged], number: Callable[[Judged], float | None], *, judge: bool) -> list[Row]:
    values = [value for each in of if (value := number(each)) is not None]
    if not values:
        return []
    mean, largest = float(np.mean(values)), max(values)
    return [
        Row(
            what=what,
            bar=f"mean ≤ {GAP:.1%}" if judge else "",
            measured=f"{mean:.3%} in the mean, {largest:.2%} at most in {len(values)} markets",
            ratio=mean / GAP,
            met=mean <= GAP,
            numbers={"markets": len(values), "mean": mean, "median": float(np.median(values)), "largest": largest},
        )
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.even_objective", description=__doc__)
    parser.add_argument("--markets", type=int, default=1000, help="how many markets, of all kinds together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="store the results with versions and machine")
    options = parser.parse_args()
    if options.markets < 1:
        parser.error(f"--markets is {options.markets}; it must be 1 or more")
    results, rng = [], np.random.default_rng(options.seed)
    for number in range(options.markets):
        results.append(judged(drawn(number, options.seed), rng))
        if (number + 1) % 100 == 0:
            print(f"… {number + 1} markets", file=sys.stderr, flush=True)
    rows = {"differences": differences(results), "gaps": gaps(results)}
    print_table(
        rows,
        title=f"jsam-even against brute force, {FEWEST} to {MOST} clients",
        command="rows",
        packages=PACKAGES,
        left_out=lambda name: "no market of that kind",
    )
    if options.json is not None:
        store(rows, options.json, module="benchmarks.even_objective", packages=PACKAGES, markets=len(results))


if __name__ == "__main__":
    main()
