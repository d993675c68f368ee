"""What data sets are there, where, and whether their files are right: the table of `jsam data list`."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jsam.errors import DataError
from jsam.training.data.catalogue import EMBEDDED, SPECS
from jsam.training.data.data_files import DataSpec, data_folders, read_verified
from jsam.training.data.fetching import find_root


@dataclass(frozen=True, kw_only=True)
class DatasetStatus:
    """One line of the list; `folder` is where the files are, or where they would go (None: inside a package)."""

    name: str
    title: str
    state: Literal["verified", "wrong", "missing", "embedded"]
    folder: Path | None
    detail: str


def describe_datasets(folders: Sequence[Path] | None = None) -> tuple[DatasetStatus, ...]:
    """Every known data set with its state; reads and checks all files that are there."""
    roots = data_folders() if folders is None else tuple(folders)
    return (*(_status(spec, roots) for spec in SPECS.values()), *(_embedded(*item) for item in EMBEDDED.items()))


def _status(spec: DataSpec, roots: Sequence[Path]) -> DatasetStatus:
    root = find_root(spec, roots)
    if root is None and spec.embedded:
        return DatasetStatus(name=spec.name, title=spec.title, state="embedded", folder=None, detail="comes with jsam")
    state: Literal["verified", "wrong", "missing"] = "verified"
    detail = f"{len(spec.files)} files, checksums right"
    if root is None:
        root, state, detail = roots[0], "missing", f"run: jsam data fetch {spec.name}"
    else:
        try:
            for raw in spec.files:
                read_verified(root / spec.folder / raw.name, raw)
        except DataError as error:
            state, detail = "wrong", str(error)
    return DatasetStatus(name=spec.name, title=spec.title, state=state, folder=root / spec.folder, detail=detail)


def _embedded(name: str, title: str) -> DatasetStatus:
    if importlib.util.find_spec("sklearn") is None:
        return DatasetStatus(
            name=name, title=title, state="missing", folder=None, detail="run: pip install scikit-learn"
        )
    return DatasetStatus(name=name, title=title, state="embedded", folder=None, detail="comes with scikit-learn")
