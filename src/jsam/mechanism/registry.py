"""Mechanisms by the names that the command line and stored results use."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from jsam.errors import InputError
from jsam.mechanism.families.base import RangeMechanism
from jsam.mechanism.families.bbm import BBM
from jsam.mechanism.families.complete_information import JSAMCI
from jsam.mechanism.families.fsbm import FSBM
from jsam.mechanism.families.jsam import JSAM
from jsam.mechanism.families.usbm import USBM


def _compensated(**options: Any) -> USBM:
    if options.get("selection_probs") is None:
        raise InputError("usbm-compensated needs selection_probs (a column `selection_prob`): how often each is drawn")
    return USBM(**options)


# A name that ends in -M takes a number of clients.
_BY_NAME: dict[str, Callable[..., RangeMechanism]] = {
    "jsam": JSAM,
    "jsam-ci": JSAMCI,
    "usbm": USBM,
    "usbm-compensated": _compensated,
    "fsbm-M": FSBM,
    "bbm-M": BBM,
}


def mechanism_names() -> tuple[str, ...]:
    """All names, with M standing for a number of clients."""
    return tuple(_BY_NAME)


def mechanism_named(name: str, **options: Any) -> RangeMechanism:
    """A mechanism from its name and its options.

    >>> mechanism_named("fsbm-50", loss_weight=5.0).name
    'fsbm-50'
    """
    if name in _BY_NAME and not name.endswith("-M"):
        return _BY_NAME[name](**options)
    sized = re.fullmatch(r"([a-z-]+)-(\d+)", name)
    if sized and f"{sized[1]}-M" in _BY_NAME:
        return _BY_NAME[f"{sized[1]}-M"](num_selected=int(sized[2]), **options)
    known = " ".join(key.replace("-M", "-50") for key in _BY_NAME)
    raise InputError(f"unknown mechanism {name!r}; allowed: {known} (any number for 50)")
