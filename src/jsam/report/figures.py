"""Figures of plans and comparisons. They are drawn from results that are handed over; nothing is solved here."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jsam.mechanism._arrays import BoolArray, FloatArray
from jsam.mechanism.contract import Contract
from jsam.mechanism.registry import find_description
from jsam.report.page import DOTS_PER_INCH

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours: told apart by colour-blind readers too.
BLUE, SKY, GREEN, ORANGE, RED, PINK = "#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00", "#CC79A7"
GREY = "#6b6b6b"
OTHERS = ("#4d4d4d", "#8c564b", "#999933", "#332288")

STYLE: Any = {
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "figure.dpi": 100,
    "savefig.dpi": DOTS_PER_INCH,
}

SENSITIVITY = "sensitivity c (money per unit of ε)"

# Numbers of clients that the paper's JSAM selects at two costs ("number of selected clients", 100 clients).
PAPER_POINTS = ((1.32, 27), (3.45, 41))


def plan_picture(contract: Contract, kind: str = "png") -> bytes:
    """Selection probability, ε, payment and cost of every client against its sensitivity; excluded ones shaded."""
    with _style():
        figure, axes = _figure(2, 2, size=(10.0, 7.4))
        c, kept = contract.sensitivities, contract.selection_probs > 0
        own_cost, counted = c * contract.epsilons, np.zeros(len(c))
        # A virtual cost may be infinite where nothing is bought.
        counted[kept] = contract.virtual_costs[kept] * contract.epsilons[kept]
        selection, epsilon, payment, cost = axes.flat
        _clients(selection, c, kept, contract.selection_probs, BLUE, None)
        selection.set(title="Selection probability", ylabel="share of all draws (log scale)", yscale="log")
        _clients(epsilon, c, kept, contract.epsilons, BLUE, None)
        epsilon.set(title="Privacy sold", ylabel="ε (log scale)", yscale="log")
        _payments(payment, contract, kept)
        _clients(cost, c, kept, counted, BLUE, "v ε (server)")
        _clients(cost, c, kept, own_cost, ORANGE, "c ε (client)")
        cost.set(title="Cost of each client", ylabel="money", ylim=(0, None))
        # Beside the title: there is no corner that the clients leave free at every loss weight.
        legend = cost.legend(loc="lower right", bbox_to_anchor=(1.0, 0.995), ncols=2, columnspacing=1, handletextpad=0)
        for handle in legend.legend_handles:
            handle.set_sizes([20.0])
        for axis in axes.flat:
            _sensitivity_axis(axis, c, kept)
        _point_out(contract, (selection, contract.selection_probs), (epsilon, contract.epsilons), (cost, counted))
        figure.suptitle(_plan_title(contract), x=0.01, ha="left", fontsize=11.5)
        return _picture(figure, kind)


def _plan_title(contract: Contract) -> str:
    due = "" if contract.total_payment is None else f", {contract.total_payment:.4g} due"
    return (
        f"{contract.mechanism}: {contract.num_selected} of {contract.num_clients} clients kept,"
        f" expected cost {contract.expected_cost:.4g}{due}, loss bound {contract.loss_bound:.4g}"
    )


def _payments(axis: Axes, contract: Contract, kept: BoolArray) -> None:
    axis.set(title="Payment", ylabel="money")
    if contract.payments is None:
        axis.text(0.5, 0.5, "payments were left out", transform=axis.transAxes, ha="center", color=GREY)
        axis.set_yticks([])
        return
    _clients(axis, contract.sensitivities, kept, contract.payments, GREEN, None)
    axis.set_ylim(0, None)


def _clients(axis: Axes, c: FloatArray, kept: BoolArray, values: FloatArray, colour: str, label: str | None) -> None:
    size = float(np.clip(3000 / len(c), 4, 26))
    axis.scatter(c[kept], values[kept], s=size, color=colour, label=label, linewidths=0, rasterized=len(c) > 2000)


def _point_out(contract: Contract, *panels: tuple[Axes, FloatArray]) -> None:
    """Ring the one client that is drawn most, if there is one: it sells most, and may cost most."""
    p = contract.selection_probs
    most = int(p.argmax())
    if (p > 0.9 * p[most]).sum() > 1:
        return
    name = contract.ids[most] if len(contract.ids[most]) <= 24 else contract.ids[most][:23] + "…"
    for axis, values in panels:
        x, y = contract.sensitivities[most], values[most]
        axis.plot(x, y, "o", ms=9, mfc="none", mec="black", mew=1.0)
        label = f"{name}: {y:.3g}".replace("$", r"\$")
        # The upper left corner is free: what rises does so to the right.
        line = {"arrowstyle": "-", "color": GREY, "lw": 0.7, "shrinkA": 2, "shrinkB": 5}
        axis.annotate(label, (x, y), xytext=(0.1, 0.93), textcoords="axes fraction", arrowprops=line, fontsize=8.5)


def _sensitivity_axis(axis: Axes, c: FloatArray, kept: BoolArray) -> None:
    """Shade what is excluded, where it is a stretch of its own; mark each excluded client at the bottom."""
    axis.set_xlabel(SENSITIVITY)
    out, dearest = c[~kept], c[kept].max()
    # Few kept among many excluded would huddle at the edge.
    right = min(c.max() * 1.03, dearest * 2.5)
    if right > 1000 * np.quantile(c, 0.01):
        axis.set_xscale("log")
        axis.set_xlim(c.min() / 1.5, right)
    else:
        axis.set_xlim(-0.02 * right, right)
    _plain_ticks(axis)
    if len(out) == 0:
        return
    seen = out[out <= right]
    axis.plot(seen, np.full(len(seen), 0.012), "|", transform=axis.get_xaxis_transform(), color=GREY, ms=5, alpha=0.7)
    if out.min() >= dearest:
        start = min((out.min() + dearest) / 2, right)
        axis.axvspan(start, right, color="#d9d9d9", alpha=0.6, lw=0, zorder=0)
        text = f"{len(out)} excluded" if right >= c.max() else f"{len(out)} excluded, up to {c.max():.3g}"
        axis.text(0.985, 0.06, text, transform=axis.transAxes, ha="right", color=GREY, fontsize=9)


def compare_picture(rows: Sequence[Mapping[str, Any]], sweep: Sequence[Mapping[str, Any]], kind: str = "png") -> bytes:
    """Cost against loss bound, cost against η and selected clients against cost, a curve a mechanism.

    `sweep` holds plain records over a range of loss weights; `rows` the ones that were asked for, marked by dots.
    """
    shown = [row for row in rows if row["error"] is None]
    colours = _colours([row["mechanism"] for row in shown])
    asked_noise = sweep[0]["noise_weight"]
    with _style():
        figure, axes = _figure(1, 3, size=(13.5, 4.9))
        for row in shown:
            curve = [r for r in sweep if r["mechanism"] == row["mechanism"] and r["noise_weight"] == asked_noise]
            look = {"color": colours[row["mechanism"]], "ls": _dashes(row["mechanism"])}
            for axis, (x, y, _) in zip(axes.flat, AXES_OF_COMPARE, strict=True):
                axis.plot([r[x] for r in curve], [r[y] for r in curve], lw=1.8, label=row["mechanism"], **look)
                axis.plot(row[x], row[y], "o", ms=6, color=look["color"], mec="white", mew=0.8, zorder=4)
        _paper(axes.flat[2], sweep, asked_noise)
        for axis, (x, y, title) in zip(axes.flat, AXES_OF_COMPARE, strict=True):
            axis.set(title=title, xlabel=NAMES[x], ylabel=NAMES[y])
            axis.set_xscale("log" if "log scale" in NAMES[x] else "linear")
            axis.set_yscale("log" if "log scale" in NAMES[y] else "linear")
            _plain_ticks(axis)
        handles, labels = axes.flat[2].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 9))
        figure.suptitle(
            f"Noise weight {asked_noise:g}; the dots are what was asked for", x=0.01, ha="left", fontsize=11
        )
        return _picture(figure, kind)


AXES_OF_COMPARE = (
    ("loss_bound", "expected_cost", "Cost against loss bound"),
    ("loss_weight", "expected_cost", "Cost against η"),
    ("expected_cost", "num_selected", "Selected clients against cost"),
)
NAMES = {
    "loss_bound": "loss bound",
    "expected_cost": "expected cost (money, log scale)",
    "loss_weight": "loss weight η (money per unit of loss, log scale)",
    "num_selected": "selected clients",
}


def _plain_ticks(axis: Axes) -> None:
    """0.1 and 10 on logarithmic axes, not powers of ten; 0.2 and 0.5 too where little more than a decade is shown."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for ticks, (low, high) in ((axis.xaxis, axis.get_xlim()), (axis.yaxis, axis.get_ylim())):
        if ticks.get_scale() != "log":
            continue
        few = high < 20 * low
        ticks.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,)))
        ticks.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ticks.set_minor_formatter(NullFormatter())


def _paper(axis: Axes, sweep: Sequence[Mapping[str, Any]], asked_noise: float) -> None:
    """The paper's two points, and JSAM under the noise weight that they were made with, where it was computed."""
    reference = [r for r in sweep if r["noise_weight"] != asked_noise]
    if reference:
        label = f"jsam at noise weight {reference[0]['noise_weight']:g}"
        points = [(r["expected_cost"], r["num_selected"]) for r in reference]
        axis.plot(*zip(*points, strict=True), color=BLUE, lw=1.3, ls=":", label=label)
    costs, counts = zip(*PAPER_POINTS, strict=True)
    axis.plot(
        costs, counts, "*", ms=12, color="black", mec="white", mew=0.7, ls="none", label="paper, 100 clients", zorder=5
    )
    for cost, count in PAPER_POINTS:
        axis.annotate(
            f"{count} @ {cost}", (cost, count), xytext=(7, -11), textcoords="offset points", fontsize=8.5, zorder=5
        )


def _colours(names: Sequence[str]) -> dict[str, str]:
    """The same colour for the same kind of mechanism in every figure."""
    kinds = {"jsam": [BLUE], "jsam-ci": [SKY], "usbm": [GREEN], "fsbm": [ORANGE, RED], "bbm": [PINK]}
    spare = list(OTHERS)
    colours: dict[str, str] = {}
    for name in names:
        left = kinds.get(name.rstrip("0123456789").rstrip("-"), []) or spare
        colours[name] = left.pop(0) if left else GREY
    return colours


def _dashes(name: str) -> str:
    """Curves that lie on one another must both be seen: bbm-M and fsbm-M keep the same number of clients."""
    mechanism = find_description(name.partition(",")[0])
    if name.endswith("plain") or (mechanism is not None and mechanism.chooses_by_records):
        return "-."
    return "--" if mechanism is not None and mechanism.knows_sensitivities else "-"


def _style() -> Any:
    import matplotlib as mpl

    return mpl.rc_context(STYLE)


def _figure(rows: int, columns: int, *, size: tuple[float, float], **options: Any) -> tuple[Figure, Any]:
    # Not pyplot: it would look for a screen and keep every figure.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def _picture(figure: Figure, kind: str) -> bytes:
    """Drawn in memory, so that a file is whole or not there. The kind may be a file's suffix: png or .PNG."""
    picture = io.BytesIO()
    figure.savefig(picture, format=kind.lstrip(".").lower() or "png")
    return picture.getvalue()
