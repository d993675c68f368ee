"""Results as JSON and CSV: the same names in both."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

# Beyond so many entries nobody reads the JSON, and indenting it takes longer than computing it.
INDENTED = 10_000


def json_text(result: Mapping[str, Any]) -> str:
    """JSON for every reader: infinite and undefined numbers become null, which the JSON standard has a word for.

    >>> json_text({"payment": float("inf")})
    '{\\n  "payment": null\\n}\\n'
    """
    longest = max((len(value) for value in result.values() if isinstance(value, list)), default=0)
    indent = 2 if longest <= INDENTED else None
    try:
        text = json.dumps(result, indent=indent, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(result), indent=indent, allow_nan=False)
    return text + "\n"


def csv_text(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> str:
    """One line a row, one column a name; what is not known stays blank.

    >>> csv_text([{"id": "a", "payment": 0.5}, {"id": "b", "payment": None}])
    'id,payment\\na,0.5\\nb,\\n'
    """
    columns = list(columns or (rows[0] if rows else ()))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([row[name] for name in columns] for row in rows)
    return out.getvalue()


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
