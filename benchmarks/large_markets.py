"""Timings of very many clients, of caps on ε with a budget, and of unequal data; processor time, ratios first."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import scipy.stats
from numpy.typing import NDArray

import jsam
from benchmarks.timing import Row, Timing, interleaved, once, seconds
from jsam.mechanism.budget.budget_cache import BudgetCache
from jsam.mechanism.budget.loss_weight import loss_weight_for_budget
from jsam.mechanism.families import EvenJSAM
from jsam.mechanism.families.base import RangeMechanism
from jsam.mechanism.priors import Prior

MILLION = 1_000_000
UNIFORM, BETA = scipy.stats.uniform(0, 1), scipy.stats.beta(2, 5)
ETAS = (5.0, 500.0, 50_000.0)
KINDS: dict[str, Callable[..., RangeMechanism]] = {"jsam": jsam.JSAM, "jsam-even": EvenJSAM}


def _drawn(prior: Prior, n: int) -> NDArray[np.float64]:
    return np.asarray(prior.rvs(size=n, random_state=np.random.default_rng(0)))


def _row(what: str, bar: float, timing: Timing, peer: Timing | None = None, **numbers: float) -> Row:
    """One line: processor time against a peer's, or against a bar in seconds."""
    ratio = timing.cpu / (bar if peer is None else peer.cpu)
    timings = {"ours": timing} if peer is None else {"ours": timing, "argsort": peer}
    return Row(
        what=what,
        bar=f"≤ {bar:g} s" if peer is None else f"≤ {bar:g} × numpy's argsort",
        measured=str(timing) if peer is None else f"{timing} to {peer}",
        ratio=ratio,
        met=ratio <= (1 if peer is None else bar),
        numbers={**seconds(timings), **numbers},
    )


def many_clients() -> list[Row]:
    """A million clients without and with payments against an argsort, their memory, and ten million."""
    c, rows = _drawn(UNIFORM, MILLION), []
    for name, kind in KINDS.items():
        for eta in ETAS:
            mechanism = kind(loss_weight=eta)

            def plan(payments: bool, mechanism: RangeMechanism = mechanism) -> jsam.Contract:
                return jsam.plan(jsam.Market(sensitivities=c, prior=UNIFORM), mechanism, payments=payments)

            timings = interleaved(
                {"plan": lambda: plan(False), "paid": lambda: plan(True), "argsort": lambda: np.argsort(c)}, 5
            )
            kept = plan(False).num_selected
            what = f"{name}, N = 1,000,000, η = {eta:g}, {kept:,} kept"
            rows.append(_row(f"{what}: plan", 10, timings["plan"], timings["argsort"]))
            rows.append(_row(f"{what}: plan and payments", 50, timings["paid"], timings["argsort"]))
    return rows + _peaks() + _ten_million()


def _peaks() -> list[Row]:
    rows = []
    for name, kind in KINDS.items():
        code = (
            "import resource, numpy, scipy.stats, jsam; from jsam.mechanism.families import JSAM, EvenJSAM;"
            f"c = numpy.random.default_rng(0).uniform(0, 1, {MILLION});"
            "market = jsam.Market(sensitivities=c, prior=scipy.stats.uniform(0, 1));"
            f"jsam.plan(market, {kind.__name__}(loss_weight=500));"
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        peak = int(done.stdout) * 1024 / 1e9
        rows.append(
            Row(
                what=f"{name}: memory of a million with payments, the whole process at its peak",
                bar="≤ 1.5 GB",
                measured=f"{peak:.2f} GB",
                ratio=peak / 1.5,
                met=peak <= 1.5,
                numbers={"peak GB": peak},
            )
        )
    return rows


def _ten_million() -> list[Row]:
    c, rows = _drawn(UNIFORM, 10 * MILLION), []
    for name, kind in KINDS.items():
        mechanism = kind(loss_weight=500.0)
        timing = once(lambda m=mechanism: jsam.plan(jsam.Market(sensitivities=c, prior=UNIFORM), m))  # type: ignore[misc]
        rows.append(_row(f"{name}, N = 10,000,000, η = 500: plan and payments", 300, timing))
    return rows


def capped_budget() -> list[Row]:
    """A budget with a cap on ε under a beta prior, found anew; the audit of its contract; and 10,000 clients."""
    rows = []
    market = jsam.Market(sensitivities=_drawn(BETA, 100), prior=BETA)
    many = jsam.Market(sensitivities=_drawn(BETA, 10_000), prior=BETA)
    assert len(many.virtual_costs) == 10_000
    for name, kind in KINDS.items():
        mechanism = kind(loss_weight=1.0, max_epsilon=5.0)
        bought = loss_weight_for_budget(mechanism, 10.0, prior=BETA, num_clients=100, cache=BudgetCache(None))
        settled = mechanism.with_loss_weight(bought.loss_weight)

        def whole(mechanism: RangeMechanism = mechanism, settled: RangeMechanism = settled) -> None:
            loss_weight_for_budget(mechanism, 10.0, prior=BETA, num_clients=100, cache=BudgetCache(None))
            jsam.plan(market, settled)

        rows.append(_row(f"{name}: budget 10, ε ≤ 5, beta(2, 5), N = 100, plan and payments", 5, once(whole)))
        audit = once(lambda m=settled: jsam.audit(market, m))  # type: ignore[misc]
        rows.append(_row(f"{name}: audit of it", 20, audit))
        free = once(lambda k=kind: jsam.plan(many, k(loss_weight=5.0)))  # type: ignore[misc]
        capped = once(lambda k=kind: jsam.plan(many, k(loss_weight=5.0, max_epsilon=5.0)))  # type: ignore[misc]
        rows.append(
            Row(
                what=f"{name}: ε ≤ 5 against no cap, N = 10,000, beta(2, 5), plan and payments",
                bar="near 1",
                measured=f"{capped} to {free}",
                ratio=capped.cpu / free.cpu,
                met=capped.cpu <= 5 * free.cpu,
                numbers=seconds({"capped": capped, "free": free}),
            )
        )
    return rows


def unequal_data() -> list[Row]:
    """Plan and payments of clients with unequal data, and what rounding their sizes loses at most."""
    cases: list[tuple[str, Callable[..., RangeMechanism], dict[str, float]]] = [
        ("jsam-even", EvenJSAM, {}),
        ("jsam-even, ε ≤ 5", EvenJSAM, {"max_epsilon": 5.0}),
        ("jsam-even, p ≤ 0.2", EvenJSAM, {"max_selection_prob": 0.2}),
        ("jsam", jsam.JSAM, {}),
        ("jsam, p ≤ 0.2", jsam.JSAM, {"max_selection_prob": 0.2}),
    ]
    rows = []
    for n, bar in ((100, 2.0), (10_000, 60.0)):
        held = np.random.default_rng(1).lognormal(0, 1, n)
        samples = np.maximum(1, np.rint(600 * n * held / held.sum())).astype(np.int64)
        for prior_name, prior in (("uniform", UNIFORM), ("beta(2, 5)", BETA)):
            market = jsam.Market(sensitivities=_drawn(prior, n), prior=prior, samples=samples.tolist())
            assert len(market.virtual_costs) == n
            for name, kind, caps in cases if n == 100 else [case for case in cases if "p ≤" not in case[0]]:
                mechanism = kind(loss_weight=20.0, **caps)
                timing = once(lambda m=mechanism, s=market: jsam.plan(s, m))  # type: ignore[misc]
                contract = jsam.plan(market, mechanism, payments=False)
                lost = (contract.rounding_bound or 0.0) / contract.objective
                what = f"{name}, unequal data, N = {n:,} {prior_name}, {contract.num_selected:,} kept"
                rows.append(_row(f"{what}: plan and payments", bar, timing, None, lost=lost))
                if n > 100:
                    rows.append(
                        Row(
                            what=f"{what}: lost by rounding at most, of the objective",
                            bar="≤ 0.1%",
                            measured=f"{lost:.4%}",
                            ratio=lost / 1e-3,
                            met=lost <= 1e-3,
                            numbers={"lost": lost},
                        )
                    )
    return rows
