"""Features of a data set, computed once and kept on disk with a checksum, beside the cache folder of the data."""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from jsam.errors import InputError, JsamError
from jsam.files import make_folder, write_atomically
from jsam.training.data import Dataset
from jsam.training.data.data_files import cache_folder
from jsam.training.features.record_features import Counted, ScatteringFeatures

logger = logging.getLogger("jsam")

VERSION = 1
"""The method by which records become features. Raise it when the same records would get other features."""


def with_features(
    dataset: Dataset,
    features: ScatteringFeatures,
    *,
    device: torch.device | str = "cpu",
    progress: Counted | None = None,
) -> Dataset:
    """The data set with features in place of its inputs, from the cache if they are there.

    A file that does not fit its checksum is computed again. A cache that cannot be written is no error.
    """
    if dataset.train_inputs.dtype != np.float32:
        raise InputError(f"data set {dataset.name} holds {dataset.train_inputs.dtype}; features are made of pictures")
    records = np.concatenate([dataset.train_inputs, dataset.test_inputs])
    shape = (len(records), features.size(dataset.input_shape))
    path = cache_folder().parent / "features" / f"{dataset.name}-{_key(records, features, device)}.f32"
    rows = _read(path, shape)
    if rows is None:
        rows = features.compute(records, device=device, progress=progress)
        _write(path, rows)
    return replace(dataset, train_inputs=rows[: dataset.num_train], test_inputs=rows[dataset.num_train :])


def _key(records: NDArray[np.float32], features: ScatteringFeatures, device: torch.device | str) -> str:
    """A hash of everything that the features' bytes depend on, as far as a resumed run may see it differ."""
    method = {
        "version": VERSION,
        "features": asdict(features),
        "device": torch.device(device).type,
        "torch": torch.__version__,
        "shape": records.shape,
    }
    digest = hashlib.sha256(json.dumps(method, sort_keys=True).encode())
    digest.update(records.data)
    return digest.hexdigest()[:32]


def _checksum_file(path: Path) -> Path:
    return path.with_suffix(".sha256")


def _read(path: Path, shape: tuple[int, int]) -> NDArray[np.float32] | None:
    """The features in the file, or None if it is not there or not as it was written."""
    try:
        rows = np.fromfile(path, dtype=np.float32)
        known = _checksum_file(path).read_text(encoding="ascii")
    except (OSError, ValueError):
        return None
    if rows.size != shape[0] * shape[1] or hashlib.sha256(rows.data).hexdigest() != known:
        return None
    return rows.reshape(shape)


def _write(path: Path, rows: NDArray[np.float32]) -> None:
    try:
        make_folder(path.parent)
        write_atomically(path, rows.data.cast("B"))
        write_atomically(_checksum_file(path), hashlib.sha256(rows.data).hexdigest().encode())
    except (OSError, JsamError) as error:
        logger.warning("features are not kept and will be computed again: %s", error)
