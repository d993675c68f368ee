"""How much clients differ, from what is public: ζ², the variance between clients of what they hold.

ζ² is the mean over clients of ‖h_k − h‖², where h_k is the distribution of labels at client k and h that of all. The
bias of even shares is ζ sqrt(1/m − 1/N) (docs/theory.md, "Even shares").
"""

from __future__ import annotations

import re

from jsam.errors import InputError

CLASSES = 10  # where a text leaves the number of classes out
FORMS = "a number, alike, alike:600/10, classes:2/10, dirichlet:0.5/10, similarity:30"
_NUMBER = r"\d+(?:\.\d+)?(?:e-?\d+)?"


def heterogeneity(text: str, samples: float | None = None) -> float:
    """ζ² as a number or by the way in which data are spread; `samples` are those of an average client, if known.

    `classes:2/10` says that each client holds 2 of 10 classes, `dirichlet:0.5/10` that its labels follow a Dirichlet
    distribution, `similarity:30` that 30% of its records are drawn from all and the rest from two of ten classes, and
    `alike` that all are drawn from one pool. The last two depend on the number of records of a client, since few
    records differ by chance; `alike:600/10` and `similarity:30/600` name it.

    >>> round(heterogeneity("classes:2/10"), 3), round(heterogeneity("dirichlet:0.5/10"), 3)
    (0.4, 0.15)
    >>> round(heterogeneity("alike", samples=600), 6)
    0.0015
    """
    number = re.fullmatch(_NUMBER, text)
    if number:
        return float(text)
    found = re.fullmatch(rf"([a-z]+)(?::({_NUMBER}))?(?:/(\d+))?", text)
    kind, first, second = found.groups() if found else ("", None, None)
    value = None if first is None else float(first)
    classes = CLASSES if second is None else int(second)
    if kind == "classes" and value is not None and 1 <= value <= classes:
        return 1 / value - 1 / classes
    if kind == "dirichlet" and value is not None and value > 0 and classes >= 2:
        return (1 - 1 / classes) / (classes * value + 1)
    if kind == "alike":
        known = samples if value is None else value
        if known is not None and known >= 1 and classes >= 2:
            return by_chance(classes, known)
        raise InputError(f"heterogeneity {text!r} needs the number of records of a client, as in alike:600/{classes}")
    if kind == "similarity" and value is not None and value <= 100:
        known = samples if second is None else float(second)
        chance = 0.0 if known is None else by_chance(CLASSES, max(known, 1.0))
        return (1 - value / 100) ** 2 * heterogeneity("classes:2/10") + chance
    raise InputError(f"heterogeneity is {text!r}; it must be {FORMS}")


def by_chance(classes: int, samples: float) -> float:
    """ζ² of clients whose records are drawn from one pool of equally frequent classes."""
    return (1 - 1 / classes) / samples
