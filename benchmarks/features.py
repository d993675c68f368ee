"""How long the scattering features of a data set take: `python -m benchmarks.features [--records N] [--json FILE]`."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.output import print_table, store
from benchmarks.timing import Row, readable

PACKAGES = ("numpy", "torch", "jsam")
ALL = 60_000
MOST = {"cpu": 60.0, "cuda": 2.0}
"""Bars in seconds for 60,000 records of 28x28: on two cores, and on one H200."""


def measure(records: int, device: str) -> Row:
    """The time for so many made-up pictures of MNIST's size, as it would be for 60,000."""
    from jsam.training.features import ScatteringFeatures

    features = ScatteringFeatures()
    pictures = np.random.default_rng(0).normal(size=(records, 1, 28, 28)).astype(np.float32)
    # Libraries prepare themselves at the first block.
    features.compute(pictures[:64], device=device)
    wall, processor = time.perf_counter(), time.process_time()
    features.compute(pictures, device=device)
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    whole = wall * ALL / records
    return Row(
        what=f"scattering features of {records:,} pictures of 28x28 on {device}, as for {ALL:,}",
        bar=f"≤ {MOST[device]:g} s",
        measured=f"{readable(wall)} ({readable(processor)} cpu), for {ALL:,} {readable(whole)}",
        ratio=whole / MOST[device],
        met=whole <= MOST[device],
        numbers={"records": records, "wall": wall, "cpu": processor},
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.features", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=ALL, help="fewer, and the time is scaled up")
    parser.add_argument("--device", choices=sorted(MOST), default="cpu")
    parser.add_argument("--json", type=Path, metavar="FILE", help="store the results with versions and machine")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("this machine has no CUDA device")
    results = {"scattering": [measure(options.records, options.device)]}
    print_table(
        results,
        title="Features that look at nobody's data",
        command="part",
        packages=PACKAGES,
        left_out=lambda name: "it was not asked for",
    )
    if options.json is not None:
        store(results, options.json, module="benchmarks.features", packages=PACKAGES)


if __name__ == "__main__":
    main()
