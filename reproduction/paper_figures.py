"""Figures of the reproduction, from plain numbers. A point that was not run is left out, and lines stop beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from jsam.report.figures import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PAPER_POINTS,
    SENSITIVITY,
    _colours,
    _dashes,
    _figure,
    _picture,
    _plain_ticks,
    _style,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, kw_only=True)
class Point:
    """A mean over seeds; None where nothing was run."""

    x: float
    mean: float | None
    std: float | None = None


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Curves by mechanism."""

    title: str
    curves: Mapping[str, Sequence[Point]]

    @property
    def empty(self) -> bool:
        return all(point.mean is None for points in self.curves.values() for point in points)


def panels_picture(panels: Sequence[Panel], *, x_label: str, y_label: str, log: bool = False) -> bytes:
    """Mean accuracy with a band of one standard deviation over seeds; more than four panels in two rows."""
    rows = 1 if len(panels) <= 4 else 2
    across = math.ceil(len(panels) / rows)
    with _style():
        figure, axes = _figure(rows, across, size=(3.1 * across + 0.6, 3.0 * rows + 0.6), sharey=True)
        # What stands after a comma is told by the dashes.
        names = list(dict.fromkeys(name.partition(",")[0] for panel in panels for name in panel.curves))
        colours = _colours(names)
        for axis in axes.flat[len(panels) :]:
            axis.set_visible(False)
        for axis, panel in zip(axes.flat, panels, strict=False):
            for name, points in panel.curves.items():
                _curve(axis, points, colours[name.partition(",")[0]], _dashes(name), name)
            axis.set(title=panel.title, xlabel=x_label)
            if panel.empty:
                axis.text(0.5, 0.5, "not run", transform=axis.transAxes, ha="center", color=GREY)
            elif log:
                axis.set_xscale("log")
                _plain_ticks(axis)
        for axis in axes.flat[::across]:
            axis.set_ylabel(y_label)
        handles = {
            label: handle for axis in axes.flat for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
        }
        columns = max(1, min(len(handles), 1 + 3 * across // 2))
        figure.legend(handles.values(), handles, loc="outside lower center", ncols=columns)
        return _picture(figure, "png")


def _curve(axis: Axes, points: Sequence[Point], colour: str, dashes: str, label: str) -> None:
    ordered = sorted(points, key=lambda point: point.x)
    x = np.array([point.x for point in ordered])
    y = np.array([math.nan if point.mean is None else point.mean for point in ordered])
    spread = np.array([point.std or 0.0 for point in ordered])
    axis.plot(x, y, color=colour, ls=dashes, lw=1.6, marker="o", ms=3.5, label=label)
    axis.fill_between(x, y - spread, y + spread, color=colour, alpha=0.15, lw=0)


def eta_picture(stored: Mapping[str, Any]) -> bytes:
    """Mean cost against η with the band over draws; the end of JSAM's convex stretch marked."""
    with _style():
        figure, axes = _figure(1, 1, size=(5.6, 3.8))
        axis, etas = axes.flat[0], stored["etas"]
        colours = _colours(list(stored["curves"]))
        for name, curve in stored["curves"].items():
            axis.plot(etas, curve["mean"], color=colours[name], ls=_dashes(name), lw=1.6, label=name)
            axis.fill_between(etas, curve["low"], curve["high"], color=colours[name], alpha=0.1, lw=0)
            if name == "jsam" and curve["convex_up_to"] is not None:
                axis.axvline(curve["convex_up_to"], color=GREY, lw=0.9, ls=":")
                axis.annotate(
                    "JSAM: convex to here,\nconcave beyond",
                    (curve["convex_up_to"], 0),
                    xytext=(5, 6),
                    textcoords="offset points",
                    fontsize=8.5,
                    color=GREY,
                )
        axis.set(xlabel="loss weight η", ylabel="expected cost", ylim=(0, None), xlim=(0, None))
        axis.legend(fontsize=8.5)
        return _picture(figure, "png")


def selected_picture(stored: Mapping[str, Any], chosen: float) -> bytes:
    """Clients that JSAM keeps against cost, for several Q, with the paper's two points."""
    with _style():
        figure, axes = _figure(1, 1, size=(5.6, 3.8))
        axis, costs = axes.flat[0], stored["costs"]
        tones = [BLUE, ORANGE, GREEN, GREY]
        for (weight, curve), colour in zip(stored["curves"].items(), tones, strict=False):
            axis.plot(costs, curve["mean"], color=colour, lw=1.6, label=f"Q = {weight}, mean")
            if float(weight) == chosen:
                axis.fill_between(
                    costs, curve["low"], curve["high"], color=colour, alpha=0.15, lw=0, label="95% of draws"
                )
        x, y = zip(*PAPER_POINTS, strict=True)
        axis.plot(x, y, "*", ms=12, color="black", mec="white", mew=0.7, ls="none", label="paper", zorder=5)
        axis.set(xlabel="expected cost (log scale)", ylabel="clients kept by JSAM", xscale="log", xlim=(0.2, 100))
        _plain_ticks(axis)
        axis.legend(fontsize=8.5)
        return _picture(figure, "png")


def structure_picture(stored: Mapping[str, Any]) -> bytes:
    """Selection probabilities of ten clients, cheapest first, at several η."""
    rows = stored["rows"]
    with _style():
        figure, axes = _figure(1, len(rows), size=(2.6 * len(rows) + 0.6, 2.9), sharey=True)
        for axis, row in zip(axes.flat, rows, strict=True):
            p = row["selection_probs"]
            axis.bar(range(1, len(p) + 1), p, color=BLUE)
            axis.axhline(1 / len(p), color=GREY, lw=0.9, ls=":")
            axis.set(title=f"η = {row['eta']:g}, cost {row['cost']:.3g}", xlabel="client, cheapest first")
        axes.flat[0].set_ylabel("selection probability")
        return _picture(figure, "png")


def dearest_picture(stored: Mapping[str, Any]) -> bytes:
    """What each client costs the server and itself, against its sensitivity."""
    rows = stored["by_eta"]
    with _style():
        figure, axes = _figure(1, len(rows), size=(2.9 * len(rows) + 0.6, 3.2))
        for axis, row in zip(axes.flat, rows, strict=True):
            axis.scatter(row["sensitivities"], row["server_costs"], s=12, color=BLUE, label="v ε (server)")
            axis.scatter(row["sensitivities"], row["client_costs"], s=12, color=ORANGE, label="c ε (client)")
            axis.set(title=f"η = {row['eta']:g}, cost {row['mean_cost']:.3g}", xlabel=SENSITIVITY.partition(" (")[0])
            axis.set_ylim(0, None)
        axes.flat[0].set_ylabel("cost of the client")
        axes.flat[0].legend(fontsize=8.5)
        return _picture(figure, "png")


def scatter_picture(
    groups: Mapping[str, Sequence[tuple[float, float]]], *, x_label: str, y_label: str, log_y: bool = False
) -> bytes:
    """One dot a run, a panel a group."""
    with _style():
        figure, axes = _figure(1, max(1, len(groups)), size=(2.9 * max(1, len(groups)) + 0.6, 3.2), sharey=True)
        for axis, (name, points) in zip(axes.flat, groups.items(), strict=False):
            axis.scatter([x for x, _ in points], [y for _, y in points], s=10, color=BLUE, alpha=0.6)
            axis.set(title=name, xlabel=x_label, xscale="log", yscale="log" if log_y else "linear")
            _plain_ticks(axis)
        axes.flat[0].set_ylabel(y_label)
        return _picture(figure, "png")
