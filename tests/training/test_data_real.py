"""The real data sets: loaded, checked, and dealt out. `jsam data fetch` puts them there."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
from numpy.typing import NDArray

from jsam.errors import ChecksumError, DataError, InputError, MissingDataError, NotSupportedError
from jsam.training.data import Dataset, load_dataset, load_writers, loading
from jsam.training.data.catalogue import MNIST, WRITERS
from jsam.training.data.data_files import data_folders
from jsam.training.data.fetching import find_root
from jsam.training.data.loading import _MNIST_PIXELS, Writers
from jsam.training.partition import partition


def _unavailable(reason: str) -> NoReturn:
    if os.environ.get("JSAM_REQUIRE_ALL") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def _loaded(name: str) -> Dataset:
    try:
        return load_dataset(name)
    except (MissingDataError, NotSupportedError) as error:
        _unavailable(str(error))


@pytest.fixture(scope="module")
def mnist() -> Dataset:
    return _loaded("mnist")


@pytest.fixture(scope="module")
def writers(mnist: Dataset) -> Writers:
    return load_writers()


@pytest.fixture(scope="module")
def mnist_root(mnist: Dataset) -> Path:
    root = find_root(MNIST, data_folders())
    assert root is not None
    return root


def test_mnist_has_its_known_shape_and_class_sizes(mnist: Dataset) -> None:
    assert mnist.train_inputs.shape == (60_000, 1, 28, 28)
    assert mnist.test_inputs.shape == (10_000, 1, 28, 28)
    assert mnist.train_inputs.dtype == np.float32
    assert mnist.train_inputs.flags.c_contiguous
    known = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(mnist.train_targets).tolist() == known
    assert mnist.train_targets[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]


def test_mnist_pixels_are_normalised_by_the_published_constants(mnist: Dataset, mnist_root: Path) -> None:
    """Against the raw bytes of the file, read here by hand."""
    raw = np.fromfile(mnist_root / "mnist" / "t10k-images-idx3-ubyte", np.uint8, offset=16).reshape(10_000, 1, 28, 28)
    ((mean, deviation),) = _MNIST_PIXELS
    np.testing.assert_allclose(mnist.test_inputs, (raw / 255 - mean) / deviation, rtol=1e-6, atol=1e-7)
    assert abs(float(mnist.train_inputs.mean())) < 1e-3
    assert abs(float(mnist.train_inputs.std()) - 1) < 1e-3


def test_one_flipped_bit_in_a_data_folder_is_one_line_naming_the_file(mnist_root: Path, tmp_path: Path) -> None:
    shutil.copytree(mnist_root / "mnist", tmp_path / "mnist")
    path = tmp_path / "mnist" / "t10k-labels-idx1-ubyte"
    content = bytearray(path.read_bytes())
    content[5000] ^= 1
    path.write_bytes(content)
    with pytest.raises(ChecksumError, match="t10k-labels-idx1-ubyte: wrong md5 checksum") as got:
        load_dataset("mnist", tmp_path)
    assert str(tmp_path) in str(got.value)
    assert "\n" not in str(got.value)


def test_an_absent_data_set_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="train-images-idx3-ubyte is missing; run: jsam data fetch mnist"):
        load_dataset("mnist", tmp_path)
    with pytest.raises(InputError, match="'imagenet' is unknown, must be one of mnist, cifar10, digits"):
        load_dataset("imagenet")


def test_cifar10_has_its_known_shape_balance_and_first_image() -> None:
    cifar = _loaded("cifar10")
    assert cifar.train_inputs.shape == (50_000, 3, 32, 32)
    assert cifar.test_inputs.shape == (10_000, 3, 32, 32)
    assert np.bincount(cifar.train_targets).tolist() == [5000] * 10
    assert np.bincount(cifar.test_targets).tolist() == [1000] * 10
    # The first training image is a frog; its first pixel is (59, 62, 63).
    assert cifar.train_targets[0] == 6
    means, deviations = np.array([0.4914, 0.4822, 0.4465]), np.array([0.2470, 0.2435, 0.2616])
    np.testing.assert_allclose(
        cifar.train_inputs[0, :, 0, 0] * deviations + means, [59 / 255, 62 / 255, 63 / 255], atol=1e-6
    )
    assert np.abs(cifar.train_inputs.mean(axis=(0, 2, 3))).max() < 1e-3


def test_digits_split_the_same_way_every_time_and_evenly_over_classes() -> None:
    first, again = _loaded("digits"), _loaded("digits")
    assert (first.num_train, first.num_test, first.input_shape) == (1500, 297, (1, 8, 8))
    assert np.array_equal(first.test_inputs, again.test_inputs)
    assert set(np.bincount(first.test_targets).tolist()) == {29, 30}
    whole = np.concatenate([first.train_inputs, first.test_inputs]).reshape(1797, -1)
    assert abs(float(whole.mean())) < 1e-3
    assert abs(float(whole.std()) - 1) < 1e-3


def test_every_mnist_image_has_a_writer_and_nobody_wrote_for_both_parts(writers: Writers) -> None:
    assert writers.train_writers.shape == (60_000,)
    assert writers.test_writers.shape == (10_000,)
    assert len(np.unique(writers.train_writers)) == 539
    assert len(np.intersect1d(writers.train_writers, writers.test_writers)) == 0


def test_each_embedded_writer_goes_with_the_image_that_qmnist_says(mnist: Dataset, tmp_path: Path) -> None:
    """MNIST's labels beside the embedded writers have the checksum of the digit and writer columns of QMNIST's files.

    Where the label files themselves are there, their writers are compared too.
    """
    writers = load_writers(tmp_path)
    pairs = hashlib.sha256()
    for targets, people in (
        (mnist.train_targets, writers.train_writers),
        (mnist.test_targets, writers.test_writers),
    ):
        pairs.update(np.column_stack([targets, people]).astype("<i4").tobytes())
    assert pairs.hexdigest() == "4b2d84d2a260631084ed6c857af7314b00251b663d7446c068cfbaa5835bd0c3"
    if find_root(WRITERS, data_folders()) is not None:
        published = load_writers()
        assert np.array_equal(writers.train_writers, published.train_writers)
        assert np.array_equal(writers.test_writers, published.test_writers)


def test_embedded_writers_filled_in_whole_forms(mnist: Dataset, tmp_path: Path) -> None:
    """A form asks for each digit equally often, so writers' digits vary less than by chance, unless one image off.

    Measured 0.26 of the chance variation, and 0.95 when shifted.
    """

    def variation(people: NDArray[np.int64]) -> float:
        _, rows = np.unique(people, return_inverse=True)
        counts = np.zeros((539, 10))
        np.add.at(counts, (rows, mnist.train_targets), 1)
        expected = counts.sum(axis=1, keepdims=True) * counts.sum(axis=0) / counts.sum()
        return float(((counts - expected) ** 2 / expected).sum() / (538 * 9))

    people = load_writers(tmp_path).train_writers
    assert variation(people) < 0.3
    assert variation(np.roll(people, 1)) > 0.9


def test_an_embedded_file_that_was_changed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "_WRITERS_SHA256", "0" * 64)
    with pytest.raises(DataError, match=r"mnist_writers\.npz: wrong sha256 checksum .* install jsam again"):
        load_writers(tmp_path)


def _label_file(digits: NDArray[np.int64], people: NDArray[np.int64]) -> bytes:
    """A file in the form of QMNIST's label files: idx of 32-bit integers, the digit in column 0, its writer in 2."""
    table = np.zeros((len(digits), 8), dtype=">i4")
    table[:, 0], table[:, 2] = digits, people
    return gzip.compress(b"\0\0\x0c\x02" + np.array(table.shape, dtype=">u4").tobytes() + table.tobytes(), 1)


def test_label_files_in_the_data_folder_win_and_must_fit_mnist(
    mnist: Dataset, mnist_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Label files of other writers: refused for their checksums; with these forged, taken if the digits are MNIST's."""
    (tmp_path / "mnist-writers").mkdir()
    (tmp_path / "mnist").symlink_to(mnist_root / "mnist")
    train, test = (tmp_path / "mnist-writers" / raw.name for raw in WRITERS.files)
    train.write_bytes(_label_file(mnist.train_targets, np.arange(60_000)))
    assert load_writers(tmp_path).train_writers.max() < 60_000 - 1  # one of two files is no set
    further = np.concatenate([mnist.test_targets, np.zeros(50, dtype=np.int64)])
    test.write_bytes(_label_file(further, np.arange(len(further))))
    with pytest.raises(ChecksumError, match=r"qmnist-train-labels-idx2-int\.gz: wrong md5 checksum"):
        load_writers(tmp_path)
    monkeypatch.setattr(loading, "read_verified", lambda path, raw: path.read_bytes())
    own = load_writers(tmp_path)
    assert np.array_equal(own.train_writers, np.arange(60_000))
    assert np.array_equal(own.test_writers, np.arange(10_000))
    test.write_bytes(train.read_bytes())
    with pytest.raises(DataError, match=r"qmnist-test-labels-idx2-int\.gz: its digits are not MNIST's"):
        load_writers(tmp_path)


def test_a_writer_partition_gives_each_person_all_and_only_their_digits(mnist: Dataset, writers: Writers) -> None:
    everyone = partition(mnist.train_targets, scheme="writer", writers=writers.train_writers, seed=3)
    assert everyone.num_clients == 539
    assert sum(everyone.sizes) == 60_000
    assert len(set(everyone.sizes)) > 10
    assert all(len(np.unique(writers.train_writers[held])) == 1 for held in everyone.indices)
    some = partition(mnist.train_targets, num_clients=100, scheme="writer", writers=writers.train_writers, seed=3)
    assert some.num_clients == 100
    for held in some.indices:
        (person,) = np.unique(writers.train_writers[held])
        assert len(held) == (writers.train_writers == person).sum()


@pytest.mark.parametrize("similarity", [0, 30, 70, 100])
def test_the_papers_split_of_mnist(mnist: Dataset, similarity: int) -> None:
    """100 clients, 600 samples each, every sample used; beyond the uniform share each client sees two digits."""
    split = partition(mnist.train_targets, num_clients=100, similarity=similarity, seed=0)
    assert set(split.sizes) == {600}
    assert np.array_equal(np.sort(np.concatenate(split.indices)), np.arange(60_000))
    counts = np.sort(split.label_counts(mnist.train_targets), axis=1)
    if similarity == 0:
        assert ((counts > 0).sum(axis=1) == 2).all()
        assert counts[:, -2].min() > 250
    main_two = counts[:, -2:].sum(axis=1).mean() / 600
    # Two of ten digits make a fifth of the uniform share, a bit more as these are the two largest counts.
    expected = (100 - similarity) / 100 + 0.2 * similarity / 100
    assert expected - 0.01 < main_two < expected + 0.06
