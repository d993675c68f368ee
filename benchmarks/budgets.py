"""`python -m benchmarks.budgets [--seeds 20] [--json FILE]`: what budgets promise, held against fresh markets.

For five priors, 2, 10 and 100 clients and many seeds: the loss weight of a budget, then the mean cost, or how often the
payments stay within the budget, over markets that had no part in finding it.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats
from numpy.typing import NDArray

import jsam
from benchmarks.output import store_content
from jsam.mechanism.budget.budget_cache import BudgetCache
from jsam.mechanism.budget.drawn_markets import Tables
from jsam.mechanism.budget.drawn_payments import DrawnPayments
from jsam.mechanism.budget.loss_weight import loss_weight_for_budget
from jsam.mechanism.families import RangeMechanism
from jsam.mechanism.market import virtual_cost_of
from jsam.mechanism.solver.allocation import minimise
from jsam.mechanism.solver.rows import SortedRows

PROBABILITIES = (None, 0.5, 0.95)
CLIENTS = (2, 10, 100)
# How much of the check's own error is borne: one-sided, for as many checks as there are.
BORNE = 3.0


class Mixture:
    """Two kinds of clients in one prior."""

    def __init__(self) -> None:
        self._parts = ((0.7, scipy.stats.beta(2, 5)), (0.3, scipy.stats.lognorm(s=0.4, scale=1.0)))

    def support(self) -> tuple[float, float]:
        return 0.0, math.inf

    def logpdf(self, x: Any) -> Any:
        with np.errstate(divide="ignore"):
            return np.log(sum(share * part.pdf(x) for share, part in self._parts))

    def logcdf(self, x: Any) -> Any:
        with np.errstate(divide="ignore"):
            return np.log(sum(share * part.cdf(x) for share, part in self._parts))

    def ppf(self, q: Any) -> Any:
        return self._where(lambda x: sum(share * part.cdf(x) for share, part in self._parts) >= q, q)

    def isf(self, q: Any) -> Any:
        return self._where(lambda x: sum(share * part.sf(x) for share, part in self._parts) <= q, q)

    def _where(self, reached: Any, q: Any) -> Any:
        low, high = np.full(np.shape(q), -50.0), np.full(np.shape(q), 50.0)
        for _ in range(90):
            middle = (low + high) / 2
            above = reached(np.exp(middle))
            low, high = np.where(above, low, middle), np.where(above, middle, high)
        return np.exp(high)[()]

    def rvs(self, size: Any = None, random_state: Any = None) -> Any:
        rng = np.random.default_rng(random_state)
        drawn = [part.rvs(size=size, random_state=rng) for _, part in self._parts]
        return np.where(rng.random(size) < self._parts[0][0], *drawn)


def priors() -> dict[str, Any]:
    past = np.random.default_rng(5).beta(2, 5, 20_000)
    return {
        "uniform": scipy.stats.uniform(0, 1),
        "beta(2, 5)": scipy.stats.beta(2, 5),
        "half-normal": scipy.stats.halfnorm(scale=0.4),
        "histogram": scipy.stats.rv_histogram(np.histogram(past, bins=30), density=False),
        "mixture": Mixture(),
    }


class FreshMarkets:
    """Markets drawn by the prior's own generator, with the mechanism's own virtual costs."""

    def __init__(self, mechanism: RangeMechanism, prior: Any, clients: int, *, markets: int, seed: int) -> None:
        rng = np.random.default_rng([seed, 0xF2E54])
        self._rule = mechanism.rule(clients)
        cost = virtual_cost_of(prior)
        c = np.asarray(prior.rvs(size=(markets, clients), random_state=rng))
        c = np.clip(c, max(cost.bottom, 1e-290), cost.top)
        self._v = np.sort(mechanism.price(cost)(c), axis=1)
        template = jsam.Market(sensitivities=np.full(clients, float(prior.ppf(0.5))), prior=prior)
        self._payments = DrawnPayments(
            mechanism, template, self._rule, Tables(mechanism, template), markets, np.random.default_rng([seed, 1])
        )

    def costs(self, eta: float) -> NDArray[np.float64]:
        rule = replace(self._rule, weights=replace(self._rule.weights, loss_weight=eta))
        step = max(1, 500_000 // max(self._v.shape[1], len(rule.profiles)))
        parts = [self._v[start : start + step] for start in range(0, len(self._v), step)]
        return np.concatenate([minimise(rule, SortedRows(part), len(part)).cost for part in parts])

    def payments(self, eta: float, markets: int | None = None) -> NDArray[np.float64]:
        return self._payments.totals(eta, None if markets is None else np.arange(markets)).amounts


@dataclass(frozen=True, kw_only=True)
class Case:
    """One prior, number of clients and promise, over all seeds. Values are mean cost ÷ budget, or shares of markets."""

    prior: str
    clients: int
    probability: float | None
    budget: float
    seeds: int
    markets: int
    lowest: float
    mean: float
    highest: float
    check_error: float  # standard error of one seed's check
    broken: int  # seeds beyond the promise by more than BORNE standard errors of the check
    stated: float  # the bound that the plans state, ÷ budget for a cost: the one nearest to the promise
    seconds: float  # to find η, the median

    @property
    def text(self) -> str:
        what = "mean cost ÷ budget" if self.probability is None else f"share within, asked {self.probability:g}"
        return (
            f"{self.prior:12} N={self.clients:<4} {what:26} {self.lowest:.4f} to {self.highest:.4f}, mean"
            f" {self.mean:.4f}, each ± {self.check_error:.4f}; broken {self.broken} of {self.seeds};"
            f" {self.seconds:.2f} s"
        )


def run(
    names: list[str], clients: list[int], probabilities: list[float | None], seeds: int, markets: int
) -> Iterator[Case]:
    """Every case in turn; the check of a cost has markets of its own for each seed."""
    rule = jsam.JSAM(loss_weight=1.0)
    for name in names:
        prior = priors()[name]
        for num_clients in clients:
            budget = num_clients / 4
            for probability in probabilities:
                etas, stated, took = [], [], []
                for seed in range(seeds):
                    began = time.perf_counter()
                    plan = loss_weight_for_budget(
                        rule, budget, prior=prior, num_clients=num_clients, probability=probability, seed=seed,
                        cache=BudgetCache(None),
                    )  # fmt: skip
                    took.append(time.perf_counter() - began)
                    etas.append(plan.loss_weight)
                    stated.append(plan.expected_cost_bound / budget if probability is None else plan.probability_bound)
                if probability is None:
                    seen = _cost_ratios(rule, prior, num_clients, budget, etas, markets)
                else:
                    seen = _shares(rule, prior, num_clients, budget, etas, markets)
                sign, asked = (1, 1.0) if probability is None else (-1, probability)
                values = [value for value, _ in seen]
                yield Case(
                    prior=name,
                    clients=num_clients,
                    probability=probability,
                    budget=budget,
                    seeds=seeds,
                    markets=markets,
                    lowest=min(values),
                    mean=float(np.mean(values)),
                    highest=max(values),
                    check_error=float(np.median([error for _, error in seen])),
                    broken=sum(sign * (value - asked) > BORNE * error for value, error in seen),
                    stated=max(stated) if probability is None else min(stated),
                    seconds=float(np.median(took)),
                )


def _cost_ratios(
    rule: RangeMechanism, prior: Any, clients: int, budget: float, etas: list[float], markets: int
) -> list[tuple[float, float]]:
    found = []
    for seed, eta in enumerate(etas):
        costs = FreshMarkets(rule, prior, clients, markets=markets, seed=seed).costs(eta) / budget
        found.append((float(costs.mean()), float(costs.std(ddof=1) / math.sqrt(markets))))
    return found


def _shares(
    rule: RangeMechanism, prior: Any, clients: int, budget: float, etas: list[float], markets: int
) -> list[tuple[float, float]]:
    """Payments take long: they are computed at three η, and on the logarithm between them."""
    fresh = FreshMarkets(rule, prior, clients, markets=markets, seed=0)
    low, high = math.log(min(etas)) - 1e-9, math.log(max(etas)) + 1e-9
    knots = np.linspace(low, high, 3)
    totals = np.log([fresh.payments(float(eta)) for eta in np.exp(knots)])
    found = []
    for eta in etas:
        x = math.log(eta)
        i = min(int((x - low) / (knots[1] - low)), 1)
        part = (x - knots[i]) / (knots[i + 1] - knots[i])
        share = float(((1 - part) * totals[i] + part * totals[i + 1] <= math.log(budget)).mean())
        found.append((share, math.sqrt(share * (1 - share) / markets)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.budgets", description=__doc__)
    parser.add_argument("--prior", action="append", choices=sorted(priors()), help="one of the priors; repeat for more")
    parser.add_argument("--clients", action="append", type=int, help="number of clients; repeat for more")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--markets", type=int, default=4_000)
    parser.add_argument("--probability", action="append", type=float, help="0 for the expected cost; repeat for more")
    parser.add_argument("--json", type=Path, metavar="FILE", help="store the results with versions and machine")
    options = parser.parse_args()
    asked = [value or None for value in options.probability or PROBABILITIES]
    cases = []
    found = run(
        options.prior or list(priors()), options.clients or list(CLIENTS), asked, options.seeds, options.markets
    )
    for case in found:
        cases.append(case)
        print(case.text, flush=True)
    if options.json is not None:
        content = {
            "borne": BORNE,
            "cases": [asdict(case) for case in cases],
        }
        store_content(content, options.json, module="benchmarks.budgets")


if __name__ == "__main__":
    main()
