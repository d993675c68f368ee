"""`python -m benchmarks.wrong_priors [--markets N] [--json FILE]`: what a wrong prior costs, and whom.

The planner believes a prior and has a budget; prices come from another distribution: shifted up or down, with a heavier
tail, two kinds of clients, or alike within groups. For each pair: what falls due on average against the budget, how
much worse the objective is than with the true prior at the same loss weight, and the largest gain from a false report,
which must be nothing whatever the truth is. Halves, of which each learns its prior from the other one's reports, need
no prior; they are held against the true one as well.

A report outside the believed support is refused, so it is moved to the nearest price inside; `outside` says how often.
A gain is relative to max(truthful payment, lying payment, 1e-9 Σπ).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats

import jsam
from benchmarks.budgets import Mixture
from benchmarks.output import store_content
from jsam.errors import DivergentPaymentError
from jsam.mechanism._arrays import FloatArray
from jsam.mechanism.budget.loss_weight import loss_weight_for_budget
from jsam.mechanism.families import RangeMechanism
from jsam.mechanism.families.even import EvenJSAM
from jsam.mechanism.halves import ByHalves, learned_priors

CLIENTS, BUDGET = 100, 10.0
INSIDE = 1e-6  # of the support, from its ends: a density may vanish there
LIARS, LIES = 2, 6
GAIN_BAR = 1e-6

Draw = Callable[[np.random.Generator], FloatArray]


@dataclass(frozen=True, kw_only=True)
class Truth:
    """Where prices come from, and the prior that says so: each price's own distribution, if they are alike."""

    name: str
    prior: Any
    draw: Draw


def independent(name: str, prior: Any) -> Truth:
    return Truth(name=name, prior=prior, draw=lambda rng: np.asarray(prior.ppf(rng.uniform(0, 1, CLIENTS))))


def alike_in_groups(rng: np.random.Generator) -> FloatArray:
    """Ten groups of ten: U(0, 1) for everybody, and correlated by 0.8 (as normal scores) within a group."""
    shared, own = np.repeat(rng.standard_normal(10), 10), rng.standard_normal(CLIENTS)
    return np.asarray(scipy.stats.norm.cdf(np.sqrt(0.8) * shared + np.sqrt(0.2) * own))


UNIFORM, BETA = jsam.parse_prior("uniform:0,1"), scipy.stats.beta(2, 5)
LOGNORMAL = scipy.stats.lognorm(s=0.6, scale=0.25)
TRUTHS = {
    truth.name: truth
    for truth in (
        independent("U(0, 1)", UNIFORM),
        independent("Beta(2, 5)", BETA),
        independent("U(0.2, 1.2)", scipy.stats.uniform(0.2, 1.0)),
        independent("U(0, 0.7)", scipy.stats.uniform(0, 0.7)),
        independent("log-normal", LOGNORMAL),
        independent("log-normal, 1.5 times the spread", scipy.stats.lognorm(s=0.9, scale=0.25)),
        independent("two kinds", Mixture()),
        Truth(name="U(0, 1), alike in groups", prior=UNIFORM, draw=alike_in_groups),
    )
}
BELIEFS = {"U(0, 1)": UNIFORM, "Beta(2, 5)": BETA, "log-normal": LOGNORMAL}
PAIRS = (
    ("U(0, 1)", "U(0, 1)"),
    ("U(0, 1)", "Beta(2, 5)"),
    ("U(0, 1)", "U(0.2, 1.2)"),
    ("U(0, 1)", "U(0, 0.7)"),
    ("U(0, 1)", "U(0, 1), alike in groups"),
    ("Beta(2, 5)", "U(0, 1)"),
    ("log-normal", "log-normal"),
    ("log-normal", "log-normal, 1.5 times the spread"),
    ("log-normal", "two kinds"),
    ("log-normal", "U(0, 1)"),
)
# Truths under which each mechanism is planned by halves too; that takes seconds a market.
HALVED = (("U(0, 1)", "Beta(2, 5)", "two kinds"), ("U(0, 1)",), ("U(0, 1)",))


@dataclass(frozen=True, kw_only=True)
class Row:
    """One mechanism, belief and truth, over many markets of 100 clients."""

    mechanism: str
    believed: str
    truth: str
    budget: float
    markets: int
    outside: float  # share of the prices that had to be moved into the believed support
    paid: float  # Σπ on average
    paid_error: float  # its standard error
    # Mean objective over that with the true prior at the same loss weight, minus 1; None if that one is infinite.
    objective_lost: float | None
    largest_gain: float
    lies: int

    @property
    def text(self) -> str:
        lost = "infinite with the true prior" if self.objective_lost is None else f"{self.objective_lost:+.1%}"
        return (
            f"{self.mechanism:20} believes {self.believed:11} truth {self.truth:33} paid {self.paid:8.3f} ±"
            f" {self.paid_error:.3f} of {self.budget:g}, objective {lost}, outside"
            f" {self.outside:.1%}, largest gain {self.largest_gain:.1e}"
        )


def mechanisms() -> list[RangeMechanism]:
    return [
        EvenJSAM(loss_weight=1.0),
        jsam.JSAM(loss_weight=1.0),
        jsam.USBM(loss_weight=1.0),
        jsam.FSBM(num_selected=20, loss_weight=1.0),
    ]


def inside(prior: Any, prices: FloatArray) -> FloatArray:
    """Prices at which the believed prior has a density."""
    bottom, top = (float(x) for x in prior.support())
    margin = INSIDE * (top - bottom) if np.isfinite(top) else 0.0
    return np.clip(prices, max(bottom + margin, INSIDE), top - margin)


def real_objective(contract: jsam.Contract) -> float:
    """η · loss bound + what is truly paid: virtual costs of a wrong prior are no yardstick."""
    assert contract.total_payment is not None
    return contract.loss_weight * contract.loss_bound + contract.total_payment


def informed_objective(mechanism: RangeMechanism, truth: Truth, drawn: FloatArray) -> float:
    """The same with the true prior; NaN where its payments are infinite, as those of USBM may be."""
    try:
        return real_objective(planner(mechanism, truth.prior)(inside(truth.prior, drawn)))
    except DivergentPaymentError:
        return math.nan


def largest_gain(
    plan: Callable[[FloatArray], jsam.Contract], prices: FloatArray, prior: Any, rng: np.random.Generator
) -> float:
    """The best of some lies of some clients that sell something, each a whole plan; 0 if none pays."""
    truth, worst = plan(prices), 0.0
    assert truth.payments is not None
    sellers = np.flatnonzero(truth.epsilons > 0)
    for client in rng.permutation(sellers)[:LIARS]:
        c = prices[client]
        utility = truth.payments[client] - c * truth.epsilons[client]
        for lie in inside(prior, c * np.exp(rng.uniform(-1.5, 1.5, LIES))):
            changed = prices.copy()
            changed[client] = lie
            other = plan(changed)
            assert other.payments is not None
            most = max(truth.payments[client], other.payments[client], 1e-9 * truth.payments.sum())
            worst = max(worst, float((other.payments[client] - c * other.epsilons[client] - utility) / most))
    return worst


def planner(mechanism: RangeMechanism, prior: Any) -> Callable[[FloatArray], jsam.Contract]:
    return lambda prices: mechanism.plan(jsam.Market(sensitivities=prices, prior=prior))


def planner_by_halves(mechanism: RangeMechanism, seed: int, budget: float | None) -> Callable[[FloatArray], Any]:
    """Everything from the reports on: priors, loss weights if there is a budget, and contracts."""

    def plan(prices: FloatArray) -> jsam.Contract:
        prior = learned_priors(prices, [str(client) for client in range(len(prices))], seed)
        market = jsam.Market(sensitivities=prices, prior=prior)
        halves = ByHalves.of(mechanism, seed)
        return (halves if budget is None else halves.within(budget, market)).plan(market)

    return plan


def wrong(mechanism: RangeMechanism, believed: str, truth: Truth, markets: int) -> Row:
    """Plans under a belief, at the loss weight that a budget has under it."""
    prior = BELIEFS[believed]
    found = loss_weight_for_budget(mechanism, BUDGET, prior=prior, num_clients=CLIENTS)
    some = mechanism.with_loss_weight(found.loss_weight)
    paid, lost, moved, gain = [], [], [], 0.0
    for seed in range(markets):
        rng = np.random.default_rng([seed, 0x7A])
        drawn = np.maximum(truth.draw(rng), INSIDE)
        prices = inside(prior, drawn)
        contract = planner(some, prior)(prices)
        informed = informed_objective(some, truth, drawn)
        paid.append(float(contract.total_payment or 0.0))
        lost.append([real_objective(contract), informed])
        moved.append(float(np.mean(prices != drawn)))
        if seed < markets // 4:
            gain = max(gain, largest_gain(planner(some, prior), prices, prior, rng))
    return _row(mechanism.name, believed, truth.name, paid, lost, moved, gain, markets // 4)


def halves(mechanism: RangeMechanism, truth: Truth, markets: int) -> Row:
    """Plans by halves, with the budget split; the true prior's loss weight is the yardstick for the objective."""
    found = loss_weight_for_budget(mechanism, BUDGET, prior=truth.prior, num_clients=CLIENTS)
    some = mechanism.with_loss_weight(found.loss_weight)
    paid, lost, gain = [], [], 0.0
    for seed in range(markets):
        rng = np.random.default_rng([seed, 0x7A])
        prices = inside(truth.prior, np.maximum(truth.draw(rng), INSIDE))
        budgeted = planner_by_halves(some, seed, BUDGET)(prices)
        contract = planner_by_halves(some, seed, None)(prices)
        informed = informed_objective(some, truth, prices)
        paid.append(float(budgeted.total_payment or 0.0))
        lost.append([real_objective(contract), informed])
        if seed < markets // 8:
            gain = max(gain, largest_gain(planner_by_halves(some, seed, None), prices, truth.prior, rng))
    return _row(f"{mechanism.name} by halves", "learned", truth.name, paid, lost, [0.0], gain, markets // 8)


def _row(
    name: str,
    believed: str,
    truth: str,
    paid: Sequence[float],
    lost: Sequence[Sequence[float]],
    moved: Sequence[float],
    gain: float,
    tried: int,
) -> Row:
    here, informed = np.mean(lost, axis=0)
    return Row(
        mechanism=name,
        believed=believed,
        truth=truth,
        budget=BUDGET,
        markets=len(paid),
        outside=float(np.mean(moved)),
        paid=float(np.mean(paid)),
        paid_error=float(np.std(paid, ddof=1) / np.sqrt(len(paid))),
        objective_lost=None if math.isnan(informed) else float(here / informed - 1),
        largest_gain=gain,
        lies=tried * LIARS * LIES,
    )


def run(markets: int, with_halves: int) -> Iterator[Row]:
    for mechanism in mechanisms():
        for believed, truth in PAIRS:
            yield wrong(mechanism, believed, TRUTHS[truth], markets)
    for mechanism, names in zip(mechanisms(), HALVED, strict=False):
        for name in names:
            yield halves(mechanism, TRUTHS[name], with_halves)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wrong_priors", description=__doc__)
    parser.add_argument("--markets", type=int, default=40, help="of each pair")
    parser.add_argument("--halves", type=int, default=8, help="markets planned by halves, which take longer")
    parser.add_argument("--json", type=Path, metavar="FILE", help="store the results with versions and machine")
    options = parser.parse_args()
    rows = []
    for row in run(options.markets, options.halves):
        rows.append(row)
        print(row.text, flush=True)
    if options.json is not None:
        content = {
            "gain_bar": GAIN_BAR,
            "rows": [asdict(row) for row in rows],
        }
        store_content(content, options.json, module="benchmarks.wrong_priors")


if __name__ == "__main__":
    main()
