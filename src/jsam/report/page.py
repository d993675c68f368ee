"""The frame of every page: one file, no script, no request to anywhere, readable in light and dark and on paper."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape

DOTS_PER_INCH = 160  # of every picture
_STYLE = """
:root { --back:#fbfbfa; --card:#fff; --text:#1d2329; --soft:#5d6873; --line:#e3e6e8; --good:#1a7f4b; --bad:#b3261e;
  --t1:#2563a8; --t2:#c4681c; --t3:#3f8f5f; --t4:#8a4f9e }
@media (prefers-color-scheme: dark) { :root { --back:#14181c; --card:#1c2228; --text:#e4e8eb; --soft:#98a3ad;
  --line:#313940; --good:#54c58a; --bad:#f2786f; --t1:#6aa9ea; --t2:#eda15e; --t3:#6cc492; --t4:#c08ad3 } }
* { box-sizing:border-box } body { margin:0; background:var(--back); color:var(--text);
  font:16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif }
main { max-width:900px; margin:0 auto; padding:2rem 1.2rem 4rem }
h1 { font-size:1.7rem; line-height:1.2; margin:0 0 .3rem } h2 { font-size:1.15rem; margin:2.2rem 0 .5rem }
p { margin:.4rem 0 } .soft, small { color:var(--soft) }
.cards { display:grid; grid-template-columns:repeat(auto-fit,minmax(150px,1fr)); gap:.8rem; margin:1.2rem 0 }
.card { background:var(--card); border:1px solid var(--line); border-radius:10px; padding:.8rem 1rem }
.card b { display:block; font-size:1.55rem; font-variant-numeric:tabular-nums; line-height:1.25 }
.card span { color:var(--soft); font-size:.85rem }
.verdict { border-radius:10px; padding:.7rem 1rem; margin:1rem 0; border:1px solid; font-weight:600 }
.verdict.good { color:var(--good); border-color:var(--good) } .verdict.bad { color:var(--bad); border-color:var(--bad) }
.verdict ul { margin:.3rem 0 0; padding-left:1.2rem; font-weight:400 }
.scroll { overflow-x:auto }
table { border-collapse:collapse; width:100%; font-size:.86rem; font-variant-numeric:tabular-nums }
th, td { text-align:right; padding:.28rem .55rem; border-bottom:1px solid var(--line); white-space:nowrap }
th { color:var(--soft); font-weight:600; white-space:normal; vertical-align:bottom }
th:first-child, td:first-child { text-align:left } tr.none td { color:var(--soft) }
table.words th, table.words td { text-align:left; white-space:normal; vertical-align:top }
tr.over td { color:var(--bad); font-weight:600 }
figure { margin:.4rem 0; background:var(--card); border:1px solid var(--line); border-radius:10px; padding:.6rem }
svg { width:100%; height:auto; display:block } svg text { font-size:11.5px; fill:var(--soft) }
svg .title { font-size:12.5px } svg .grid { stroke:var(--line) } svg .line { fill:none; stroke-width:2.2 }
svg .bar.pale { opacity:.3 } .narrow { display:none }
@media screen and (max-width:560px) { .wide { display:none } .narrow { display:block }
  main { padding:1.2rem .8rem 3rem } }
.legend { display:flex; gap:1.2rem; justify-content:flex-end; padding:0 .6rem; font-size:.9rem }
.legend i { display:inline-block; width:.7em; height:.7em; border-radius:50%; margin-right:.4em }
.legend .tone1 { background:var(--t1) } .legend .tone2 { background:var(--t2) }
.legend .tone3 { background:var(--t3) } .legend .tone4 { background:var(--t4) }
.line.tone1 { stroke:var(--t1) } .line.tone2 { stroke:var(--t2) }
.line.tone3 { stroke:var(--t3) } .line.tone4 { stroke:var(--t4) }
.dot.tone1, .bar.tone1 { fill:var(--t1) } .dot.tone2, .bar.tone2 { fill:var(--t2) }
.dot.tone3, .bar.tone3 { fill:var(--t3) } .dot.tone4, .bar.tone4 { fill:var(--t4) } .bar.bad { fill:var(--bad) }
details { margin:.6rem 0 } summary { cursor:pointer; color:var(--soft) } a { color:var(--t1) }
@media print { body { background:#fff } main { max-width:none } }
"""


def page(title: str, subtitle: str, *parts: str) -> str:
    """The whole document."""
    style = " ".join(line.strip() for line in _STYLE.splitlines())
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style></head><body><main>"
        f'<h1>{escape(title)}</h1><p class="soft">{escape(subtitle)}</p>{"".join(parts)}</main></body></html>\n'
    )


def section(title: str, *parts: str) -> str:
    return f"<h2>{escape(title)}</h2>{''.join(parts)}"


def paragraph(text: str, *, soft: bool = False) -> str:
    return f"<p{' class=soft' if soft else ''}>{escape(text)}</p>"


def figure(svg: str) -> str:
    return f"<figure>{svg}</figure>"


def picture(name: str, png: bytes) -> str:
    """A PNG within the page, no larger than it was drawn, so that letters are of one size in all of them."""
    drawn = int.from_bytes(png[16:20], "big") * 96 / DOTS_PER_INCH  # the width stands in the header
    source = base64.b64encode(png).decode()
    return figure(
        f'<img alt="{escape(name)}" style="display:block;margin:auto;width:{drawn:.0f}px;max-width:100%" '
        f'src="data:image/png;base64,{source}">'
    )


def cards(items: Sequence[tuple[str, str]]) -> str:
    """Big numbers, each with what it is."""
    inner = "".join(
        f'<div class="card"><b>{escape(value)}</b><span>{escape(what)}</span></div>' for value, what in items
    )
    return f'<div class="cards">{inner}</div>'


def verdict(good: bool, lines: Sequence[str]) -> str:
    """The first line in bold, the rest as a list."""
    rest = "".join(f"<li>{escape(line)}</li>" for line in lines[1:])
    listed = f"<ul>{rest}</ul>" if rest else ""
    return f'<div class="verdict {"good" if good else "bad"}">{"✓" if good else "✗"} {escape(lines[0])}{listed}</div>'


def table(header: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]], *, words: bool = False) -> str:
    """Rows are (style class, cells); `words` for cells that are read and not compared."""
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(
        f'<tr class="{kind}">{"".join(f"<td>{escape(cell)}</td>" for cell in cells)}</tr>' for kind, cells in rows
    )
    kind = "words" if words else "numbers"
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def number(value: float | None, digits: int = 4) -> str:
    return "–" if value is None else f"{value:.{digits}g}"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"
