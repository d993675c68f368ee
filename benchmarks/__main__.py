"""`python -m benchmarks [--only NAME] [--json FILE]`: one table, ratios first, each with the bar it is held to."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import scipy
from rich.console import Console
from rich.table import Table

import jsam
from benchmarks.planner import BENCHMARKS
from benchmarks.timing import Row


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
    _print(results)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(_stored(results), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _print(results: dict[str, list[Row]]) -> None:
    table = Table(
        title="Timings: median wall time, processor time in brackets",
        caption="The ratio is to the peer, or to the bar where that is an absolute number.",
    )
    for heading in ("ratio", "what", "bar", "bar is", "measured", "python -m benchmarks --only"):
        table.add_column(heading, justify="right" if heading == "ratio" else "left", overflow="fold")
    for name, rows in results.items():
        if not rows:
            table.add_row("", f"{name}: left out, the command is not installed", "", "", "", name)
        for row in rows:
            mark = "met" if row.met else "MISSED"
            table.add_row(f"{row.ratio:,.3g}", row.what, row.bar, mark, row.measured, name)
        table.add_section()
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table)
    machine = _machine()
    console.print(f"{machine['cpu']}, {machine['cores']} cores, load {machine['load']}; {machine['versions']}")


def _machine() -> dict[str, Any]:
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        cpu = models[0] if models else cpu
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "load": [round(x, 2) for x in os.getloadavg()],
        "versions": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "scipy": scipy.__version__,
            "jsam": jsam.__version__,
        },
    }


def _stored(results: dict[str, list[Row]]) -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python", "-m", "benchmarks", *sys.argv[1:]]),
        **_machine(),
        "results": {name: [asdict(row) for row in rows] for name, rows in results.items()},
    }


if __name__ == "__main__":
    main()
