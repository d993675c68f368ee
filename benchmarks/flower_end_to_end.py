"""How long `jsam deploy-local` takes for three SuperNodes and two rounds over TLS, from the command to the prompt.

`python -m benchmarks.flower_end_to_end` writes results/benchmarks/flower-end-to-end.json. The bar is 90 s.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.output import machine
from jsam.flower.launch.processes import started_with

RESULT = Path("results/benchmarks/flower-end-to-end.json")
BAR = 90.0
OPTIONS = ("--clients", "3", "--rounds", "2", "--tls")


def measure(folder: Path) -> dict[str, Any]:
    deployment = folder / "deployment"
    command = [sys.executable, "-m", "jsam.cli", "deploy-local", *OPTIONS, "--output", str(deployment)]
    began = time.perf_counter()
    answer = subprocess.run([*command, "--format", "json"], capture_output=True, text=True, check=True)
    seconds = time.perf_counter() - began
    result = json.loads(answer.stdout)
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["jsam deploy-local", *OPTIONS]),
        "seconds": round(seconds, 1),
        "bar_seconds": BAR,
        "met": seconds <= BAR,
        "status": result["status"],
        "nobody_overspent": result["kept"],
        "processes_left": len(started_with("FLWR_HOME", str(deployment / "flower"))),
        **machine(("jsam", "flwr", "torch")),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="jsam-bench-") as folder:
        found = measure(Path(folder))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
