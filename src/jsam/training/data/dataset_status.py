"""What data sets are there, where, and whether their files are right: the table of `jsam data list`."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jsam.errors import DataError
from jsam.training.data.catalogue import EMBEDDED, SPECS
from jsam.training.data.data_files import DataSpec, data_folders
from jsam.training.data.fetching import find_root


@dataclass(frozen=True)
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
        return DatasetStatus(spec.name, spec.title, "embedded", None, "comes with jsam")
    folder = (root or roots[0]) / spec.folder
    if root is None:
        return DatasetStatus(spec.name, spec.title, "missing", folder, f"run: jsam data fetch {spec.name}")
    try:
        spec.verify(root)
    except DataError as error:
        return DatasetStatus(spec.name, spec.title, "wrong", folder, str(error))
    return DatasetStatus(spec.name, spec.title, "verified", folder, f"{len(spec.files)} files, checksums right")


def _embedded(name: str, title: str) -> DatasetStatus:
    if importlib.util.find_spec("sklearn") is None:
        return DatasetStatus(name, title, "missing", None, "run: pip install scikit-learn")
    return DatasetStatus(name, title, "embedded", None, "comes with scikit-learn")
