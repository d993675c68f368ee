"""Mechanisms by name: those of this package, and a user's own class as `package.module:Class`.

Every class of the folder `families` that has a `label` is known by it. A user's own class is known once
`import_mechanism` has imported it. Nothing else here imports a module, so a name that came from the network never does.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from typing import Any

from jsam.errors import InputError
from jsam.mechanism import families
from jsam.mechanism._modules import members_of
from jsam.mechanism.families import rivals
from jsam.mechanism.families.base import RangeMechanism
from jsam.mechanism.families.description import Description
from jsam.mechanism.families.own import OwnMechanism
from jsam.mechanism.weights import Weights

_OWN: dict[str, type[Any]] = {}


@cache
def _by_label() -> dict[str, Description]:
    """The classes of `families`: ours before the rivals, those that choose p first, then by what they ask for."""

    def place(said: Description) -> tuple[Any, ...]:
        rival = _labelled()[said.name].__module__.startswith(rivals.__name__)
        return rival, not said.chooses_probs, said.sized, len(said.needs), said.knows_sensitivities, said.name

    descriptions = [Description.of(label, mechanism) for label, mechanism in _labelled().items()]
    return {description.name: description for description in sorted(descriptions, key=place)}


@cache
def _labelled() -> dict[str, type[RangeMechanism]]:
    members = [*members_of(families), *members_of(rivals)]
    labelled = [value for value in members if isinstance(value, type) and vars(value).get("label")]
    for odd in (value for value in labelled if not issubclass(value, RangeMechanism)):
        raise TypeError(f"{odd.__module__}.{odd.__qualname__} has a label and is no RangeMechanism")
    return {value.label: value for value in labelled if issubclass(value, RangeMechanism)}


def mechanism_names() -> tuple[str, ...]:
    """The names of this package's mechanisms, with M standing for a number of clients and K for one of types."""
    return tuple(_by_label())


def is_of_this_package(mechanism: RangeMechanism) -> bool:
    """Whether its class is one of `families`; a user's own may change between two runs."""
    return _labelled().get(mechanism.label) is type(mechanism)


def description_of(name: str) -> Description:
    """What the mechanism of that name, as `fsbm-50` or `fsbm-M`, says of itself; an InputError lists the names."""
    label = _label_of(name)
    return Description.of(label, _OWN[label]) if label in _OWN else _by_label()[label]


def find_description(name: str) -> Description | None:
    """The same, or None for a name that this process does not know, as a stored result may have."""
    try:
        return description_of(name)
    except InputError:
        return None


def mechanism_named(name: str, **options: Any) -> RangeMechanism:
    """A mechanism from its name and its options, of which it gets those that it takes; others must be at the default.

    >>> mechanism_named("fsbm-50", loss_weight=5.0).name
    'fsbm-50'
    """
    label = _label_of(name)
    if description_of(name).spends_budget and options.get("budget") is None:
        raise InputError(f"{name} spends a budget and has no loss weight; set budget to what may be spent")
    if label in _OWN:
        return _own_mechanism(label, options)
    if label == name and _by_label()[label].sized:
        raise _unknown(name)
    for need in _by_label()[label].needs:
        if not need.in_market and options.get(need.argument) is None:
            raise InputError(f"{name} needs {need.argument} (a column `{need.column}`): how often each is drawn")
    if label != name:
        options["num_types" if label.endswith("-K") else "num_selected"] = int(name.rpartition("-")[2])
    mechanism = _labelled()[label]
    for option in options.keys() - {field.name for field in fields(mechanism)}:
        raise InputError(f"{name} takes no {option}; leave it out, or take another mechanism")
    return mechanism(**options)


def import_mechanism(name: str) -> type[Any]:
    """Import the user's own class `package.module:Class`, so that this process knows the name from then on.

    Only for a name that the user of this machine wrote: importing runs code. Modules in the working folder count too.
    """
    module_name, _, class_name = name.partition(":")
    if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", name):
        raise InputError(f"mechanism {name!r} must be written package.module:Class")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        own = getattr(importlib.import_module(module_name), class_name, None)
    except Exception as error:  # a user's module may raise anything
        raise InputError(f"mechanism {name!r}: cannot import {module_name}: {type(error).__name__}: {error}") from error
    if not isinstance(own, type):
        raise InputError(f"mechanism {name!r}: module {module_name} has no class {class_name}")
    lacking = [method for method in ("plan", "respond") if not callable(getattr(own, method, None))]
    unwritten = sorted(getattr(own, "__abstractmethods__", ()))
    if lacking or unwritten:
        what = f"lacks {lacking[0]}()" if lacking else f"leaves {unwritten[0]}() open"
        raise InputError(f"mechanism {name!r} {what}; a mechanism has name, truthful, plan and respond")
    _OWN[name] = own
    return own


def _own_mechanism(name: str, options: dict[str, Any]) -> RangeMechanism:
    """A user's mechanism with the options that its class takes."""
    own = _OWN[name]
    parameters = inspect.signature(own).parameters
    defaults = {field.name: field.default for field in fields(Weights)}
    takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    given = {key: value for key, value in options.items() if takes_all or key in parameters}
    if getattr(own, "spends_budget", False) and "loss_weight" not in given:
        options = {key: value for key, value in options.items() if key != "loss_weight"}
    for key, value in options.items():
        if key not in given and value != defaults.get(key, MISSING):
            taken = [key for key in parameters if key in defaults]
            raise InputError(f"mechanism {name!r} takes no {key}; it takes: {' '.join(taken) or 'none of the weights'}")
    try:
        made = own(**given)
    except TypeError as error:
        raise InputError(f"mechanism {name!r} cannot be made: {error}") from error
    if isinstance(made, RangeMechanism):
        return made
    if not (isinstance(getattr(made, "name", None), str) and isinstance(getattr(made, "truthful", None), bool)):
        raise InputError(f"mechanism {name!r} needs a name, which is text, and truthful, which is True or False")
    weights = {"loss_weight": 1.0} | {key: value for key, value in given.items() if key in defaults}

    def remade(changed: Mapping[str, Any]) -> Any:
        return own(**given | {key: value for key, value in changed.items() if key in given})

    return OwnMechanism(make=remade, **weights)


def _label_of(name: str) -> str:
    """The label of the class that a name stands for."""
    if name in _OWN:
        return name
    sized = re.fullmatch(r"([a-z-]+)-\d+", name)
    for label in [f"{sized[1]}-M", f"{sized[1]}-K"] if sized else [name]:
        if label in _by_label():
            return label
    raise _unknown(name)


def _unknown(name: str) -> InputError:
    known = " ".join(description.example for description in _by_label().values())
    own = "; a class of your own is package.module:Class where commands take a mechanism" if ":" in name else ""
    return InputError(f"unknown mechanism {name!r}; allowed: {known} (any number for 50){own}")
