"""A round of clipped gradients on the CPU, against the usual ways to compute it and against a non-private step.

    python -m benchmarks.training_cpu [--quick] [--threads 2] [--repeats 7] [--json FILE]

All run in one process on the same random batch (its content does not matter for speed), repetitions interleaved, so
that a slow moment of the machine falls on everyone. Flower runs beside, and answers round by round. Times are medians,
minima beside them.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from benchmarks.flower_peer import NEEDS, FlowerError, flower_simulation, installed
from benchmarks.memory import measurable, memory_rows
from benchmarks.output import print_table, store
from benchmarks.rounds import (
    CHUNKS,
    FULL,
    LAYOUTS,
    QUICK,
    Case,
    Run,
    many_small_clients,
    non_private,
    our_whole_round,
    ours,
    per_client_func,
    per_client_opacus,
    population,
)
from benchmarks.timing import Row, readable
from jsam.privacy import noise_multiplier

PACKAGES = ("jsam", "torch", "numpy", "opacus", "flwr", "ray")
MOST_OF_NON_PRIVATE = {"mnist": 1.5, "cifar10": 1.6}
OURS, MANY = "ours", "many small clients"
OPACUS, FUNC = "Opacus, client by client", "torch.func, client by client"
Times = Mapping[str, list[float]]


def elapsed(run: Run) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def interleaved(runs: Mapping[str, Run], repeats: int) -> dict[str, list[float]]:
    for run in runs.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    order = random.Random(0)
    for _ in range(repeats):
        # Shuffled: who follows a run that fills the caches and the heap would otherwise always be the same.
        for name in order.sample(list(runs), len(runs)):
            times[name].append(elapsed(runs[name]))
    return times


def best_chunk(case: Case, memory_format: torch.memory_format) -> int:
    """The chunk at which the non-private step is quickest, by minima of a few runs."""
    runs = {chunk: non_private(case.part(2), chunk, memory_format) for chunk in CHUNKS[case.model]}
    return min(runs, key=lambda chunk: min(elapsed(runs[chunk]) for _ in range(3)))


def timed(times: Times, one: str, other: str, *, what: str, least: float = 0.0, most: float = 0.0) -> Row:
    """The row of one ÷ other by medians; the ratio of minima and all repetitions are kept with it."""
    medians = {name: statistics.median(times[name]) for name in (one, other)}
    ratio = medians[one] / medians[other]
    by_minima = min(times[one]) / min(times[other])
    bar = f"≥ {least:g}" if least else f"≤ {most:g}" if most else ""
    return Row(
        what=what,
        bar=bar,
        measured=f"{readable(medians[one])} to {readable(medians[other])}; by minima {by_minima:.2f}",
        ratio=ratio,
        met=ratio >= least and (not most or ratio <= most),
        numbers={"seconds": times[one], "seconds of the other": times[other], "ratio of minima": by_minima},
    )


def rounds_rows(case: Case, repeats: int) -> list[Row]:
    runs = {OURS: ours(case), MANY: many_small_clients(case)}
    part = case.part(case.timed_clients)
    runs |= {OPACUS: per_client_opacus(part), FUNC: per_client_func(part)}
    plain = []
    for label, layout in LAYOUTS.items():
        chunk = best_chunk(case, layout)
        plain.append(f"{label}, chunks of {chunk}")
        runs[plain[-1]] = non_private(case, chunk, layout)
    times = interleaved(runs, repeats)
    scale = case.clients / case.timed_clients
    times |= {name: [value * scale for value in times[name]] for name in (OPACUS, FUNC)}
    plain.sort(key=lambda name: statistics.median(times[name]))
    here = f"{case.model}, {case.clients} × {case.samples}"
    note = "" if case.timed_clients == case.clients else f" ({case.timed_clients} clients timed)"
    many = f"{10 * case.clients} of {population(case):,} clients × {case.samples // 10}"
    limit = MOST_OF_NON_PRIVATE[case.model]
    return [
        timed(times, OURS, plain[0], what=f"{here}: ours ÷ non-private ({plain[0]})", most=limit),
        timed(times, OURS, plain[1], what=f"{here}: ours ÷ non-private ({plain[1]})"),
        timed(times, OPACUS, OURS, what=f"{here}: {OPACUS}{note} ÷ ours", least=3),
        timed(times, FUNC, OURS, what=f"{here}: {FUNC}{note} ÷ ours"),
        timed(times, MANY, OURS, what=f"{case.model}, {many} ÷ {case.clients} × {case.samples}", most=1.3),
    ]


def flower_rows(case: Case, repeats: int, threads: int) -> tuple[list[Row], str]:
    """Whole rounds on both sides, and why there are none; Flower's first, which starts Ray, is the warm-up."""
    if not installed():
        return [], f"it needs {NEEDS}"
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            flower_simulation(case.model, case.clients, case.samples, threads) as flower,
        ):
            whole = our_whole_round(case, Path(folder))
            flower()
            times = interleaved({"Flower": flower, OURS: whole}, repeats)
    except FlowerError as error:
        return [], f"Flower failed: {error}"
    what = f"{case.model}, {case.clients} × {case.samples}: Flower simulation, Opacus clients ÷ ours, whole rounds"
    return [timed(times, "Flower", OURS, what=what, least=4)], ""


def calibration_rows() -> list[Row]:
    """How far noise multipliers are above what 60 digits give for the analytic Gaussian mechanism."""
    import mpmath  # type: ignore[import-untyped,unused-ignore]

    def log_delta(log_mu: mpmath.mpf, epsilon: float) -> mpmath.mpf:
        mu, e, root = mpmath.exp(log_mu), mpmath.mpf(epsilon), mpmath.sqrt(2)
        low, high = (e / mu - mu / 2) / root, (e / mu + mu / 2) / root
        return mpmath.log((mpmath.erfc(low) - mpmath.exp(e) * mpmath.erfc(high)) / 2)

    excesses = []
    with mpmath.workdps(60):
        for epsilon in np.geomspace(1e-4, 1e3, 57).tolist():
            found = mpmath.mpf(noise_multiplier(epsilon, 1e-5, 1))
            log_mu = mpmath.findroot(lambda x, e=epsilon: log_delta(x, e) - mpmath.log(1e-5), -mpmath.log(found))
            excesses.append(float(found * mpmath.exp(log_mu) - 1))
    worst = max(excesses)
    return [
        Row(
            what="calibrated noise above the exact value, ε from 1e-4 to 1e3, δ = 1e-5",
            bar="never low, ≤ 1e-5",
            measured=f"{min(excesses):.2g} to {worst:.2g}",
            ratio=worst / 1e-5,
            met=min(excesses) >= 0 and worst <= 1e-5,
            numbers={"lowest excess": min(excesses), "highest excess": worst},
        )
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.training_cpu", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help="small rounds, few repetitions: does it run, not how fast")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=None)
    parser.add_argument("--model", choices=[case.model for case in FULL], help="this model only")
    parser.add_argument("--json", type=Path, metavar="FILE", help="store the results with versions and machine")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.filterwarnings("ignore", message="Full backward hook")
    cases = [case for case in (QUICK if options.quick else FULL) if options.model in (None, case.model)]
    results: dict[str, list[Row]] = {}
    missing = {"memory": "it needs Linux"}
    for case in cases:
        repeats = options.repeats or (3 if options.quick else 7 if case.model == "mnist" else 3)
        _say(f"{case.model}: rounds of {case.clients} × {case.samples}")
        results[case.model] = rounds_rows(case, repeats)
        if case.model == "mnist":
            _say(f"{case.model}: the same by Flower's simulation")
            results["flower"], missing["flower"] = flower_rows(case, repeats, options.threads)
    _say("memory")
    results["memory"] = [row for case in cases for row in memory_rows(case, options.threads)] if measurable() else []
    results["calibration"] = calibration_rows()
    print_table(
        results,
        title=f"A round on {options.threads} threads, medians"
        + (" (quick: does it run, not how fast)" * options.quick),
        command="part",
        packages=PACKAGES,
        left_out=lambda name: missing[name],
        judged=not options.quick,
    )
    if options.json is not None:
        store(results, options.json, module="benchmarks.training_cpu", packages=PACKAGES, threads=options.threads)


def _say(words: str) -> None:
    print(f"… {words}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
