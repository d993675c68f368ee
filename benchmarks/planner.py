"""The planner's timing bars."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy.stats

import jsam
from benchmarks.rows import Row, seconds, timed
from jsam.mechanism.market import virtual_cost_of
from tests.oracles import published_algorithm_1, trapezoid_payments_on_grid, true_objective

UNIFORM = scipy.stats.uniform(0, 1)
MILLION = np.random.default_rng(0).random(1_000_000)
ROOT = Path(__file__).resolve().parent.parent


def _market(num_clients: int, prior: object = UNIFORM, seed: int = 1) -> jsam.Market:
    c = prior.rvs(size=num_clients, random_state=np.random.default_rng(seed))  # type: ignore[attr-defined]
    return jsam.Market(sensitivities=c, prior=prior)  # type: ignore[arg-type]


def plan_a_million() -> list[Row]:
    """Market, virtual costs, allocation, contract, against one argsort of the same array."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def ours() -> object:
        market = jsam.Market(sensitivities=MILLION, prior=UNIFORM)
        return jsam.plan(market, jsam.JSAM(loss_weight=1000.0), payments=False)

    mine, peer = timed(ours, lambda: np.argsort(MILLION))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return [
        Row(
            what="plan without payments, N = 1,000,000",
            bar="≤ 10 × numpy's argsort",
            measured=f"{mine / peer:.1f} ×",
            met=mine <= 10 * peer,
            ours=seconds(mine),
            peer=seconds(peer),
        ),
        Row(
            what="  its memory, above the interpreter and the reports",
            bar="≤ 1 GB",
            measured=f"{grown:.0f} MB",
            met=grown <= 1000,
            ours=f"{grown:.0f} MB",
        ),
    ]


def payments_of_a_hundred() -> list[Row]:
    """All payments at once against re-solving on a grid of each client's own report."""
    market, mechanism = _market(100), jsam.JSAM(loss_weight=5.0)
    mine, without, sort = timed(
        lambda: jsam.plan(market, mechanism),
        lambda: jsam.plan(market, mechanism, payments=False),
        lambda: np.argsort(MILLION),
        repeat=15,
    )
    cost = virtual_cost_of(UNIFORM)
    (grid,) = timed(
        lambda: trapezoid_payments_on_grid(market.sensitivities, cost, 1.0, eta=5.0, Q=1.0, points=2000), repeat=3
    )
    spent = mine - without
    return [
        Row(
            what="payments, N = 100",
            bar="≤ one argsort of 1,000,000",
            measured=f"{spent / sort:.3f} ×",
            met=spent <= sort,
            ours=seconds(spent),
            peer=seconds(sort),
        ),
        Row(
            what="payments, N = 100, against a 2,000-point grid",
            bar="≥ 300 × faster",
            measured=f"{grid / spent:,.0f} ×",
            met=grid >= 300 * spent,
            ours=seconds(spent),
            peer=seconds(grid),
        ),
    ]


def many_payments() -> list[Row]:
    """Payments of large markets, from few clients kept to (nearly) all."""
    rows = []
    for name, num_clients, prior, allowed, weights in (
        ("uniform", 100_000, UNIFORM, 3.0, (5.0, 50.0, 5000.0)),
        ("beta(2,5)", 10_000, scipy.stats.beta(2, 5), 20.0, (5.0, 50.0, 500.0, 50_000.0)),
    ):
        market = _market(num_clients, prior)
        for eta in weights:
            mechanism = jsam.JSAM(loss_weight=eta)
            kept = jsam.plan(market, mechanism, payments=False).num_selected
            (mine,) = timed(lambda m=mechanism, k=market: jsam.plan(k, m), repeat=1)  # type: ignore[misc]
            rows.append(
                Row(
                    what=f"payments, N = {num_clients:,}, {name}, {kept:,} kept",
                    bar=f"≤ {allowed:g} s",
                    measured=seconds(mine),
                    met=mine <= allowed,
                    ours=seconds(mine),
                )
            )
    return rows


def published_algorithm() -> list[Row]:
    """Algorithm 1 of the paper with Δ = 1e-5, as a literal loop and vectorised over its grid."""
    market, mechanism = _market(100), jsam.JSAM(loss_weight=5.0)
    v = np.sort(market.virtual_costs)
    (mine,) = timed(lambda: jsam.plan(market, mechanism, payments=False), repeat=51)
    ours = jsam.plan(market, mechanism, payments=False).objective
    rows = []
    for name, vectorised, bar in (("as published", False, 1000), ("vectorised for it", True, None)):
        (peer,) = timed(
            lambda how=vectorised: published_algorithm_1(v, eta=5.0, delta_grid=1e-5, vectorised=how), repeat=1
        )  # type: ignore[misc]
        theirs, _ = true_objective(
            published_algorithm_1(v, eta=5.0, delta_grid=1e-5, vectorised=True), v, eta=5.0, Q=1.0
        )
        rows.append(
            Row(
                what=f"Algorithm 1 {name}, Δ = 1e-5, N = 100",
                bar="ours never worse" + (f"; ≥ {bar:,} × faster" if bar else ""),
                measured=f"{peer / mine:,.0f} ×; objective {ours / theirs - 1:+.1e}",
                met=ours <= theirs * (1 + 1e-12) and (bar is None or peer >= bar * mine),
                ours=seconds(mine),
                peer=seconds(peer),
            )
        )
    return rows


def command_line() -> list[Row]:
    """`jsam plan` from start to result, in a process of its own."""
    command = [
        sys.executable, "-m", "jsam.cli", "plan", str(ROOT / "examples" / "clients.csv"),
        "--prior", "uniform:0,1", "--loss-weight", "5", "--format", "json",
    ]  # fmt: skip
    (mine,) = timed(lambda: subprocess.run(command, check=True, capture_output=True))
    return [
        Row(
            what="jsam plan, start to result, N = 100",
            bar="≤ 1 s",
            measured=seconds(mine),
            met=mine <= 1,
            ours=seconds(mine),
        )
    ]


BENCHMARKS: dict[str, Callable[[], list[Row]]] = {
    "plan-a-million": plan_a_million,
    "payments-of-a-hundred": payments_of_a_hundred,
    "many-payments": many_payments,
    "published-algorithm": published_algorithm,
    "command-line": command_line,
}
