"""All combinations of settings of which some have several values."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any


def combinations(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All combinations of the values given as lists; the seed changes last, then the lists in the order written.

    >>> combinations({"seed": [0, 1], "cost": [3, 10], "rounds": 5})[:2]
    [{'seed': 0, 'cost': 3, 'rounds': 5}, {'seed': 0, 'cost': 10, 'rounds': 5}]
    """
    lists: dict[str, list[Any]] = {name: value for name, value in settings.items() if isinstance(value, list)}
    names = sorted(lists, key=lambda name: name != "seed")
    products = itertools.product(*(lists[name] for name in names))
    return [{**settings, **dict(zip(names, values, strict=True))} for values in products]
