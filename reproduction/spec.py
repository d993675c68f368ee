"""Specifications: a TOML file a figure or table, which says what to run and in which order."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from jsam.errors import InputError
from jsam.sweeps.grid import combinations
from reproduction.config import RunConfig
from reproduction.paths import Places
from reproduction.tuned_settings import Chosen

KINDS = ("training", "tuning", "planner")


@dataclass(frozen=True, kw_only=True)
class Spec:
    """One experiment. `grids` come one after the other; within each, a whole sweep at one seed before the next."""

    id: str
    order: float
    title: str
    kind: str
    shows: str
    minutes: float = 0.0
    settings: Mapping[str, Any] = field(default_factory=dict)
    grids: Sequence[Mapping[str, Any]] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"{self.id}: kind is {self.kind!r}; it must be one of: {', '.join(KINDS)}")
        if not isinstance(self.order, int | float):
            raise InputError(f"{self.id}: order is {self.order!r}; it must be a number")
        if not all(isinstance(table, Mapping) for table in (self.settings, *self.grids)):
            raise InputError(f"{self.id}: settings must be a table, and grid a list of tables, [[grid]]")

    @classmethod
    def load(cls, path: Path) -> Spec:
        try:
            stored = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}") from error
        except ValueError as error:  # not TOML, or not even text
            raise InputError(f"{path} is not a specification: {error}") from error
        stored = {"grids" if name == "grid" else name: value for name, value in stored.items()}
        names = {part.name: part.default is MISSING and part.default_factory is MISSING for part in fields(cls)}
        lacking = [name for name, needed in names.items() if needed and name not in {"id", *stored}]
        unknown = [name for name in stored if name == "id" or name not in names]
        if lacking or unknown:
            wrong = f"it lacks {', '.join(lacking)}" if lacking else f"it has no use for {', '.join(unknown)}"
            raise InputError(f"{path} is not a specification: {wrong}")
        return cls(id=path.stem, **stored)

    def runs(self, chosen: Chosen) -> list[RunConfig]:
        """Every run once, the most wanted first; none for a planner's experiment, and none that waits for its step."""
        runs: dict[str, RunConfig] = {}
        try:
            for settings in self._combinations():
                if not chosen.lacks_step(settings):
                    config = RunConfig.from_dict(chosen.resolve(settings))
                    runs.setdefault(config.key, config)
        except InputError as error:
            raise InputError(f"{self.id}: {error}") from None
        return list(runs.values())

    def waiting(self, chosen: Chosen) -> list[dict[str, Any]]:
        """The settings of runs that want a learning rate of their own, which is not chosen yet."""
        waiting: list[dict[str, Any]] = []
        for settings in self._combinations():
            if chosen.lacks_step(settings) and settings not in waiting:
                waiting.append(settings)
        return waiting

    def _combinations(self) -> list[dict[str, Any]]:
        """None for a planner's experiment, whose settings mean other things."""
        grids = () if self.kind == "planner" else self.grids
        return [settings for grid in grids for settings in combinations({**self.settings, **grid})]


def load_specs(places: Places, ids: Sequence[str] = ()) -> list[Spec]:
    """The specifications of these names (or patterns), or all of them, in their order."""
    specs = sorted(map(Spec.load, places.specs.glob("*.toml")), key=lambda spec: (spec.order, spec.id))
    if not specs:
        raise InputError(f"{places.specs} has no specification, NAME.toml")
    for name in ids:
        if not any(fnmatch(spec.id, name) for spec in specs):
            known = " ".join(spec.id for spec in specs)
            raise InputError(f"there is no experiment {name!r}; there are: {known}")
    return [spec for spec in specs if not ids or any(fnmatch(spec.id, name) for name in ids)]
