"""Peak memory of one round: the growth of the resident size, each way in a process of its own (Linux).

python -m benchmarks.memory WAY MODEL CLIENTS SAMPLES CHUNK THREADS
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.rounds import CHUNKS, Case, Run, non_private, ours, per_client_func, per_client_opacus
from benchmarks.timing import Row

# Freed tensors go back to the system at once, so that memory in use is measured and not what the heap holds in reserve.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536"}
_WAYS: dict[str, Callable[[Case, int], Run]] = {
    "ours": ours,
    "non-private": lambda case, chunk: non_private(case, chunk, torch.channels_last),
    "opacus": lambda case, chunk: per_client_opacus(case),
    "torch.func": lambda case, chunk: per_client_func(case),
}


def measurable() -> bool:
    return Path("/proc/self/clear_refs").exists()


def memory_rows(case: Case, threads: int) -> list[Row]:
    """Ours against the non-private step at the same chunk, against itself with four times the clients, and peers."""
    chunk = CHUNKS[case.model][1]

    def measured(way: str, clients: int) -> int:
        command = [sys.executable, "-m", "benchmarks.memory", way, case.model]
        command += [str(number) for number in (clients, case.samples, chunk, threads)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | ALLOCATOR)
        return int(json.loads(done.stdout.splitlines()[-1]))

    plain, here = measured("non-private", case.clients), measured("ours", case.clients)
    more = measured("ours", 4 * case.clients)
    peers = {way: measured(way, 1) for way in ("opacus", "torch.func")}
    return [
        _row(f"{case.model}: memory of a round ÷ non-private, chunks of {chunk}", "≤ 1.5", 1.5, here, plain),
        _row(f"{case.model}: memory with {4 * case.clients} clients ÷ {case.clients}", "flat: ≤ 1.1", 1.1, more, here),
        *(_row(f"{case.model}: memory of {way}, one client ÷ ours", "", 0, size, here) for way, size in peers.items()),
    ]


def _row(what: str, bar: str, most: float, size: int, other: int) -> Row:
    return Row(
        what=what,
        bar=bar,
        measured=f"{size / 2**20:.1f} to {other / 2**20:.1f} MiB",
        ratio=size / other,
        met=not bar or size <= most * other,
        numbers={"bytes": size, "bytes of the other": other},
    )


def _peak_growth(run: Run) -> int:
    """Bytes by which the peak resident size passes the present one while `run` runs."""
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    run()
    return _status("VmHWM") - before


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def main() -> None:
    way, model, *numbers = sys.argv[1:]
    clients, samples, chunk, threads = (int(number) for number in numbers)
    torch.set_num_threads(threads)
    # A first round of two examples pays for what is loaded once.
    _WAYS[way](Case(model=model, clients=1, samples=2, timed_clients=1), chunk)()
    case = Case(model=model, clients=clients, samples=samples, timed_clients=1)
    print(json.dumps(_peak_growth(_WAYS[way](case, chunk))))


if __name__ == "__main__":
    main()
