"""The table that a benchmark prints last, and the file in which it stores all numbers."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.timing import Row
from benchmarks.versions import version_of

Results = Mapping[str, Sequence[Row]]


def print_table(
    results: Results,
    *,
    title: str,
    command: str,
    packages: Sequence[str],
    left_out: Callable[[str], str],
    judged: bool = True,
) -> None:
    """Ratios first, each with the bar it is held to; `left_out` says why a benchmark has no rows."""
    table = Table(title=title, caption="The ratio is to the peer, or to the bar where that is an absolute number.")
    for heading in ("ratio", "what", "bar", "bar is", "measured", command):
        table.add_column(heading, justify="right" if heading == "ratio" else "left", overflow="fold")
    for name, rows in results.items():
        if not rows:
            table.add_row("", f"{name}: left out, {left_out(name)}", "", "", "", name)
        for row in rows:
            mark = "" if not (row.bar and judged) else "met" if row.met else "MISSED"
            table.add_row(f"{row.ratio:,.3g}", row.what, row.bar, mark, row.measured, name)
        table.add_section()
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table)
    found = machine(packages)
    console.print(f"{found['cpu']}, {found['cores']} cores, load {found['load']}; {found['versions']}")


def store(results: Results, path: Path, *, module: str, packages: Sequence[str], **more: Any) -> None:
    """The rows, with everything that `store_content` puts beside them."""
    rows = {name: [asdict(row) for row in rows] for name, rows in results.items()}
    store_content({**more, "results": rows}, path, module=module, packages=packages)


def store_content(
    content: Mapping[str, Any], path: Path, *, module: str, packages: Sequence[str] = ("numpy", "scipy", "jsam")
) -> None:
    """Date, command, machine and versions with the numbers, so that they can be compared later."""
    whole = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python", "-m", module, *sys.argv[1:]]),
        **machine(packages),
        **content,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(whole, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def machine(packages: Sequence[str]) -> dict[str, Any]:
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        cpu = models[0] if models else cpu
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "load": [round(x, 2) for x in os.getloadavg()],
        "versions": {"python": platform.python_version(), **{name: version_of(name) for name in packages}},
    }
