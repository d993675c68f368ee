"""A file is written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jsam.errors import InputError
from jsam.report.files import check_target, write_atomically


def test_folders_on_the_way_are_made(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a" / "b" / "result.csv", b"new")
    assert (tmp_path / "a" / "b" / "result.csv").read_bytes() == b"new"


@pytest.mark.parametrize("trouble", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_trouble_leaves_the_old_file_and_nothing_else(
    trouble: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "result.csv"
    target.write_bytes(b"old")

    def refuse(source: str, destination: str) -> None:
        raise trouble

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises((InputError, KeyboardInterrupt)):
        write_atomically(target, b"new")
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["result.csv"]


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real.csv").write_bytes(b"old")
    (tmp_path / "link.csv").symlink_to("real.csv")
    write_atomically(tmp_path / "link.csv", b"new")
    assert (tmp_path / "real.csv").read_bytes() == b"new"
    assert (tmp_path / "link.csv").is_symlink()


def test_permissions_are_those_of_any_new_file_or_of_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "ordinary").write_bytes(b"")
    write_atomically(tmp_path / "fresh", b"new")
    assert (tmp_path / "fresh").stat().st_mode == (tmp_path / "ordinary").stat().st_mode
    (tmp_path / "ordinary").chmod(0o640)
    write_atomically(tmp_path / "ordinary", b"new")
    assert (tmp_path / "ordinary").stat().st_mode & 0o777 == 0o640


def test_a_device_is_written_to_not_replaced() -> None:
    write_atomically("/dev/null", b"new")
    assert not Path("/dev/null").is_file()


def test_a_target_that_could_never_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    check_target(tmp_path / "file")
    check_target(tmp_path / "new" / "deeper" / "file")
    for target in (tmp_path, tmp_path / "file" / "below"):
        with pytest.raises(InputError, match="cannot write"):
            check_target(target)
