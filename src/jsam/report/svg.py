"""Two small charts as inline SVG, for pages that must stand alone. Colours come from the page's style.

Every chart is drawn twice, for a desk and for a telephone: scaled down, letters would be too small to read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 16, 14, 44
_WIDE, _NARROW = 760, 380


@dataclass(frozen=True, kw_only=True)
class Series:
    """A named row of points; `tone` is 1, 2, 3 …, one of the page's colours."""

    name: str
    points: Sequence[tuple[float, float]]
    tone: int = 1


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One bar; `inner` is drawn solid inside the pale `value`, `label` appears when pointed at."""

    label: str
    value: float
    inner: float | None = None
    bad: bool = False


def line_chart(
    series: Sequence[Series],
    *,
    x_title: str,
    y_title: str,
    top: float | None = None,
    percent: bool = False,
    height: int = 300,
) -> str:
    """Lines from zero upwards, a dot a point, a legend where there are several."""
    xs = [x for line in series for x, _ in line.points]
    ys = [y for line in series for _, y in line.points if math.isfinite(y)]

    def draw(width: int) -> list[str]:
        frame = _Frame(max(xs, default=1) or 1, top or (max(ys, default=1) or 1) * 1.05, width, height, percent)
        parts = [frame.axes(x_title, y_title)]
        for line in series:
            places = [(frame.x(x), frame.y(y)) for x, y in line.points if math.isfinite(y)]
            path = " ".join(f"{'L' if i else 'M'}{x:.1f} {y:.1f}" for i, (x, y) in enumerate(places))
            parts.append(f'<path d="{path}" class="line tone{line.tone}"/>')
            parts += [
                f'<circle cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="3" class="dot tone{line.tone}">'
                f"<title>{escape(line.name)}, {x:g}: {frame.label(y)}</title></circle>"
                for x, y in line.points
                if math.isfinite(y)
            ]
        return parts

    items = "".join(f'<span><i class="tone{line.tone}"></i>{escape(line.name)}</span>' for line in series)
    legend = f'<div class="legend">{items}</div>' if len(series) > 1 else ""
    return legend + _twice(draw, height, f"{y_title} against {x_title}")


def bar_chart(bars: Sequence[Bar], *, x_title: str, y_title: str, tone: int = 1, height: int = 220) -> str:
    """One bar an item, in the order given."""
    highest = max((max(bar.value, bar.inner or 0) for bar in bars), default=0) or 1

    def draw(width: int) -> list[str]:
        frame = _Frame(len(bars) or 1, highest * 1.05, width, height, False)
        parts = [frame.axes(x_title, y_title, x_labels=False)]
        room = (width - _LEFT - _RIGHT) / max(1, len(bars))
        for place, bar in enumerate(bars):
            left, wide = _LEFT + place * room + room * 0.1, max(0.8, room * 0.8)
            kind = "bad" if bar.bad else f"tone{tone}"
            shapes = [(bar.value, "bar")] if bar.inner is None else [(bar.value, "bar pale"), (bar.inner, "bar")]
            drawn = "".join(
                f'<rect x="{left:.1f}" y="{frame.y(value):.1f}" width="{wide:.1f}" '
                f'height="{max(0.0, frame.y(0) - frame.y(value)):.1f}" class="{look} {kind}"/>'
                for value, look in shapes
            )
            parts.append(f"<g>{drawn}<title>{escape(bar.label)}</title></g>")
        return parts

    return _twice(draw, height, f"{y_title} by {x_title}")


class _Frame:
    """From values to places, and the axes with round numbers on them."""

    def __init__(self, right: float, top: float, width: int, height: int, percent: bool) -> None:
        self.right, self.top, self.width, self.height, self.percent = right, top, width, height, percent

    def x(self, value: float) -> float:
        return _LEFT + (self.width - _LEFT - _RIGHT) * value / self.right

    def y(self, value: float) -> float:
        return self.height - _BOTTOM - (self.height - _TOP - _BOTTOM) * min(value, self.top) / self.top

    def label(self, value: float) -> str:
        return f"{value:.1%}" if self.percent else f"{value:.4g}"

    def axes(self, x_title: str, y_title: str, *, x_labels: bool = True) -> str:
        floor, middle = self.height - _BOTTOM, (_TOP + self.height - _BOTTOM) / 2
        parts = []
        for value in _ticks(self.top):
            y = self.y(value)
            text = f"{value:.0%}" if self.percent else f"{value:g}"
            parts.append(f'<line x1="{_LEFT}" x2="{self.width - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
            parts.append(f'<text x="{_LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
        if x_labels:
            for value in _ticks(self.right):
                x = self.x(value)
                parts.append(f'<text x="{x:.1f}" y="{floor + 17}" text-anchor="middle">{value:g}</text>')
        across = (_LEFT + self.width - _RIGHT) / 2
        parts.append(
            f'<text x="{across:.0f}" y="{self.height - 6}" text-anchor="middle" class="title">{escape(x_title)}</text>'
        )
        parts.append(
            f'<text x="14" y="{middle:.0f}" text-anchor="middle" class="title" '
            f'transform="rotate(-90 14 {middle:.0f})">{escape(y_title)}</text>'
        )
        return "".join(parts)


def _ticks(top: float, most: int = 6) -> list[float]:
    rough = top / most
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough)
    return [round(i * step, 12) for i in range(int(top / step + 1e-9) + 1)]


def _twice(draw: Callable[[int], list[str]], height: int, label: str) -> str:
    def svg(width: int) -> str:
        return (
            f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}" '
            f'xmlns="http://www.w3.org/2000/svg">{"".join(draw(width))}</svg>'
        )

    return f'<div class="wide">{svg(_WIDE)}</div><div class="narrow">{svg(_NARROW)}</div>'
