"""The planner's timings: each function is one benchmark and returns the lines of the table that it fills."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy.stats
from numpy.typing import NDArray

import jsam
from benchmarks.large_markets import capped_budget, many_clients, unequal_data
from benchmarks.timing import Row, Timing, interleaved, median, once, readable, seconds
from jsam.mechanism.priors import Prior
from tests.oracles import published_algorithm_1, trapezoid_payments_on_grid, true_objective

ROOT = Path(__file__).parents[1]
MILLION = 1_000_000
UNIFORM = scipy.stats.uniform(0, 1)


def _reports(n: int, seed: int = 0) -> NDArray[np.float64]:
    return np.random.default_rng(seed).uniform(0, 1, n)


def _market(n: int, prior: Prior = UNIFORM, seed: int = 0) -> jsam.Market:
    """A market whose virtual cost function is ready: ironing is looked for once a prior, not once a plan."""
    drawn = prior.rvs(size=n, random_state=np.random.default_rng(seed))
    market = jsam.Market(sensitivities=drawn, prior=prior)
    assert len(market.virtual_costs) == n
    return market


def plan_million() -> list[Row]:
    """A plan of a million clients without payments, against numpy's argsort of the same reports; its memory."""
    c = _reports(MILLION)
    rows = []
    for eta in (1.0, 10.0, 1e4):
        mechanism = jsam.JSAM(loss_weight=eta)

        def plan(mechanism: jsam.JSAM = mechanism) -> jsam.Contract:
            return jsam.plan(jsam.Market(sensitivities=c, prior=UNIFORM), mechanism, payments=False)

        timings = interleaved({"plan": plan, "argsort": lambda: np.argsort(c)}, 7)
        ratio = timings["plan"].wall / timings["argsort"].wall
        rows.append(
            Row(
                what=f"plan without payments, N = 1,000,000, {plan().num_selected:,} kept",
                bar="≤ 10 × numpy's argsort",
                measured=f"{timings['plan']} to {timings['argsort']}",
                ratio=ratio,
                met=ratio <= 10,
                numbers=seconds(timings),
            )
        )
    code = (
        "import resource, numpy, scipy.stats, jsam;"
        f"c = numpy.random.default_rng(0).uniform(0, 1, {MILLION});"
        "jsam.plan(jsam.Market(sensitivities=c, prior=scipy.stats.uniform(0, 1)), jsam.JSAM(loss_weight=10.0),"
        " payments=False);"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    peak = int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout) * 1024
    rows.append(
        Row(
            what="its memory, the whole process at its peak",
            bar="≤ 1 GB",
            measured=f"{peak / 1e9:.2f} GB",
            ratio=peak / 1e9,
            met=peak <= 1e9,
            numbers={"peak bytes": peak},
        )
    )
    return rows


def payments_hundred() -> list[Row]:
    """Plan and payments of 100 clients, against one argsort of a million and against re-solving on a grid."""
    many, rows = _reports(MILLION), []
    for eta in (0.5, 5.0, 100.0):
        market, mechanism = _market(100), jsam.JSAM(loss_weight=eta)

        def ours(market: jsam.Market = market, mechanism: jsam.JSAM = mechanism) -> jsam.Contract:
            return jsam.plan(market, mechanism)

        def grid(market: jsam.Market = market, eta: float = eta) -> NDArray[np.float64]:
            return trapezoid_payments_on_grid(market.sensitivities, lambda z: 2 * z, 1.0, eta=eta, Q=1.0, points=2000)

        timings = interleaved({"ours": ours, "argsort": lambda: np.argsort(many)}, 9)
        timings["grid"] = once(grid)
        kept = ours().num_selected
        rows.append(
            Row(
                what=f"payments, N = 100 uniform, {kept} kept",
                bar="≤ 1 × argsort of 1,000,000",
                measured=f"{timings['ours']} to {timings['argsort']}",
                ratio=timings["ours"].wall / timings["argsort"].wall,
                met=timings["ours"].wall <= timings["argsort"].wall,
                numbers=seconds(timings),
            )
        )
        ratio = timings["grid"].wall / timings["ours"].wall
        paid, naive = ours().payments, grid()
        assert paid is not None
        off = float(np.abs(naive / np.where(paid > 0, paid, 1) - (paid > 0)).max())
        rows.append(
            Row(
                what=f"re-solving on 2,000 points a client instead (off by {off:.0e})",
                bar="≥ 300 × slower",
                measured=f"{timings['grid']} to {timings['ours']}",
                ratio=ratio,
                met=ratio >= 300,
                numbers={**seconds(timings), "largest relative error of the grid": off},
            )
        )
    return rows


def _payments_of_many(n: int, name: str, prior: Prior, etas: tuple[float, ...], bar: float) -> list[Row]:
    rows, market = [], _market(n, prior)
    for eta in etas:
        mechanism = jsam.JSAM(loss_weight=eta)
        alone, whole = [], []
        for _ in range(3):
            alone.append(once(lambda m=mechanism: jsam.plan(market, m, payments=False)))  # type: ignore[misc]
            whole.append(once(lambda m=mechanism: jsam.plan(market, m)))  # type: ignore[misc]
        timings = {"ours": median(whole), "plan alone": median(alone)}
        kept = jsam.plan(market, mechanism, payments=False).num_selected
        rows.append(
            Row(
                what=f"plan and payments, N = {n:,} {name}, {kept:,} kept",
                bar=f"≤ {bar:g} s",
                measured=f"{timings['ours']}; the plan alone {readable(timings['plan alone'].wall)}",
                ratio=timings["ours"].wall / bar,
                met=timings["ours"].wall <= bar,
                numbers={**seconds(timings), "loss_weight": eta},
            )
        )
    return rows


def payments_uniform() -> list[Row]:
    """All payments of 100,000 clients under a uniform prior, from few kept to all."""
    return _payments_of_many(100_000, "uniform", UNIFORM, (1.0, 20.0, 100.0, 1e4), 3.0)


def payments_beta() -> list[Row]:
    """All payments of 10,000 clients under a beta prior, from few kept to nearly all."""
    return _payments_of_many(10_000, "beta(2, 5)", scipy.stats.beta(2, 5), (1.0, 5.0, 20.0, 100.0, 1e4), 20.0)


def published() -> list[Row]:
    """Algorithm 1 as published (Δ = 1e-5, N = 100): its inner problems by a convex solver, and all of one h at once."""
    market, eta = _market(100), 5.0
    v = np.sort(market.virtual_costs)

    def ours() -> jsam.Contract:
        return jsam.plan(market, jsam.JSAM(loss_weight=eta), payments=False)

    def theirs() -> float:
        return true_objective(published_algorithm_1(v, eta=eta, delta_grid=1e-5), v, eta=eta, Q=1.0)[0]

    timings = interleaved({"ours": ours, "vectorised": theirs}, 5)
    timings["as published"] = once(lambda: published_algorithm_1(v, eta=eta, delta_grid=1e-5, vectorised=False))
    worse = 0.0
    for seed in range(20):
        other, weight = _market(100, seed=seed), float(10 ** np.random.default_rng(seed).uniform(-1, 2))
        costs = np.sort(other.virtual_costs)
        mine = jsam.plan(other, jsam.JSAM(loss_weight=weight), payments=False).objective
        found = published_algorithm_1(costs, eta=weight, delta_grid=1e-4)
        worse = max(worse, mine / true_objective(found, costs, eta=weight, Q=1.0)[0] - 1)
    rows = []
    for name, text in (("as published", "as published"), ("vectorised", "vectorised over its grid, a stronger peer")):
        ratio = timings[name].wall / timings["ours"].wall
        rows.append(
            Row(
                what=f"Algorithm 1 {text}, Δ = 1e-5, N = 100",
                bar="≥ 1,000 × slower" if name == "as published" else "(none)",
                measured=f"{timings[name]} to {timings['ours']}",
                ratio=ratio,
                met=ratio >= 1000 or name == "vectorised",
                numbers=seconds(timings),
            )
        )
    rows.append(
        Row(
            what="our objective over Algorithm 1's, worst of 20 markets",
            bar="never worse",
            measured=f"1 {'+' if worse >= 0 else '−'} {abs(worse):.0e}",
            ratio=1 + worse,
            met=worse <= 1e-12,
            numbers={"largest excess": worse},
        )
    )
    return rows


def command() -> list[Row]:
    """`jsam plan` of 100 clients from the shell to the result, against an interpreter that only imports numpy."""
    jsam_command = Path(sys.executable).with_name("jsam")
    if not jsam_command.exists():
        return []
    plan = [str(jsam_command), "plan", "examples/clients.csv", "--prior", "uniform:0,1", "--loss-weight", "5"]
    runs = {"ours": plan, "numpy": [sys.executable, "-c", "import numpy"]}
    walls: dict[str, list[float]] = {name: [] for name in runs}
    cpus: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(7):
        for name, words in runs.items():
            before, start = _children(), time.perf_counter()
            done = subprocess.run(words, cwd=ROOT, capture_output=True, check=False)
            walls[name].append(time.perf_counter() - start)
            cpus[name].append(_children() - before)
            if done.returncode != 0:
                return []
    timings = {name: Timing(wall=statistics.median(walls[name]), cpu=statistics.median(cpus[name])) for name in runs}
    wall = timings["ours"].wall
    return [
        Row(
            what=f"jsam plan, start to result, N = 100 ({wall / timings['numpy'].wall:.1f} × importing numpy)",
            bar="≤ 1 s",
            measured=f"{timings['ours']}; importing numpy {readable(timings['numpy'].wall)}",
            ratio=wall,
            met=wall <= 1,
            numbers=seconds(timings),
        )
    ]


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


BENCHMARKS: dict[str, Callable[[], list[Row]]] = {
    "plan-million": plan_million,
    "payments-hundred": payments_hundred,
    "payments-uniform": payments_uniform,
    "payments-beta": payments_beta,
    "published": published,
    "command": command,
    "many-clients": many_clients,
    "capped-budget": capped_budget,
    "unequal-data": unequal_data,
}
