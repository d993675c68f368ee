"""`python -m benchmarks [--only NAME] [--json FILE]`: one table, ratios first, each with the bar it is held to."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.output import print_table, store
from benchmarks.planner import BENCHMARKS
from benchmarks.timing import Row

PACKAGES = ("numpy", "scipy", "jsam")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", action="append", choices=sorted(BENCHMARKS), metavar="NAME", help="one benchmark")
    parser.add_argument("--json", type=Path, metavar="FILE", help="store the results with versions and machine")
    parser.add_argument("--list", action="store_true", help="name the benchmarks and stop")
    options = parser.parse_args()
    if options.list:
        for name, run in BENCHMARKS.items():
            print(f"{name:18} {run.__doc__}")
        return
    results: dict[str, list[Row]] = {}
    for name in options.only or BENCHMARKS:
        print(f"… {name}", file=sys.stderr, flush=True)
        results[name] = BENCHMARKS[name]()
    print_table(
        results,
        title="Timings: median wall time, processor time in brackets",
        command="python -m benchmarks --only",
        packages=PACKAGES,
        left_out=lambda name: "the command is not installed",
    )
    if options.json is not None:
        store(results, options.json, module="benchmarks", packages=PACKAGES)


if __name__ == "__main__":
    main()
