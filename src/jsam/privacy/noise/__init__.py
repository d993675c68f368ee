"""Noise rules by name: each is one module of this folder, with its calibration and its accountant."""

from __future__ import annotations

import sys
from dataclasses import fields
from functools import cache
from typing import Any

from jsam.errors import InputError
from jsam.mechanism._modules import members_of
from jsam.privacy.noise.base import NoiseRule
from jsam.privacy.noise.exact import Exact
from jsam.privacy.noise.lemma1 import Lemma1, needed_c2

__all__ = ["Exact", "Lemma1", "NoiseRule", "needed_c2", "noise_names", "noise_rule"]


@cache
def _rules() -> dict[str, type[NoiseRule]]:
    classes: list[type[Any]] = [value for value in members_of(sys.modules[__name__]) if isinstance(value, type)]
    return {rule.label: rule for rule in classes if isinstance(vars(rule).get("label"), str)}


def noise_names() -> tuple[str, ...]:
    """The names of all noise rules."""
    return tuple(_rules())


def noise_rule(noise: str, c2: float | None = None) -> NoiseRule:
    """The rule of this name; a constant is for the rules that have a field of its name, and for them alone."""
    rules = _rules()
    if noise not in rules:
        raise InputError(f"noise is {noise!r}; it must be one of: {', '.join(rules)}")
    with_c2 = [name for name, rule in rules.items() if "c2" in {f.name for f in fields(rule)}]  # type: ignore[arg-type]
    if noise in with_c2:
        if c2 is None:
            raise InputError(
                f"noise is {noise!r} without c2; the paper gives no value, so one must be chosen (above 0)"
            )
        return rules[noise](c2=c2)  # type: ignore[call-arg]  # a field, as was just seen
    if c2 is not None:
        others = " or ".join(map(repr, with_c2))
        raise InputError(f"c2 is {c2:g} with noise {noise!r}; only noise {others} takes it")
    return rules[noise]()
