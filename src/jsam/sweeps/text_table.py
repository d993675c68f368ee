"""Rows as lines of text, for terminals and pipes alike."""

from __future__ import annotations

from collections.abc import Sequence


def text_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, words: Sequence[str] = ("mechanism",)) -> str:
    """Rows under the names of their columns, as lines of text; the columns named in `words` are aligned to the left.

    >>> print(text_table(("mechanism", "cost"), [("jsam", "9.5"), ("usbm", "10")]), end="")
    mechanism  cost
    ---------------
    jsam        9.5
    usbm         10
    """
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    aligned = [
        "  ".join(
            cell.ljust(width) if name in words else cell.rjust(width)
            for name, cell, width in zip(columns, cells, widths, strict=True)
        ).rstrip()
        for cells in (columns, *rows)
    ]
    return "".join(f"{line}\n" for line in (aligned[0], "-" * max(map(len, aligned)), *aligned[1:]))
