"""A round of clipped gradients on the CPU, against the usual ways to compute it and against a non-private step.

    python -m benchmarks.training_cpu [--quick] [--threads 2] [--repeats 7]

All run in one process on the same random batch (its content does not matter for speed), repetitions interleaved, so
that a slow moment of the machine falls on everyone. Times are medians, minima beside them. Memory is the growth of the
peak resident size during one round, each in a process of its own whose allocator keeps nothing in reserve.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from jsam.training.clipping import ClippingEngine, cross_entropy, sample_weights
from jsam.training.clipping.per_sample import vectorised
from jsam.training.models import build_model

CLIP_NORM = 1.0
CHUNKS = {"mnist": (300, 600, 1200), "cifar10": (25, 50, 100)}
BARS = {"mnist": 1.5, "cifar10": 1.6}
# Freed tensors go back to the system at once, so that memory in use is measured and not what the heap holds in reserve.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536"}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One model, and a round of equal clients for it."""

    model: str
    shape: tuple[int, int, int]
    clients: int
    samples: int
    timed_clients: int
    """Clients that are timed where they go one by one, all alike; their time is scaled up."""

    def part(self, clients: int) -> Case:
        return dataclasses.replace(self, clients=clients, timed_clients=clients)

    def data(self) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(0)
        n = self.clients * self.samples
        return torch.randn(n, *self.shape, generator=generator), torch.randint(0, 10, (n,), generator=generator)

    def weights(self) -> Tensor:
        return sample_weights([self.samples] * self.clients, [1] * self.clients, self.clients)


FULL = (
    Case(model="mnist", shape=(1, 28, 28), clients=10, samples=600, timed_clients=10),
    Case(model="cifar10", shape=(3, 32, 32), clients=10, samples=500, timed_clients=2),
)
QUICK = (
    Case(model="mnist", shape=(1, 28, 28), clients=10, samples=120, timed_clients=10),
    Case(model="cifar10", shape=(3, 32, 32), clients=10, samples=20, timed_clients=2),
)


def ours(case: Case, chunk: int | None = None) -> Callable[[], object]:
    engine = ClippingEngine(build_model(case.model, 0), clip_norm=CLIP_NORM, chunk_size=chunk or "auto")
    images, labels = case.data()
    weights = case.weights()
    return lambda: engine.clipped_sum(images, labels, weights).gradient


def clipped_mean(gradients: Tensor) -> Tensor:
    norms = torch.linalg.vector_norm(gradients, dim=1)
    return torch.clamp(CLIP_NORM / (norms + 1e-6), max=1.0) @ gradients / len(gradients)


def per_client_func(case: Case) -> Callable[[], object]:
    compute = vectorised(build_model(case.model, 0), cross_entropy)
    images, labels = case.data()

    def run() -> Tensor:
        pairs = zip(torch.split(images, case.samples), torch.split(labels, case.samples), strict=True)
        return sum((clipped_mean(compute(x, y)[0]) for x, y in pairs), torch.zeros(())) / case.clients

    return run


def per_client_opacus(case: Case) -> Callable[[], object]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus.grad_sample import GradSampleModule  # type: ignore[import-untyped]

        model = GradSampleModule(build_model(case.model, 0), loss_reduction="sum")
    images, labels = case.data()
    parameters = list(model.parameters())

    def run() -> list[Tensor]:
        totals = [torch.zeros_like(parameter) for parameter in parameters]
        for x, y in zip(torch.split(images, case.samples), torch.split(labels, case.samples), strict=True):
            torch.autograd.backward(cross_entropy(model(x), y).sum())
            found: list[Tensor] = [parameter.__dict__["grad_sample"] for parameter in parameters]
            norms = torch.stack([piece.flatten(1).norm(dim=1) for piece in found], dim=1).norm(dim=1)
            factors = (CLIP_NORM / (norms + 1e-6)).clamp(max=1.0) / (case.samples * case.clients)
            for total, piece in zip(totals, found, strict=True):
                total += torch.einsum("i,i...", factors, piece)
            model.zero_grad()
        return totals

    return run


def non_private(case: Case, chunk: int, memory_format: torch.memory_format) -> Callable[[], object]:
    model: nn.Module = build_model(case.model, 0)
    model.to(memory_format=memory_format)  # type: ignore[call-overload]
    images, labels = case.data()
    images = images.contiguous(memory_format=memory_format)
    scale = 1.0 / len(images)

    def run() -> None:
        model.zero_grad()
        for x, y in zip(torch.split(images, chunk), torch.split(labels, chunk), strict=True):
            torch.autograd.backward(cross_entropy(model(x), y).sum() * scale)

    return run


def many_small_clients(case: Case) -> Callable[[], object]:
    """The same number of examples from ten times as many clients, drawn out of many more (MNIST: ten thousand)."""
    size = case.samples // 10
    population = 10_000 if case.model == "mnist" and case.samples >= 600 else 1_000
    engine = ClippingEngine(build_model(case.model, 0), clip_norm=CLIP_NORM)
    images = torch.zeros(population * size, *case.shape).uniform_(-1.0, 1.0)
    labels = torch.arange(len(images)) % 10
    count = 10 * case.clients
    generator = torch.Generator().manual_seed(1)

    def run() -> Tensor:
        drawn = torch.randperm(population, generator=generator)[:count]
        rows = (drawn[:, None] * size + torch.arange(size)).view(-1)
        return engine.clipped_sum(
            images[rows], labels[rows], sample_weights([size] * count, [1] * count, count)
        ).gradient

    return run


def best_chunk(case: Case, memory_format: torch.memory_format) -> int:
    """The chunk at which the non-private step is quickest, by minima of a few runs."""
    part = case.part(2)
    runs = {chunk: non_private(part, chunk, memory_format) for chunk in CHUNKS[case.model]}
    return min(runs, key=lambda chunk: min(elapsed(runs[chunk]) for _ in range(3)))


def elapsed(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def interleaved(runs: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    for run in runs.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    order = random.Random(0)
    for _ in range(repeats):
        # Shuffled: who follows a run that fills the caches and the heap would otherwise always be the same.
        for name in order.sample(list(runs), len(runs)):
            times[name].append(elapsed(runs[name]))
    return times


def compare(case: Case, repeats: int) -> None:
    layouts = {"contiguous": torch.contiguous_format, "channels-last": torch.channels_last}
    runs = {"ours": ours(case)}
    for label, layout in layouts.items():
        chunk = best_chunk(case, layout)
        runs[f"non-private step, {label}, chunks of {chunk}"] = non_private(case, chunk, layout)
    note = "" if case.timed_clients == case.clients else f" ({case.timed_clients} of {case.clients} timed)"
    one_by_one = [f"Opacus, client by client{note}", f"torch.func, client by client{note}"]
    runs[one_by_one[0]] = per_client_opacus(case.part(case.timed_clients))
    runs[one_by_one[1]] = per_client_func(case.part(case.timed_clients))
    runs["ours, ten times as many clients a tenth the size"] = many_small_clients(case)
    times = interleaved(runs, repeats)
    for name in one_by_one:
        times[name] = [value * case.clients / case.timed_clients for value in times[name]]
    reference = statistics.median(times["ours"])
    print(f"\n{case.model}: {case.clients} clients x {case.samples} samples a round")
    print(f"{'time / ours':>12} {'by minima':>10} {'median s':>9} {'min s':>8}", flush=True)
    for name, values in times.items():
        median, least = statistics.median(values), min(values)
        print(f"{median / reference:12.2f} {least / min(times['ours']):10.2f} {median:9.3f} {least:8.3f}  {name}")
    plain = [name for name in times if name.startswith("non-private")]
    step = min(statistics.median(times[name]) for name in plain)
    least = min(min(times[name]) for name in plain)
    verdict = f"{reference / step:.2f} by medians, {min(times['ours']) / least:.2f} by minima"
    print(f"ours / best non-private step: {verdict} (bar: at most {BARS[case.model]})")
    print(f"{one_by_one[0]} / ours: {statistics.median(times[one_by_one[0]]) / reference:.2f} (bar: at least 3)")


def peak_growth(run: Callable[[], object]) -> int:
    """Bytes by which the peak resident size passes the present one while `run` runs (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    run()
    return status("VmHWM") - before


def status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def measure_memory(case: Case, what: str, chunk: int) -> None:
    """In a child process: prints the growth of one way to compute a round."""
    ways: dict[str, Callable[[Case], Callable[[], object]]] = {
        "ours": lambda c: ours(c, chunk),
        "non-private": lambda c: non_private(c, chunk, torch.channels_last),
        "opacus": per_client_opacus,
        "torch.func": per_client_func,
    }
    small = dataclasses.replace(case, clients=1, samples=2)
    ways[what](small)()
    print(json.dumps(peak_growth(ways[what](case))))


def report_memory(cases: Iterable[Case], threads: int) -> None:
    if not Path("/proc/self/clear_refs").exists():
        print("\nmemory: not measured (needs Linux)")
        return
    print("\npeak memory a round, beyond model and data")
    for case in cases:
        chunk = CHUNKS[case.model][1]
        rows = [("non-private", case.clients), ("ours", case.clients), ("ours", 4 * case.clients)]
        rows += [("opacus", 1), ("torch.func", 1)]
        found = {}
        for what, clients in rows:
            command = [sys.executable, "-m", "benchmarks.training_cpu", "--threads", str(threads)]
            command += ["--memory", case.model, what, str(clients), str(case.samples), str(chunk)]
            done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | ALLOCATOR)
            found[what, clients] = json.loads(done.stdout.splitlines()[-1])
        for (what, clients), size in found.items():
            ratio = size / found["non-private", case.clients]
            chunks = f", chunks of {chunk}" if what in ("ours", "non-private") else ""
            print(f"{ratio:8.2f} x  {size / 2**20:8.1f} MiB  {case.model}, {what}, {clients} clients{chunks}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small rounds, few repetitions: does it run, not how fast")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=None)
    parser.add_argument("--model", choices=[case.model for case in FULL], help="this model only")
    parser.add_argument("--memory", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    warnings.filterwarnings("ignore", message="Full backward hook")
    cases = [case for case in (QUICK if arguments.quick else FULL) if arguments.model in (None, case.model)]
    if arguments.memory:
        model, what, clients, samples, chunk = arguments.memory
        shape = next(case.shape for case in FULL if case.model == model)
        case = Case(model=model, shape=shape, clients=int(clients), samples=int(samples), timed_clients=1)
        measure_memory(case, what, int(chunk))
        return
    print(f"torch {torch.__version__}, {arguments.threads} threads, Python {platform.python_version()}")
    for case in cases:
        compare(case, arguments.repeats or (3 if arguments.quick else 7 if case.model == "mnist" else 3))
    report_memory(cases, arguments.threads)


if __name__ == "__main__":
    main()
