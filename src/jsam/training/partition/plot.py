"""The label-by-client heat map of `--plot`."""

from __future__ import annotations

import io

from jsam.errors import NotSupportedError
from jsam.training.partition.result import IndexArray, Partition


def partition_picture(
    partition: Partition, targets: IndexArray, ending: str, *, num_classes: int | None = None
) -> bytes:
    """The picture as a file's content, in the format of an ending such as .png."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        raise NotSupportedError("a plot of the partition needs matplotlib: pip install matplotlib") from None
    counts = partition.label_counts(targets, num_classes)
    num_clients, classes = counts.shape
    uneven = min(partition.sizes) < max(partition.sizes)
    height = 1.6 + 0.28 * classes + 1.2 * uneven
    # A Figure of its own and not pyplot's: no window system and no state shared with the caller's plots.
    width = min(14.0, max(5.0, 2.5 + 0.09 * num_clients))
    figure = Figure(figsize=(width, min(9.0, height)), layout="constrained")
    if uneven:
        top, axes = figure.subplots(2, 1, sharex=True, height_ratios=[1, 3])
        top.bar(range(num_clients), counts.sum(axis=1), width=1.0)
        top.set_ylabel("samples")
    else:
        top = axes = figure.add_subplot()
    image = axes.imshow(counts.T, aspect="auto", origin="lower", cmap="viridis", interpolation="nearest", vmin=0)
    axes.set_xlabel("client")
    axes.set_ylabel("label")
    axes.yaxis.set_major_locator(MaxNLocator(min(classes, 20), integer=True))
    axes.xaxis.set_major_locator(MaxNLocator(12, integer=True))
    sizes = partition.sizes
    spread = f"{sizes[0]} samples each" if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)} samples each"
    top.set_title(f"{partition.description}: {num_clients} clients, {spread} (seed {partition.seed})", fontsize=10)
    figure.colorbar(image, ax=axes, label="samples", pad=0.02)
    content = io.BytesIO()
    figure.savefig(content, format=ending.lstrip(".") or None, dpi=150)
    return content.getvalue()
