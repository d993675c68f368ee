"""`python -m benchmarks.even_misreports [--markets N] [--json FILE]`: does a false report pay under `jsam-even`?

Random markets of 5 to 200 clients under three priors, with equal and unequal data, without and with each kind of cap
and floor. Every other market is planned by halves, each with the prior that the other half's reports teach; there a lie
changes what the other half is planned with. Two judges look for the client that gains most, and share no code: the
audit, and whole plans with each lie, from the reports on. A gain counts relative to the larger of the truthful payment,
the lying payment and 1e-9 of all payments. Kinds of markets take turns, so N markets hold each kind N/60 times.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import jsam
from benchmarks.even_objective import BOUNDS, PRIORS
from benchmarks.misreports import GAIN_BAR
from benchmarks.output import print_table, store
from benchmarks.timing import Row
from jsam.errors import InputError
from jsam.mechanism._arrays import FloatArray
from jsam.mechanism.families import EvenJSAM
from jsam.mechanism.families.base import RangeMechanism
from jsam.mechanism.halves import ByHalves, learned_priors, plan_by_halves

PACKAGES = ("numpy", "scipy", "jsam")
SIZES = (5, 8, 12, 20, 35, 60, 100, 200)
FEWEST_BY_HALVES = 10
KINDS = tuple(itertools.product(BOUNDS, (True, False), (False, True), PRIORS))  # bound, equal data, halves, prior
GRID = 8  # of the audit
HALVES_SEED = 0


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A market whose reports are the truth, and the rules under which it is planned."""

    kind: str
    prior: Any
    reports: FloatArray
    samples: Sequence[int]
    mechanism: EvenJSAM
    halves: bool
    slow: bool  # so that fewer lies are tried

    def planned(self, reports: FloatArray) -> jsam.Contract:
        """The whole contract for any reports; by halves, with priors that are learned from them anew."""
        if self.halves:
            return plan_by_halves(self.mechanism, reports, samples=self.samples, seed=HALVES_SEED)
        return self.mechanism.plan(jsam.Market(sensitivities=reports, prior=self.prior, samples=self.samples))

    def for_audit(self) -> tuple[jsam.Market, RangeMechanism]:
        """The same as a market and a mechanism, as the audit takes them."""
        if not self.halves:
            return jsam.Market(sensitivities=self.reports, prior=self.prior, samples=self.samples), self.mechanism
        names = [str(client) for client in range(len(self.reports))]
        prior = learned_priors(self.reports, names, HALVES_SEED)
        market = jsam.Market(sensitivities=self.reports, prior=prior, samples=self.samples)
        return market, ByHalves.of(self.mechanism, HALVES_SEED)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What both judges say of one market: the largest relative gain that each of them found."""

    kind: str
    clients: int
    audit: float
    violated: tuple[str, ...]  # what else the audit finds fault with
    whole_plans: float
    lies: int  # that were planned as whole markets


def setting(number: int, seed: int) -> Setting:
    """The market of this number."""
    rng = np.random.default_rng([seed, number])
    bound, equal, halves, prior = KINDS[number % len(KINDS)]
    sizes = np.array([size for size in SIZES if not halves or size >= FEWEST_BY_HALVES])
    # Every lie by halves takes two learned priors, and each of these as long as it has reports: large ones are rarer.
    N = int(rng.choice(sizes, p=(1 / sizes) / (1 / sizes).sum() if halves else None))
    c = np.clip(prior.rvs(N, random_state=rng), 1e-6, None)
    samples = [40] * N if equal else rng.integers(3, 60, N).tolist()
    u = np.asarray(samples) / sum(samples)
    most = N // 2 if halves else N  # each half keeps as large a part of them as it has data
    choices: dict[str, dict[str, Any]] = {
        "no bound": {},
        "cap on ε": {"max_epsilon": float(np.exp(rng.uniform(-2, 2)))},
        "cap on p": {"max_selection_prob": float(u.max() ** rng.uniform(0, 1))},
        "floor on p": {"min_selection_prob": float(u.min() / rng.uniform(0.2, 1))},
        "least number": {"min_clients": round(most ** float(rng.uniform(0, 1)))},
    }
    mechanism = EvenJSAM(
        loss_weight=float(10 ** rng.uniform(-0.5, 2)),
        noise_weight=float(10 ** rng.uniform(-1, 1.5)),
        bias_weight=float(10 ** rng.uniform(-1.5, 0.5)),
        **choices[bound],
    )
    way = "by halves" if halves else "one market"
    return Setting(
        kind=f"{way}, {'equal' if equal else 'unequal'} data, {bound}",
        prior=prior,
        reports=c,
        samples=samples,
        mechanism=mechanism,
        halves=halves,
        slow=halves or (bound == "cap on ε" and not equal),
    )


def lies_of(case: Setting, client: int, rng: np.random.Generator) -> FloatArray:
    """Close to the truth, beside other reports, where ranks switch, and anywhere that the prior allows."""
    c = float(case.reports[client])
    others = rng.choice(np.delete(case.reports, client), 2)
    lies = np.concatenate([
        c * (1 + np.array([1e-6, -1e-3, 0.1])),
        others * (1 + rng.choice([-1e-9, 1e-9], 2)),
        c * np.exp(rng.uniform(-2, 2, 3)),
        case.prior.ppf(rng.uniform(0, 1, 2)),
    ])  # fmt: skip
    low, high = case.prior.support()
    return np.asarray(lies[(lies > max(low, 0.0)) & (lies < high)])


def best_gain(case: Setting, truth: jsam.Contract, client: int, rng: np.random.Generator) -> tuple[float, int]:
    """The largest gain of a client over some lies, by a whole plan for each, and how many these were."""
    assert truth.payments is not None
    c, gains = float(case.reports[client]), [-math.inf]
    utility = truth.payments[client] - c * truth.epsilons[client]
    for lie in lies_of(case, client, rng):
        reports = case.reports.copy()
        reports[client] = lie
        try:
            other = case.planned(reports)
        except InputError:
            continue  # who is refused earns nothing
        assert other.payments is not None
        most = max(truth.payments[client], other.payments[client], 1e-9 * truth.payments.sum())
        gains.append(float((other.payments[client] - c * other.epsilons[client] - utility) / most))
    return max(gains), len(gains) - 1


def judged(case: Setting, rng: np.random.Generator) -> Verdict:
    """A client that sells and any other one, by both judges; where a plan takes long, mostly the first alone."""
    truth = case.planned(case.reports)
    sells = np.flatnonzero(truth.epsilons)
    first = int(rng.choice(sells))
    clients = [first, int(rng.choice(np.delete(np.arange(len(case.reports)), first)))]
    if case.slow:
        clients = [clients[int(rng.random() < 0.25)]]
    market, mechanism = case.for_audit()
    report = jsam.audit(market, mechanism, clients=clients, grid=GRID)
    tried = [best_gain(case, truth, client, rng) for client in clients]
    return Verdict(
        kind=case.kind,
        clients=len(case.reports),
        audit=report.worst_relative_gain,
        violated=tuple(check.name for check in report.checks if check.status == "violated"),
        whole_plans=max(gain for gain, _ in tried),
        lies=sum(lies for _, lies in tried),
    )


def rows_of(verdicts: Sequence[Verdict], judge: str) -> list[Row]:
    """The largest gain that a judge found, in all markets and in each kind."""

    def more(of: Sequence[Verdict]) -> dict[str, Any]:
        if judge == "whole_plans":
            return {"lies_planned": sum(each.lies for each in of)}
        return {"violated": dict(Counter(name for each in of for name in each.violated))}

    rows = []
    for kind in ["all", *sorted({each.kind for each in verdicts})]:
        of = [each for each in verdicts if kind in ("all", each.kind)]
        largest = max(getattr(each, judge) for each in of)
        rows.append(
            Row(
                what=kind,
                bar=f"≤ {GAIN_BAR:g} of the larger payment",
                measured=f"{largest:.1e} at most in {len(of)} markets",
                ratio=max(largest, 0.0) / GAIN_BAR,
                met=largest <= GAIN_BAR,
                numbers={
                    "markets": len(of),
                    "largest_gain": largest,
                    "clients": sorted({each.clients for each in of}),
                    **more(of),
                },
            )
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.even_misreports", description=__doc__)
    parser.add_argument("--markets", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="store the results with versions and machine")
    options = parser.parse_args()
    if options.markets < 1:
        parser.error(f"--markets is {options.markets}; it must be 1 or more")
    verdicts = []
    for number in range(options.markets):
        verdicts.append(judged(setting(number, options.seed), np.random.default_rng([options.seed, number, 1])))
        if (number + 1) % 10 == 0:
            gain = max(max(each.audit, each.whole_plans) for each in verdicts)
            print(f"… {number + 1} markets: gain {gain:.1e}", file=sys.stderr, flush=True)
    results = {"audit": rows_of(verdicts, "audit"), "whole plans": rows_of(verdicts, "whole_plans")}
    print_table(
        results,
        title="jsam-even: what the best lie gains, by two judges",
        command="judge",
        packages=PACKAGES,
        left_out=lambda name: "no market",
    )
    if options.json is not None:
        store(results, options.json, module="benchmarks.even_misreports", packages=PACKAGES, markets=len(verdicts))


if __name__ == "__main__":
    main()
