"""Checks of what came over the network: names, texts that can be shown, finite numbers, rules that import nothing."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from jsam.errors import InputError
from jsam.mechanism.rules import WHOLE, WORDS, Rules

LONGEST_TEXT, LONGEST_NAME = 200, 100
ALLOWED = f"1 to {LONGEST_NAME} printable characters without / and \\, and not . or .."
RULE_NAMES = tuple(field.name for field in fields(Rules))
# A mechanism of a user's own is written package.module:Class. Who names one makes whoever reads it import that module.
_MECHANISM = re.compile(r"[a-z]+(-[a-z0-9]+)*")
_PRIOR = re.compile(r"\s*[A-Za-z0-9_]+\s*(:[^:]*)?")


def is_name(name: object) -> bool:
    """Whether a client may be called so; the same rule for its own file, its first word and the list of keys.

    Names become parts of files, logs and pages, on the server and elsewhere.
    """
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
        return False
    # In bytes, since file systems count these: 200 and a few for what is put before and after.
    return len(name.encode()) <= 2 * LONGEST_NAME and name not in (".", "..") and not set(name) & set("/\\")


def text(name: str, value: object) -> str:
    """The value, if it is a text that can be shown and has from 1 to 200 characters."""
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_TEXT or not value.isprintable():
        raise InputError(f"{name} must be a text of 1 to {LONGEST_TEXT} printable characters")
    return value


def whole_number(name: str, value: object, low: int) -> int:
    """The value, if it is a whole number of at least `low` that fits into 63 bits."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value < 2**63:
        raise InputError(f"{name} is {value!r}; it must be a whole number of at least {low}")
    return value


def number(name: str, value: object, low: float = 0.0) -> float:
    """The value as a float, if it is finite and at least `low`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{name} is {value!r}; it must be a number")
    try:
        # One form for one number, or 1 and 1.0 (0.0 and −0.0) would differ in the hash.
        converted = float(value) + 0.0
    except OverflowError:
        converted = math.inf
    if not (math.isfinite(converted) and converted >= low):
        raise InputError(f"{name} is {converted:g}; it must be finite and at least {low:g}")
    return converted


def exactly(names: Iterable[str], stored: Any, where: str) -> dict[str, Any]:
    """The stored object as a dict, if it has these names and no others."""
    names = set(names)
    if not isinstance(stored, Mapping):
        raise InputError(f"{where} must be an object with: {', '.join(sorted(names))}")
    odd = sorted(map(str, stored.keys() ^ names))
    if odd:
        words = [f"{'has unknown' if name in stored else 'lacks'} {name[:LONGEST_TEXT]!r}" for name in odd]
        raise InputError(f"{where} {', '.join(words)}; it must hold exactly: {', '.join(sorted(names))}")
    return dict(stored)


def rules_of(settings: Mapping[str, Any]) -> Rules:
    """The `Rules` among settings by name; other names are left alone."""
    given = {name: settings[name] for name in RULE_NAMES if settings.get(name) is not None}
    for name, value in given.items():
        if name in WORDS:
            given[name] = text(name, value)
        else:
            given[name] = whole_number(name, value, 0) if name in WHOLE else number(name, value)
    return refuse_imports(Rules(**given))


def refuse_imports(rules: Rules) -> Rules:
    """The same rules, if they name only what jsam itself has.

    A server chooses the names and a client reads them. A name that makes the reader import a module would let the
    server choose which code runs on the client's machine.
    """
    mechanism, prior = text("mechanism", rules.mechanism), text("prior", rules.prior)
    if not _MECHANISM.fullmatch(mechanism):
        raise InputError(f"unknown mechanism {mechanism!r}; in a campaign it must be one of jsam's own")
    if not _PRIOR.fullmatch(prior):
        raise InputError(f"unknown prior {prior!r}; in a campaign it must be one of jsam's own")
    return rules
