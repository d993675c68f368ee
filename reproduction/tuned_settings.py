"""The settings that the paper does not give, in one file that every specification reads."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsam.errors import InputError

CHOSEN, OWN, OWN_OR_CHOSEN = "chosen", "own", "own or chosen"
STEPS = "learning_rate_at"


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """Values by noise rule and data set: `[lemma1.mnist]` before `[lemma1]` before the top of the file.

    A table such as `[exact.mnist.learning_rate_at.jsam]` has learning rates of one mechanism by cost, for runs that ask
    for their own.
    """

    values: Mapping[str, Any]
    where: str = "chosen.toml"

    @classmethod
    def load(cls, path: Path) -> Chosen:
        try:
            return cls(values=tomllib.loads(path.read_text(encoding="utf-8")), where=str(path))
        except OSError as error:
            # No advice to choose: what no rule chooses stands in it too.
            raise InputError(f"{path} cannot be read: {error.strerror}; a checkout of jsam has it") from error
        except ValueError as error:  # not TOML, or not even text
            raise InputError(f"{path} is not TOML: {error}") from error

    def value(self, name: str, *, noise: str, dataset: str) -> Any:
        for table in (self._table(noise, dataset), self._table(noise), self.values):
            if name in table:
                return table[name]
        raise InputError(f"{self.where} has no {name} for noise {noise!r} and data set {dataset!r}")

    def step(self, settings: Mapping[str, Any]) -> float | None:
        """The learning rate of this variant of a mechanism at this cost; None where none was chosen."""
        try:
            variant = variant_key(str(settings["mechanism"]), settings.get("max_selection_prob"))
            cost = cost_key(float(settings["cost"]))
        except (KeyError, TypeError, ValueError):
            raise InputError("a learning rate of its own takes a mechanism and a cost, a number") from None
        rate = self._table(str(settings.get("noise")), str(settings.get("dataset")), STEPS, variant).get(cost)
        return None if rate is None else float(rate)

    def _table(self, *names: str) -> Mapping[str, Any]:
        """A table within tables; an empty one where there is none."""
        table = self.values
        for depth, name in enumerate(names, start=1):
            inner = table.get(name, {})
            if not isinstance(inner, Mapping):
                raise InputError(f"{self.where}: {'.'.join(names[:depth])} is {inner!r}; it must be a table")
            table = inner
        return table

    def lacks_step(self, settings: Mapping[str, Any]) -> bool:
        """Whether this run wants a learning rate of its own, and none was chosen yet."""
        return settings.get("learning_rate") == OWN and self.step(settings) is None

    def resolve(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The settings with every "chosen" replaced by the value, and a learning rate "own" by that of the variant.

        "own or chosen" is the common one where the variant has none.
        """
        own = self.step(settings) if settings.get("learning_rate") in (OWN, OWN_OR_CHOSEN) else None
        if own is not None:
            settings = {**settings, "learning_rate": own}
        noise, dataset = str(settings.get("noise")), str(settings.get("dataset"))
        return {
            name: self.value(name, noise=noise, dataset=dataset) if value in (CHOSEN, OWN, OWN_OR_CHOSEN) else value
            for name, value in settings.items()
        }


def variant_key(mechanism: str, cap: float | None) -> str:
    """A mechanism, with its cap on p if it has one."""
    return mechanism if cap is None else f"{mechanism}-cap-{cap:g}"


def cost_key(cost: float) -> str:
    return f"{cost:g}"


def toml_text(values: Mapping[str, Any], heading: str = "") -> str:
    """Nested tables of plain values as TOML (the standard library only reads it).

    >>> print(toml_text({"a": 1.5, "b": {"c": "x", "d": {"e": True}}}), end="")
    a = 1.5
    <BLANKLINE>
    [b]
    c = "x"
    <BLANKLINE>
    [b.d]
    e = true
    """
    plain = {name: value for name, value in values.items() if not isinstance(value, Mapping)}
    tables = {name: value for name, value in values.items() if isinstance(value, Mapping)}
    text = f"\n[{heading}]\n" if heading else ""
    text += "".join(f"{_toml_key(name)} = {_toml_value(value)}\n" for name, value in plain.items())
    prefix = f"{heading}." if heading else ""
    return text + "".join(toml_text(table, prefix + _toml_key(name)) for name, table in tables.items())


def _toml_key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else f'"{name}"'


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml_value(item) for item in value)}]"
    return repr(value)
