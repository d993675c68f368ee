"""Files get into a data folder whole or not at all, and a full disk is one line."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from jsam.errors import ChecksumError, DataError
from jsam.training.data.data_files import RawFile, cache_folder, data_folders, install, parse_idx, read_verified

CONTENT = b"pixels" * 1000
RAW = RawFile(name="raw", size=len(CONTENT), algorithm="md5", checksum=hashlib.md5(CONTENT).hexdigest())


def _files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_right_file_is_installed_and_read_back(tmp_path: Path) -> None:
    install(tmp_path, RAW, [CONTENT[:7], CONTENT[7:]])
    assert read_verified(tmp_path / "raw", RAW) == CONTENT
    assert _files(tmp_path) == ["raw"]


def test_a_wrong_content_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ChecksumError, match="raw: the md5 checksum of what was fetched is wrong"):
        install(tmp_path, RAW, [CONTENT, b"!"])
    assert _files(tmp_path) == []


def test_a_source_that_breaks_half_way_leaves_the_old_file_untouched(tmp_path: Path) -> None:
    (tmp_path / "raw").write_bytes(b"old")

    def torn() -> Iterator[bytes]:
        yield CONTENT[:100]
        raise EOFError("torn")

    with pytest.raises(EOFError):
        install(tmp_path, RAW, torn())
    assert _files(tmp_path) == ["raw"]
    assert (tmp_path / "raw").read_bytes() == b"old"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full (Linux)")
def test_a_disk_that_is_really_full_gives_one_line_naming_the_file(tmp_path: Path) -> None:
    """The temporary file is made a link to the kernel's always-full device."""
    (tmp_path / f".raw.{os.getpid()}.tmp").symlink_to("/dev/full")
    with pytest.raises(
        DataError, match=r"/raw: cannot write: the disk is full; free some space, or set JSAM_DATA_DIR"
    ) as got:
        install(tmp_path, RAW, [CONTENT])
    assert "\n" not in str(got.value)
    assert _files(tmp_path) == []


@pytest.mark.parametrize(
    ("number", "said"), [(errno.EDQUOT, "disk is full"), (errno.EROFS, "no permission"), (errno.EIO, "error")]
)
def test_other_failures_to_write_are_one_line_too(
    number: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(DataError, match=f"raw: cannot write: .*{said}"):
        install(tmp_path, RAW, [CONTENT])
    assert _files(tmp_path) == []


def test_a_wrong_file_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "raw").write_bytes(CONTENT[:-1])
    with pytest.raises(ChecksumError, match=r"/raw: wrong md5 checksum \(5999 bytes, 6000 expected\); delete"):
        read_verified(tmp_path / "raw", RAW)


def test_the_own_folder_comes_before_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("JSAM_DATA_DIR", str(tmp_path / "own"))
    assert data_folders() == (tmp_path / "own", tmp_path / "cache" / "jsam" / "data")
    monkeypatch.setenv("JSAM_DATA_DIR", "")
    assert data_folders() == (cache_folder(),)


@pytest.mark.parametrize(
    ("platform", "tail"),
    [("linux", ".cache/jsam/data"), ("darwin", "Library/Caches/jsam/data"), ("win32", "AppData/Local/jsam/data")],
)
def test_each_platform_has_its_cache_folder(platform: str, tail: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", platform)
    monkeypatch.delenv("LOCALAPPDATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert cache_folder() == Path.home() / tail


@pytest.mark.parametrize(
    "content", [b"", b"\0\0\x08", b"\0\0\x09\x01\0\0\0\1\0", b"\0\0\x08\x01\0\0\0\2\0", b"\0\0\x08\x02\0\0\0\1"]
)
def test_a_malformed_idx_file_is_refused_by_name(content: bytes) -> None:
    with pytest.raises(DataError, match="broken-idx"):
        parse_idx(content, what="broken-idx")


def test_idx_files_of_bytes_and_of_big_endian_integers_are_read() -> None:
    assert parse_idx(b"\0\0\x08\x02\0\0\0\2\0\0\0\3" + bytes(range(6)), what="x").tolist() == [[0, 1, 2], [3, 4, 5]]
    assert parse_idx(b"\0\0\x0c\x01\0\0\0\2\0\0\1\0\xff\xff\xff\xff", what="x").tolist() == [256, -1]
