"""`python -m benchmarks`: every timing bar with its peer, ratios first."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.planner import BENCHMARKS
from benchmarks.rows import Row


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", metavar="NAME", action="append", choices=sorted(BENCHMARKS), help="one of the rows")
    parser.add_argument("--json", metavar="FILE", type=Path, help="also store the figures, with date and versions")
    options = parser.parse_args()
    console = Console()
    rows: list[Row] = []
    for name in options.only or BENCHMARKS:
        console.print(f"timing {name} …", style="dim")
        rows.extend(BENCHMARKS[name]())
    table = Table(title="Planner: measured against peers in this run", title_justify="left")
    for heading in ("what", "bar", "measured", "ours", "peer", "met"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(row.what, row.bar, row.measured, row.ours, row.peer, "yes" if row.met else "NO")
    console.print(table)
    if options.json is not None:
        record = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": " ".join(["python -m benchmarks", *sys.argv[1:]]),
            "python": platform.python_version(),
            "versions": {name: version(name) for name in ("numpy", "scipy", "jsam")},
            "machine": _processor(),
            "rows": [asdict(row) for row in rows],
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(record, indent=1) + "\n")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        return f"{len(names)} × {names[0]}"
    except (OSError, IndexError):
        return platform.processor()


if __name__ == "__main__":
    main()
