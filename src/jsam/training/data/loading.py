"""Data sets as arrays, each file checked against its published checksum on every load."""

from __future__ import annotations

import hashlib
import importlib
import importlib.resources
import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jsam.errors import DataError, InputError, MissingDataError, NotSupportedError
from jsam.training.data.catalogue import CIFAR10, MNIST, WRITERS
from jsam.training.data.data_files import DataSpec, data_folders, gunzipped, parse_idx, read_verified
from jsam.training.data.dataset import Dataset
from jsam.training.data.fetching import find_root

_Part = tuple[NDArray[np.float32], NDArray[np.int64]]
"""Inputs and labels."""

# Published means and deviations of the training pixels: public constants, so that normalising spends no privacy.
_MNIST_PIXELS = ((0.1307, 0.3081),)
_CIFAR10_PIXELS = ((0.4914, 0.2470), (0.4822, 0.2435), (0.4465, 0.2616))
_DIGITS_PIXELS = ((0.3053, 0.3760),)
_DIGITS_SHA256 = "87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826"
_DIGITS_TEST, _DIGITS_ALL = 297, 1797
_IMAGES_AT_ONCE = 2000
_MOST_LABELS = 4 << 20  # bytes of a file of QMNIST's labels, which has 1,920,012
_WRITERS_NAME = "mnist_writers.npz"
_WRITERS_SHA256 = "4dd40943e3f2cae68ff0f3a1c73a5a03c2cf100c5ee8f4d834e5b9b1cc3bbd49"


def load_dataset(name: str, folder: Path | str | None = None) -> Dataset:
    """A data set by name, from `folder` or else from $JSAM_DATA_DIR or the cache folder."""
    try:
        load = _LOADERS[name]
    except KeyError:
        raise InputError(f"data set {name!r} is unknown, must be one of {', '.join(_LOADERS)}") from None
    return load(folder)


def _roots(folder: Path | str | None) -> tuple[Path, ...]:
    return data_folders() if folder is None else (Path(folder),)


def _located(spec: DataSpec, folder: Path | str | None) -> Path:
    roots = _roots(folder)
    root = find_root(spec, roots)
    if root is None:
        lacks = roots[0] / spec.folder / spec.missing(roots[0])[0].name
        raise MissingDataError(f"{spec.name}: {lacks} is missing; run: jsam data fetch {spec.name}")
    return root


def _read(spec: DataSpec, root: Path, index: int) -> bytes:
    return read_verified(root / spec.folder / spec.files[index].name, spec.files[index])


def _of_ten_classes(name: str, train: _Part, test: _Part) -> Dataset:
    (x, y), (test_x, test_y) = train, test
    return Dataset(name=name, train_inputs=x, train_targets=y, test_inputs=test_x, test_targets=test_y, num_classes=10)


def _mnist(folder: Path | str | None) -> Dataset:
    root = _located(MNIST, folder)

    def images(index: int) -> NDArray[np.float32]:
        pixels = parse_idx(_read(MNIST, root, index), what=MNIST.files[index].name)
        return _normalised([pixels[:, None]], len(pixels), _MNIST_PIXELS, 255)

    train, test = ((images(index), _mnist_labels(root, index + 1)) for index in (0, 2))
    return _of_ten_classes("mnist", train, test)


def _mnist_labels(root: Path, index: int) -> NDArray[np.int64]:
    return parse_idx(_read(MNIST, root, index), what=MNIST.files[index].name).astype(np.int64)


def _cifar10(folder: Path | str | None) -> Dataset:
    root = _located(CIFAR10, folder)

    def part(indices: range) -> _Part:
        labels = []

        def images() -> Iterable[NDArray[np.uint8]]:
            for index in indices:
                records = np.frombuffer(_read(CIFAR10, root, index), dtype=np.uint8).reshape(10_000, 3073)
                labels.append(records[:, 0].astype(np.int64))
                yield records[:, 1:].reshape(10_000, 3, 32, 32)

        return _normalised(images(), 10_000 * len(indices), _CIFAR10_PIXELS, 255), np.concatenate(labels)

    return _of_ten_classes("cifar10", part(range(5)), part(range(5, 6)))


def _digits(folder: Path | str | None) -> Dataset:  # noqa: ARG001 - all loaders are called alike
    try:
        embedded: Any = importlib.import_module("sklearn.datasets").load_digits()
    except ImportError:
        raise NotSupportedError("data set digits needs scikit-learn: pip install scikit-learn") from None
    pixels = np.ascontiguousarray(embedded.images, dtype=np.uint8)
    labels = np.ascontiguousarray(embedded.target, dtype=np.int64)
    if hashlib.sha256(pixels.tobytes() + labels.astype(np.uint8).tobytes()).hexdigest() != _DIGITS_SHA256:
        raise DataError("data set digits: this scikit-learn carries other digits than the 1,797 known ones")
    inputs = _normalised([pixels[:, None]], len(pixels), _DIGITS_PIXELS, 16)
    test = _spread_over_classes(labels)
    return _of_ten_classes("digits", (inputs[~test], labels[~test]), (inputs[test], labels[test]))


def _spread_over_classes(labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """About a sixth of each class, spread evenly along the file, where neighbours come from one writer."""
    chosen = np.zeros(len(labels), dtype=np.bool_)
    for label in range(10):
        members = np.flatnonzero(labels == label)
        count = round(len(members) * _DIGITS_TEST / _DIGITS_ALL)
        chosen[members[((np.arange(count) + 0.5) * len(members) / count).astype(np.int64)]] = True
    return chosen


def _normalised(
    parts: Iterable[NDArray[Any]], count: int, channels: tuple[tuple[float, float], ...], highest: int
) -> NDArray[np.float32]:
    """Byte images (N, C, H, W) as float32 by a table per channel; few at a time, since numpy widens table indices."""
    tables = [((np.arange(256) / highest - mean) / deviation).astype(np.float32) for mean, deviation in channels]
    result: NDArray[np.float32] | None = None
    offset = 0
    for images in parts:
        if result is None:
            result = np.empty((count, *images.shape[1:]), dtype=np.float32)
        for start in range(0, len(images), _IMAGES_AT_ONCE):
            some = images[start : start + _IMAGES_AT_ONCE]
            for channel, table in enumerate(tables):
                result[offset + start : offset + start + len(some), channel] = table[some[:, channel]]
        offset += len(images)
    assert result is not None
    assert offset == count
    return result


@dataclass(frozen=True, kw_only=True, eq=False)
class Writers:
    """Who wrote each MNIST image, in MNIST's order: NIST's writer numbers, 539 of them among the training images."""

    train_writers: NDArray[np.int64]
    test_writers: NDArray[np.int64]


def load_writers(folder: Path | str | None = None) -> Writers:
    """MNIST's writers: from QMNIST's label files where a data folder has them, else from the copy inside jsam.

    Label files are checked digit by digit against MNIST's labels. The copy needs no MNIST: its checksum and that of
    MNIST's labels fix which image each writer belongs to.
    """
    root = find_root(WRITERS, _roots(folder))
    return _embedded_writers() if root is None else _writers_of_label_files(root, _located(MNIST, folder))


def _embedded_writers() -> Writers:
    content = importlib.resources.files("jsam.training.data").joinpath(_WRITERS_NAME).read_bytes()
    if hashlib.sha256(content).hexdigest() != _WRITERS_SHA256:
        raise DataError(f"{_WRITERS_NAME}: wrong sha256 checksum of jsam's own file; install jsam again")
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return Writers(train_writers=arrays["train"].astype(np.int64), test_writers=arrays["test"].astype(np.int64))


def _writers_of_label_files(root: Path, mnist_root: Path) -> Writers:
    columns = []
    for index, (label_index, count) in enumerate(((1, 60_000), (3, 10_000))):
        name = WRITERS.files[index].name
        table = parse_idx(gunzipped(_read(WRITERS, root, index), _MOST_LABELS, name), what=name)
        # QMNIST's test file goes on with 50,000 digits that MNIST lost; the first 10,000 are MNIST's.
        if not np.array_equal(table[:count, 0], _mnist_labels(mnist_root, label_index)):
            raise DataError(f"{root / WRITERS.folder / name}: its digits are not MNIST's")
        columns.append(table[:count, 2].astype(np.int64))
    return Writers(train_writers=columns[0], test_writers=columns[1])


_LOADERS: dict[str, Callable[[Path | str | None], Dataset]] = {"mnist": _mnist, "cifar10": _cifar10, "digits": _digits}
