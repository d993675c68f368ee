"""A round of clipped gradients on one GPU: checked against the plain reference, then timed against the usual ways.

    python -m benchmarks.gpu [--quick] [--skip-steps] [--end-to-end mnist cifar10] [--output results/benchmarks]

Times are medians of CUDA-event timings. Ours and the non-private step are CUDA graphs (the latter also eager, in both
layouts; its best counts); Opacus and torch.func go client by client, as federated code does. With --end-to-end whole
runs of 1000 rounds are trained on the real data, evaluation, ledger and checkpoints included, and ten at once.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import functools
import json
import platform
import statistics
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.rounds import CLIP_NORM, FULL, SHAPES, Case, per_client_func, per_client_opacus
from benchmarks.versions import version_of
from benchmarks.whole_runs import end_to_end, side_by_side, whole_run
from jsam.training.clipping import ClippingEngine, cross_entropy
from jsam.training.clipping.precision import PRECISIONS, Precision, arithmetic
from tests.oracles.clipping import ClientBatch, reference_clipped_sum

DEVICE = torch.device("cuda")
AGREEMENT = {"fp32": 1e-4, "tf32": 1e-2, "bf16": 1e-2}


CASES = tuple(replace(case, timed_clients=case.clients, device="cuda") for case in FULL)


def milliseconds(run: Callable[[], object], repeats: int = 20, warm: int = 3) -> float:
    for _ in range(warm):
        run()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return float(statistics.median(times))


def as_graph(run: Callable[[], object]) -> Callable[[], None]:
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = run()

    def replay(_: object = kept) -> None:
        graph.replay()

    return replay


def ours(case: Case, precision: Precision) -> Callable[[], object]:
    engine = ClippingEngine(case.build(), clip_norm=CLIP_NORM, precision=precision)
    images, labels = case.data()
    weights = case.weights()
    return as_graph(lambda: engine.clipped_sum(images, labels, weights).gradient)


@contextlib.contextmanager
def quickest(precision: Precision) -> Iterator[None]:
    """For peers the quickest kernels count, whether or not they repeat bit for bit."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32
    cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32 = True, precision != "fp32", precision != "fp32"
    try:
        yield
    finally:
        cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32 = before


def non_private(case: Case, precision: Precision) -> dict[str, float]:
    found = {}
    for layout in (torch.contiguous_format, torch.channels_last):
        model = case.build().to(memory_format=layout)  # type: ignore[call-overload]
        images, labels = case.data()
        images = images.contiguous(memory_format=layout)
        parameters = list(model.parameters())

        def step(
            model: nn.Module = model, x: Tensor = images, y: Tensor = labels, p: list[Tensor] = parameters
        ) -> object:
            with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16", cache_enabled=False):
                loss = functional.cross_entropy(model(x), y)
            return torch.autograd.grad(loss, p)

        name = "channels-last" if layout == torch.channels_last else "contiguous"
        with quickest(precision):
            found[f"eager, {name}"] = milliseconds(step, 10)
            found[f"graph, {name}"] = milliseconds(as_graph(step), 10)
    return found


def opacus_ghost(case: Case) -> Callable[[], object]:
    from opacus.grad_sample import GradSampleModuleFastGradientClipping  # type: ignore[import-untyped]

    model = GradSampleModuleFastGradientClipping(
        case.build(), max_grad_norm=CLIP_NORM, use_ghost_clipping=True, loss_reduction="sum"
    )
    images, labels = case.data()

    def run() -> None:
        for x, y in zip(torch.split(images, case.samples), torch.split(labels, case.samples), strict=True):
            losses = cross_entropy(model(x), y)
            torch.autograd.backward(losses.sum(), retain_graph=True)
            for parameter in model.parameters():
                parameter.grad = None
            factors = model.get_clipping_coef()
            model.disable_hooks()
            torch.autograd.backward((factors * losses).sum())
            model.enable_hooks()
            for parameter in model.parameters():
                parameter.grad = None

    return run


@functools.cache
def reference(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """A small round, and its clipped sum by the plain path: client by client, example by example, in fp32."""
    images, labels = case.data()
    # A pattern for each class, so that examples agree on a direction as real ones do.
    patterns = torch.randn(10, *SHAPES[case.model], generator=torch.Generator().manual_seed(1)).to(DEVICE)
    images = 0.5 * images + patterns[labels]
    pieces = zip(torch.split(images, case.samples), torch.split(labels, case.samples), strict=True)
    clients = [ClientBatch(inputs=x, targets=y) for x, y in pieces]
    with arithmetic("fp32", DEVICE):
        total = reference_clipped_sum(case.build(), clients, clip_norm=CLIP_NORM, per_round=case.clients)
    return images, labels, total


def check(case: Case, precision: Precision) -> dict[str, float]:
    """Relative distance of a round to the plain path, and by how much a clipped norm passes C."""
    case = replace(case, samples=60)
    images, labels, expected = reference(case)
    engine = ClippingEngine(case.build(), clip_norm=CLIP_NORM, precision=precision)
    found = engine.clipped_sum(images, labels, case.weights())
    tight = ClippingEngine(case.build(), clip_norm=float(found.norms.min()) / 2, precision=precision)
    excess = -1.0
    for i in range(0, 200, 2):
        # A pair, since one alone is no batch; the second weighs nothing.
        only_first = torch.tensor([1.0, 0.0], device=DEVICE)
        alone = tight.clipped_sum(images[i : i + 2], labels[i : i + 2], only_first).gradient
        excess = max(excess, float(alone.double().norm()) / tight.clip_norm - 1.0)
    return {"gradient": float((found.gradient - expected).norm() / expected.norm()), "excess over C": excess}


def profile(case: Case, precision: Precision) -> list[tuple[float, int, str]]:
    """Kernels of one round of ours by the time they take: milliseconds, launches, name."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as watch

    engine = ClippingEngine(case.build(), clip_norm=CLIP_NORM, precision=precision)
    images, labels = case.data()
    weights = case.weights()
    for _ in range(2):
        engine.clipped_sum(images, labels, weights)
    with watch(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(3):
            engine.clipped_sum(images, labels, weights)
        torch.cuda.synchronize()
    rows = [(e.self_device_time_total / 3000, e.count // 3, e.key[:90]) for e in found.key_averages()]
    return sorted(rows, reverse=True)[:16]


def measure(case: Case, quick: bool) -> dict[str, Any]:
    rows: dict[str, Any] = {"checks": {}, "ours": {}, "non-private": {}, "peers": {}, "profile": {}}
    for precision in PRECISIONS:
        rows["checks"][precision] = attempt(check, case, precision)
        rows["ours"][precision] = attempt(timed_ours, case, precision)
        rows["non-private"][precision] = attempt(non_private, case, precision)
        rows["profile"][precision] = attempt(profile, case, precision)
        print(case.model, precision, rows["checks"][precision], rows["ours"][precision], flush=True)
    if quick:
        return rows
    peers = {"Opacus, hooks": per_client_opacus, "Opacus, ghost": opacus_ghost, "torch.func": per_client_func}
    precisions: tuple[Precision, ...] = ("fp32", "tf32")
    for name, peer in peers.items():
        for precision in precisions:
            rows["peers"][f"{name}, {precision}"] = attempt(timed_peer, peer, case, precision)
            torch.cuda.empty_cache()
    return rows


def timed_ours(case: Case, precision: Precision) -> float:
    return milliseconds(ours(case, precision))


def timed_peer(peer: Callable[[Case], Callable[[], object]], case: Case, precision: Precision) -> float:
    run = peer(case)
    with quickest(precision):
        return milliseconds(run, 5)


def attempt(run: Callable[..., Any], *arguments: Any) -> Any:
    """None, and the reason on the screen, where something does not run: a blank in the table."""
    try:
        return run(*arguments)
    except Exception as error:  # noqa: BLE001 - whatever it is, the other rows are still wanted
        print(f"left out: {type(error).__name__}: {str(error)[:200]}", flush=True)
        traceback.print_exc()
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="ours and the non-private step only")
    parser.add_argument(
        "--end-to-end", nargs="*", default=None, metavar="DATASET", help="train on these (mnist cifar10)"
    )
    parser.add_argument("--precisions", nargs="+", default=PRECISIONS, help="for the end-to-end runs")
    parser.add_argument("--skip-steps", action="store_true", help="no timings of single rounds")
    parser.add_argument("--output", type=Path, default=Path("results/benchmarks"))
    parser.add_argument(
        "--side-by-side",
        nargs=3,
        metavar=("DATASET", "PRECISION", "RUNS"),
        help="only make so many runs of 1000 rounds, print their accuracies and write nothing",
    )
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("benchmarks.gpu needs a CUDA device; this machine has none")
    warnings.filterwarnings("ignore")
    if arguments.side_by_side:
        dataset, precision, count = arguments.side_by_side
        print(*side_by_side(*whole_run(dataset, precision), int(count)))
        return
    results: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": command_line(),
        "card": torch.cuda.get_device_name(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            **{name: version_of(name) for name in ("triton", "opacus")},
        },
        "milliseconds a round": {},
        "end to end": {},
    }
    if not arguments.skip_steps:
        for case in CASES:
            results["milliseconds a round"][case.model] = measure(case, arguments.quick)
    for dataset in arguments.end_to_end or ():
        for precision in arguments.precisions:
            with tempfile.TemporaryDirectory() as folder:
                found = attempt(end_to_end, dataset, precision, Path(folder))
            results["end to end"][f"{dataset}, {precision}"] = found
            print(dataset, precision, found, flush=True)
    arguments.output.mkdir(parents=True, exist_ok=True)
    card = torch.cuda.get_device_name().lower().replace(" ", "-")
    path = arguments.output / f"gpu-{card}-{'end-to-end' if arguments.skip_steps else 'rounds'}.json"
    if arguments.skip_steps:
        with_earlier(results, path)
    path.write_text(json.dumps(results, indent=1) + "\n")
    table(results)
    far = [
        f"{model} {precision}"
        for model, rows in results["milliseconds a round"].items()
        for precision, bar in AGREEMENT.items()
        if not rows["checks"][precision] or not rows["checks"][precision]["gradient"] <= bar
    ]
    if far:
        sys.exit(f"too far from the reference path, or not checked: {', '.join(far)}")


def with_earlier(results: dict[str, Any], path: Path) -> None:
    """Whole runs may be made in several calls; those of the same card and versions stay."""
    before = json.loads(path.read_text()) if path.exists() else {}
    if before.get("card") == results["card"] and before.get("versions") == results["versions"]:
        results["end to end"] = before["end to end"] | results["end to end"]
        commands = [*before["command"].split("; "), results["command"]]
        results["command"] = "; ".join(dict.fromkeys(commands))


def command_line() -> str:
    """Without the folder to write to, which belongs to one machine."""
    given = sys.argv[1:]
    if "--output" in given:
        place = given.index("--output")
        given = given[:place] + given[place + 2 :]
    return " ".join(["python", "-m", "benchmarks.gpu", *given])


def table(results: dict[str, Any]) -> None:
    for model, rows in results["milliseconds a round"].items():
        print(f"\n{model}: milliseconds a round")
        for precision in PRECISIONS:
            mine, plain = rows["ours"][precision], rows["non-private"][precision]
            best = min(plain.values()) if plain else None
            ratio = f"{mine / best:.2f}" if mine and best else ""
            print(f"  {precision}: ours {shown(mine)}, non-private {shown(best)} ({plain}); ours / non-private {ratio}")
        for name, value in rows["peers"].items():
            ratios = {p: f"{value / rows['ours'][p]:.1f}" for p in PRECISIONS if value and rows["ours"][p]}
            print(f"  {name}: {shown(value)}; times ours: {ratios}")
        print(f"  checks: {rows['checks']} (bars {AGREEMENT})")


def shown(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


if __name__ == "__main__":
    main()
