"""What comes from elsewhere cannot make us take more memory, disk or time than the true thing would."""

from __future__ import annotations

import gzip
import hashlib
import io
import struct
import tarfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jsam.errors import ChecksumError, DataError, UnsafePickleError
from jsam.training.data.data_files import (
    DataSpec,
    RawFile,
    gunzipped,
    install,
    open_tar,
    parse_idx,
    read_verified,
)
from jsam.training.data.fetching import _unpack
from jsam.training.data.unpickle import MOST_INSTRUCTIONS, load_arrays

MEGABYTE = 1 << 20
ARRAY = (
    b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tS'b'\ntR(K\x01(K\x02tcnumpy\ndtype\n"
    b"(S'f4'\nK\x00K\x01tR(K\x03S'<'\nNNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T\x08\x00\x00\x00"
    + np.array([1.5, 2.5], dtype=np.float32).tobytes()
    + b"tb"
)


@pytest.fixture
def traced() -> Iterator[Any]:
    """The most memory that was taken at once since the test began, by Python and numpy."""
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


BOMBS = {
    "a memory of 2^31 places": b"\x80\x02Nr" + struct.pack("<I", 2**31) + b".",
    "a bytearray of 2^31": b"\x80\x05\x96" + struct.pack("<Q", 2**31) + b"x.",
    "bytes of 2^40": b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b"x.",
    "bytes of 255 MB that are not there": b"B" + struct.pack("<I", 255 * MEGABYTE) + b"x.",
    "a frame of 2^40": b"\x80\x04\x95" + struct.pack("<Q", 2**40) + b"N.",
    "a text of 2^31": b"X" + struct.pack("<I", 2**31) + b"x.",
    "a million tuples in each other": b"N" + b"\x85" * 10**6 + b".",
    "ten million marks": b"(" * 10**7 + b".",
    "a number of a million bytes": b"\x80\x02\x8b" + struct.pack("<i", 10**6) + b"\x7f" * 10**6 + b".",
    "a number of 255 bytes": b"\x8a\xff" + b"\x7f" * 255 + b".",
    "a number of a million digits": b"L" + b"9" * 10**6 + b"L\n.",
    "a name without an end": b"c" + b"n" * 10**6,
    "a tuple doubled 60 times": ARRAY + b"2\x86" * 60 + b".",
    "a tuple doubled 60 times from memory": ARRAY + b"".join(b"q\x01h\x01\x86" for _ in range(60)) + b".",
    "five thousand remembered values": b"".join(b"Nr" + struct.pack("<I", k) for k in range(5000)) + b".",
    "a list": b"]K\x01a.",
    "a dictionary": b"}.",
    "an array of 100 dimensions": ARRAY.replace(b"(K\x02t", b"(" + b"K\x01" * 99 + b"K\x02t") + b".",
}


def test_the_array_of_the_bombs_is_one() -> None:
    """Or nothing would be shown by their being refused."""
    np.testing.assert_array_equal(load_arrays(io.BytesIO(ARRAY + b"."), limit_bytes=MEGABYTE, what="x"), [1.5, 2.5])


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_pickle_that_asks_for_much_is_refused_before_it_gets_it(bomb: str, traced: Any) -> None:
    before = traced()
    with pytest.raises(UnsafePickleError, match="refused"):
        load_arrays(io.BytesIO(BOMBS[bomb]), limit_bytes=256 * MEGABYTE, what="x")
    assert traced() - before < 4 * MEGABYTE


def test_a_packed_pickle_takes_no_room_for_what_is_not_there(traced: Any) -> None:
    """gzip's reader makes room for as much as it is asked for."""
    packed = gzip.compress(b"B" + struct.pack("<I", 255 * MEGABYTE) + b"x.")
    before = traced()
    with gzip.open(io.BytesIO(packed)) as stream, pytest.raises(UnsafePickleError, match="ends too early"):
        load_arrays(stream, limit_bytes=256 * MEGABYTE, what="x")
    assert traced() - before < 8 * MEGABYTE


def test_instructions_are_counted() -> None:
    content = b"N0" * (MOST_INSTRUCTIONS // 2) + ARRAY + b"."
    with pytest.raises(UnsafePickleError, match="more than 10000 instructions"):
        load_arrays(io.BytesIO(content), limit_bytes=MEGABYTE, what="x")


def _raw(content: bytes, name: str = "raw") -> RawFile:
    return RawFile(name=name, size=len(content), algorithm="md5", checksum=hashlib.md5(content).hexdigest())


def test_no_more_than_its_published_size_is_written_of_a_file(tmp_path: Path) -> None:
    """400 MB of zeros from 400 kB: the writing stops after the first chunk that is too much."""
    taken: list[int] = []

    def zeros() -> Iterator[bytes]:
        for _ in range(400):
            taken.append(sum(path.stat().st_size for path in tmp_path.iterdir()))
            yield bytes(MEGABYTE)

    with pytest.raises(ChecksumError, match="checksum of what was fetched is wrong"):
        install(tmp_path, _raw(b"\0" * 10_008), zeros())
    assert len(taken) == 1
    assert list(tmp_path.iterdir()) == []


def test_an_archive_that_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    small = _raw(b"\0" * 1000, "labels")
    spec = DataSpec(name="d", title="", folder="d", files=(small,), mirrors=(), packages=())
    (tmp_path / "d").mkdir()
    (tmp_path / "labels.gz").write_bytes(gzip.compress(bytes(20 * MEGABYTE)))
    with pytest.raises(ChecksumError):
        _unpack(spec, "labels.gz", tmp_path / "labels.gz", tmp_path)
    assert list((tmp_path / "d").iterdir()) == []


def test_a_tar_that_unpacks_to_too_much_is_not_opened(tmp_path: Path) -> None:
    """Also where the bulk is in a member that nobody wants: it would be unpacked to get past it."""
    path = tmp_path / "a.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, size in (("unwanted", 3 * MEGABYTE), ("wanted", 3)):
            member = tarfile.TarInfo(name)
            member.size = size
            tar.addfile(member, io.BytesIO(bytes(size)))
    with open_tar(path) as tar:
        assert tar.getnames() == ["unwanted", "wanted"]
    with pytest.raises(ValueError, match="unpacks to more than 1048576 bytes"):
        open_tar(path, MEGABYTE)


def test_a_file_of_another_size_is_not_read(tmp_path: Path, traced: Any) -> None:
    with (tmp_path / "raw").open("wb") as file:
        file.truncate(1 << 40)
    before = traced()
    with pytest.raises(ChecksumError, match=r"1099511627776 bytes, 6 expected"):
        read_verified(tmp_path / "raw", _raw(b"pixels"))
    assert traced() - before < MEGABYTE


def test_bytes_that_unpack_to_too_much_are_refused(traced: Any) -> None:
    packed, before = gzip.compress(bytes(50 * MEGABYTE)), traced()
    tracemalloc.reset_peak()
    with pytest.raises(DataError, match="unpacks to more than 1000 bytes"):
        gunzipped(packed, 1000, "labels")
    assert traced() - before < 4 * MEGABYTE
    assert gunzipped(gzip.compress(b"12"), 2, "labels") == b"12"
    with pytest.raises(DataError, match="cannot be unpacked"):
        gunzipped(b"PK", 2, "labels")


@pytest.mark.parametrize(
    "head",
    [
        bytes([0, 0, 8, 255]) + b"\0\0\0\1" * 255 + b"x",
        bytes([0, 0, 8, 3]) + b"\0\0\0\0" + b"\xff" * 8,
        bytes([0, 0, 8, 3]) + b"\xff" * 12,
        bytes([0, 0, 8, 40]) + b"\0\0\0\1" * 40 + b"x",
    ],
    ids=["255 dimensions", "nothing of much", "2^96 items", "40 dimensions of one item"],
)
def test_an_idx_file_whose_sizes_cannot_be_is_one_line(head: bytes) -> None:
    with pytest.raises(DataError, match="idx file"):
        parse_idx(head, what="labels")
