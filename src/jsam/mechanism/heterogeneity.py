"""How much clients differ, from what is public: ζ², the variance between clients of what their records teach.

M records of client k are worth M/(1 + χ²) records of the whole, with χ² = Σ_j (h_j − h_kj)²/h_kj, h_k the shares of
labels at the client and h those of all: so many it takes when each label is weighed as often as the whole has it. A
label that the client lacks counts as one record. The mean of clipped gradients then has the variance ζ² = (1 + χ²)/M,
in squares of the clipping norm, and the bias of even shares is ζ sqrt(1/m − 1/N) (docs/theory.md, "Even shares").
"""

from __future__ import annotations

import math
import re

import numpy as np
from numpy.typing import ArrayLike

from jsam.errors import InputError
from jsam.mechanism._arrays import FloatArray

CLASSES, RECORDS = 10, 1000  # where a text leaves the number of classes, or that of a client's records, out
FORMS = (
    "a number, alike, alike:600/10, classes:2/10, classes:2/10/600, dirichlet:0.5/10, dirichlet:0.5/10/600,"
    " similarity:30, similarity:30/600"
)
HISTOGRAM = "histogram:"  # and an ε: what jsam simulate buys from clients before there are rules
_NUMBER = r"\d+(?:\.\d+)?(?:e-?\d+)?"
_DRAWS = 4096  # points of a distribution that stand for it
MOST_CLASSES, LEAST_ALPHA = 100_000, 1e-4  # beyond these the points no longer stand for it


def heterogeneity(text: str) -> float:
    """ζ² as a number or by the way in which data are spread.

    `classes:2/10` says that each client holds 2 of 10 classes, `dirichlet:0.5/10` that its labels follow a Dirichlet
    distribution, `similarity:30` that 30% of its records are drawn from all and the rest from two of ten classes, and
    `alike` that all are drawn from one pool. Few records say less than many, so the records of a client count:
    `classes:2/10/600`, `dirichlet:0.5/10/600`, `similarity:30/600` and `alike:600/10` name them; else they are 1,000.

    >>> round(heterogeneity("alike:600/10"), 5), round(heterogeneity("similarity:30/600"), 5)
    (0.00167, 0.00453)
    >>> round(heterogeneity("classes:2/10/600"), 4), round(heterogeneity("dirichlet:0.5/10/600"), 4)
    (0.0827, 0.0179)
    """
    if re.fullmatch(_NUMBER, text):
        return float(text)
    kind, value, classes, records = _parts(text)
    whole = np.full(classes, 1 / classes)
    if kind == "alike":
        return 1 / records
    if kind == "dirichlet":
        return _dirichlet(value, classes, records)
    if kind == "classes":
        return spread(np.clip(value - np.arange(classes), 0, 1) / value, whole, records)
    apart = np.where(np.arange(classes) < 2, 1 / 2, 0.0)
    return spread(value / 100 * whole + (1 - value / 100) * apart, whole, records)


def with_records(text: str, records: int) -> str:
    """The text with the number of records of a client in it, where it names none.

    >>> with_records("classes:2/10", 600), with_records("similarity:30/500", 600), with_records("0.1", 600)
    ('classes:2/10/600', 'similarity:30/500', '0.1')
    """
    if re.fullmatch(_NUMBER, text):
        return text
    kind, value, classes, named = _parts(text, none=0.0)
    if named:
        return text
    parts = {"alike": f"{records}/{classes}", "similarity": f"{value:g}/{records}"}
    return f"{kind}:{parts.get(kind, f'{value:g}/{classes}/{records}')}"


def _parts(text: str, none: float = RECORDS) -> tuple[str, float, int, float]:
    """What a text says: its kind, its number, the classes, and the records of a client, or `none`."""
    if text.startswith(HISTOGRAM):
        raise InputError(
            f"heterogeneity is {text!r}, which jsam simulate alone can buy, campaigns do not have it yet; give {FORMS}"
        )
    found = re.fullmatch(rf"([a-z]+)(?::({_NUMBER}))?(?:/(\d+))?(?:/(\d+))?", text)
    kind, first, second, third = found.groups() if found else ("", None, None, None)
    # After the strokes: of `similarity` the records, of `alike` the classes, of the others both.
    named = second if kind == "similarity" else first if kind == "alike" else third
    classes = CLASSES if second is None or kind == "similarity" else int(second)
    records = none if named is None else float(named)
    value = 0.0 if first is None else float(first)
    fits = {
        "alike": third is None,
        "classes": 1 <= value <= classes,
        "dirichlet": LEAST_ALPHA <= value <= 1 / LEAST_ALPHA,
        "similarity": first is not None and value <= 100 and third is None,
    }
    named_well = named is None or 1 <= records < math.inf
    if not fits.get(kind, False) or not 2 <= classes <= MOST_CLASSES or not named_well:
        raise InputError(f"heterogeneity is {text!r}; it must be {FORMS}")
    return kind, value, classes, records


def spread(shares: ArrayLike, whole: ArrayLike, records: ArrayLike) -> float:
    """ζ² of clients with these shares of labels (a row each, or one for all), where `whole` are those of all records.

    Returns the mean over clients of (1 + χ²)/M.
    """
    held, asked = np.atleast_2d(np.asarray(shares, dtype=np.float64)), np.asarray(whole, dtype=np.float64)
    count = np.broadcast_to(np.asarray(records, dtype=np.float64), len(held))[:, None]
    return float(np.mean((1 + lost(held, asked, count).sum(axis=1)) / count[:, 0]))


def lost(held: FloatArray, asked: FloatArray | float, records: FloatArray | float) -> FloatArray:
    """The part of χ² of one label, by its share at the client and in the whole."""
    return np.asarray((asked - held) ** 2 / np.maximum(held, 1 / records))


def _dirichlet(alpha: float, classes: int, records: float) -> float:
    """The mean over the distribution of each label's share, which is a beta distribution."""
    from scipy.stats import beta

    shares = beta(alpha, alpha * (classes - 1)).ppf((np.arange(_DRAWS) + 0.5) / _DRAWS)
    return float((1 + classes * lost(shares, 1 / classes, records).mean()) / records)
