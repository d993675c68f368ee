"""The data sets that jsam knows: their files, published checksums, and the places that serve them."""

from __future__ import annotations

from typing import Literal

from jsam.errors import InputError
from jsam.training.data.data_files import DataSpec, Mirror, RawFile
from jsam.training.data.package_registries import CIFAR10_PACKAGES, MNIST_PACKAGES


def _files(algorithm: Literal["md5", "sha1"], known: dict[str, tuple[int, str]]) -> tuple[RawFile, ...]:
    """Files by name, with their sizes and checksums."""
    return tuple(
        RawFile(name=name, size=size, algorithm=algorithm, checksum=checksum)
        for name, (size, checksum) in known.items()
    )


_MNIST_MD5 = {
    "train-images-idx3-ubyte": (47_040_016, "6bbc9ace898e44ae57da46a324031adb"),
    "train-labels-idx1-ubyte": (60_008, "a25bea736e30d166cdddb491f175f624"),
    "t10k-images-idx3-ubyte": (7_840_016, "2646ac647ad5339dbf082846283269ea"),
    "t10k-labels-idx1-ubyte": (10_008, "27ae3e4e09519cfbb04c329615203637"),
}
_MNIST_ARCHIVES = tuple(f"{name}.gz" for name in _MNIST_MD5)

MNIST = DataSpec(
    name="mnist",
    title="MNIST handwritten digits, 60,000 + 10,000 grey images of 28x28, 10 classes",
    folder="mnist",
    files=_files("md5", _MNIST_MD5),
    # The authors' own page refuses downloads (403); these two hold the same files for TensorFlow and PyTorch.
    mirrors=(
        Mirror(url="https://storage.googleapis.com/cvdf-datasets/mnist/", archives=_MNIST_ARCHIVES),
        Mirror(url="https://ossci-datasets.s3.amazonaws.com/mnist/", archives=_MNIST_ARCHIVES),
    ),
    packages=MNIST_PACKAGES,
)

_CIFAR10_SHA1 = {
    "data_batch_1.bin": (30_730_000, "aadd24acce27caa71bf4b10992e9e7b2d74c2540"),
    "data_batch_2.bin": (30_730_000, "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795"),
    "data_batch_3.bin": (30_730_000, "1dd00a74ab1d17a6e7d73e185b69dbf31242f295"),
    "data_batch_4.bin": (30_730_000, "aab85764eb3584312d3c7f65fd2fd016e36a258e"),
    "data_batch_5.bin": (30_730_000, "26e2849e66a845b7f1e4614ae70f4889ae604628"),
    "test_batch.bin": (30_730_000, "67eb016db431130d61cd03c7ad570b013799c88c"),
}

CIFAR10 = DataSpec(
    name="cifar10",
    title="CIFAR-10, binary version, 50,000 + 10,000 colour images of 32x32, 10 classes",
    folder="cifar-10-batches-bin",
    files=_files("sha1", _CIFAR10_SHA1),
    mirrors=(Mirror(url="https://www.cs.toronto.edu/~kriz/", archives=("cifar-10-binary.tar.gz",)),),
    packages=CIFAR10_PACKAGES,
)

_WRITERS_MD5 = {
    "qmnist-train-labels-idx2-int.gz": (463_024, "0058f8dd561b90ffdd0f734c6a30e5e4"),
    "qmnist-test-labels-idx2-int.gz": (526_800, "5b5b05890a5e13444e108efe57b788aa"),
}

# From github.com/facebookresearch/qmnist; jsam carries what it needs of them, so that they are never downloaded.
WRITERS = DataSpec(
    name="mnist-writers",
    title="who wrote each MNIST digit (QMNIST's label files, 539 writers of training digits)",
    folder="mnist-writers",
    files=_files("md5", _WRITERS_MD5),
    mirrors=(),
    packages=(),
    embedded=True,
)

SPECS = {spec.name: spec for spec in (MNIST, CIFAR10, WRITERS)}
EMBEDDED = {"digits": "scikit-learn's digits, 1,500 + 297 grey images of 8x8, 10 classes"}


def spec_named(name: str) -> DataSpec:
    """The data set of that name among those that live in files."""
    try:
        return SPECS[name]
    except KeyError:
        raise InputError(f"data set {name!r} is unknown, must be one of {', '.join([*SPECS, *EMBEDDED])}") from None
