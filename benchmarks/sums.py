"""What this tree's sums cost: a round of clipped gradients here against the same round at another commit.

    python -m benchmarks.sums [--against COMMIT] [--device cuda] [--repeats 15] [--quick] [--json FILE]

Each tree runs in a process of its own, and the two take turns round by round, so that a busy machine disturbs both
alike. Times are processor time on the CPU, and between CUDA events on a card. Ratios are of medians; that of the
quickest rounds stands beside. The other commit is the last one with fp32 sums unless it is named.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.output import print_table, store
from benchmarks.timing import Row, readable

PACKAGES = ("jsam", "torch", "numpy")
BEFORE = "763f8bc"
MOST = 1.10
_ROOT = Path(__file__).resolve().parent.parent


def serve(model: str, samples: int, device: str, precision: str) -> None:
    """The process of one tree: a line in, a round made, its seconds out. It keeps to names that both trees have."""
    import torch

    from benchmarks.rounds import CLIP_NORM, Case
    from jsam.training.clipping import ClippingEngine

    torch.set_num_threads(1)
    # Once a tensor of this size has been freed, the heap keeps what a chunk needs, as it does in training.
    torch.zeros(7 << 20)
    case = replace(Case(model=model, clients=10, samples=samples, timed_clients=10), device=device)
    engine = ClippingEngine(case.build(), clip_norm=CLIP_NORM, precision=precision)  # type: ignore[arg-type]
    images, labels = case.data()
    weights = case.weights()

    def run() -> object:
        return engine.clipped_sum(images, labels, weights).gradient

    if device == "cuda":
        from benchmarks.gpu import as_graph, milliseconds

        graph = as_graph(run)
        timed: Callable[[], float] = lambda: milliseconds(graph, repeats=20) / 1e3  # noqa: E731
    else:

        def timed() -> float:
            start = time.process_time()
            run()
            return time.process_time() - start

    for _ in range(2):
        timed()
    print("ready", flush=True)
    for _ in sys.stdin:
        print(timed(), flush=True)


@contextlib.contextmanager
def tree_at(commit: str) -> Iterator[Path]:
    """The source at a commit, or in a folder that was made of one, in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        if Path(commit).is_dir():
            shutil.copytree(commit, folder, dirs_exist_ok=True)
        else:
            archive = subprocess.run(
                ["git", "archive", commit, "src", "benchmarks"], cwd=_ROOT, check=True, capture_output=True
            ).stdout
            subprocess.run(["tar", "x", "-C", folder], input=archive, check=True)
        # The very same measuring code in both.
        (Path(folder) / "benchmarks" / "sums.py").write_text(Path(__file__).read_text(encoding="utf-8"), "utf-8")
        yield Path(folder)


class Rounds:
    """A process that makes a round when asked."""

    def __init__(self, tree: Path, model: str, samples: int, device: str, precision: str) -> None:
        code = f"from benchmarks.sums import serve; serve({model!r}, {samples}, {device!r}, {precision!r})"
        environment = {**os.environ, "PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree}", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=tree,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._line()

    def seconds(self) -> float:
        assert self._process.stdin is not None
        print(file=self._process.stdin, flush=True)
        return float(self._line())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            raise SystemExit(f"a process that measures ended with status {self._process.wait()}; its words are above")
        return line


def compare(before: Path, model: str, samples: int, device: str, precision: str, repeats: int) -> Row:
    sides = {"after": Rounds(_ROOT, model, samples, device, precision)}
    sides["before"] = Rounds(before, model, samples, device, precision)
    times: dict[str, list[float]] = {name: [] for name in sides}
    order = random.Random(0)
    for _ in range(repeats):
        for name in order.sample(list(sides), 2):
            times[name].append(sides[name].seconds())
    for side in sides.values():
        side.close()
    medians = {name: statistics.median(found) for name, found in times.items()}
    ratio = medians["after"] / medians["before"]
    quickest = min(times["after"]) / min(times["before"])
    return Row(
        what=f"{model}, 10 × {samples}, {device} {precision}: this tree ÷ before",
        bar=f"≤ {MOST:g}",
        measured=f"{readable(medians['after'])} to {readable(medians['before'])}; quickest {quickest:.3f}",
        ratio=ratio,
        met=ratio <= MOST,
        numbers={"seconds": times["after"], "seconds before": times["before"], "ratio of the quickest": quickest},
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sums", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--against", default=BEFORE, metavar="COMMIT", help="the tree to compare with, or its folder")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--model", choices=["mnist", "cifar10"], help="this model only")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="small rounds: does it run, not how fast")
    parser.add_argument("--json", type=Path, metavar="FILE", help="store the results with versions and machine")
    options = parser.parse_args()
    # On a card a whole round; on the CPU work goes chunk by chunk, so that a part of a round shows the same ratio.
    samples = {"mnist": 600, "cifar10": 500 if options.device == "cuda" else 20}
    if options.quick:
        samples = {"mnist": 60, "cifar10": 4}
    precisions = ("fp32", "tf32", "bf16") if options.device == "cuda" else ("fp32",)
    results: dict[str, list[Row]] = {}
    with tree_at(options.against) as before:
        for model in [options.model] if options.model else samples:
            results[model] = [
                compare(before, model, samples[model], options.device, precision, options.repeats)
                for precision in precisions
            ]
    print_table(
        results,
        title=f"Rounds of clipped gradients against commit {options.against}, one thread, medians",
        command="part",
        packages=PACKAGES,
        left_out=lambda name: "it was not asked for",
        judged=not options.quick,
    )
    if options.json is not None:
        store(results, options.json, module="benchmarks.sums", packages=PACKAGES)


if __name__ == "__main__":
    main()
