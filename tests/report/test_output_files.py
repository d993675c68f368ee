"""A file is written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jsam.errors import InputError
from jsam.report.output_files import check_target, same_file, write_result, writing


def test_folders_on_the_way_are_made(tmp_path: Path) -> None:
    write_result(tmp_path / "a" / "b" / "result.csv", b"new")
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
        write_result(target, b"new")
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["result.csv"]


@pytest.mark.parametrize("trouble", [KeyboardInterrupt(), InputError("the rest failed")])
def test_several_files_are_written_together_or_not_at_all(trouble: BaseException, tmp_path: Path) -> None:
    old, new = tmp_path / "old.csv", tmp_path / "new.png"
    old.write_bytes(b"old")

    def write(failure: BaseException | None) -> None:
        with writing({new: b"picture", old: b"result"}):
            assert old.read_bytes() == b"old"
            assert not new.exists()
            if failure is not None:
                raise failure

    with pytest.raises(type(trouble)):
        write(trouble)
    assert (old.read_bytes(), os.listdir(tmp_path)) == (b"old", ["old.csv"])
    write(None)
    assert (old.read_bytes(), new.read_bytes()) == (b"result", b"picture")
    assert sorted(os.listdir(tmp_path)) == ["new.png", "old.csv"]


def test_a_new_file_is_taken_back_when_the_next_cannot_be_put_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = os.replace

    def refuse_second(source: str, destination: Path) -> None:
        if destination.name == "second":
            raise PermissionError(1, "Operation not permitted")
        move(source, destination)

    monkeypatch.setattr("os.replace", refuse_second)
    with pytest.raises(InputError, match=r"second.*not permitted"):
        write_both(tmp_path)
    assert os.listdir(tmp_path) == []


def write_both(folder: Path) -> None:
    with writing({folder / "first": b"1", folder / "second": b"2"}):
        pass


def test_one_file_under_two_names(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "link").symlink_to("file")
    assert same_file(tmp_path / "file", tmp_path / "link")
    assert same_file(tmp_path / "not yet", tmp_path / "." / "not yet")
    assert not same_file(tmp_path / "file", tmp_path / "not yet")
    assert not same_file("/dev/null", "/dev/null")  # it loses nothing by being written to


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real.csv").write_bytes(b"old")
    (tmp_path / "link.csv").symlink_to("real.csv")
    write_result(tmp_path / "link.csv", b"new")
    assert (tmp_path / "real.csv").read_bytes() == b"new"
    assert (tmp_path / "link.csv").is_symlink()


def test_permissions_are_those_of_any_new_file_or_of_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "ordinary").write_bytes(b"")
    write_result(tmp_path / "fresh", b"new")
    assert (tmp_path / "fresh").stat().st_mode == (tmp_path / "ordinary").stat().st_mode
    (tmp_path / "ordinary").chmod(0o640)
    write_result(tmp_path / "ordinary", b"new")
    assert (tmp_path / "ordinary").stat().st_mode & 0o777 == 0o640


def test_a_device_is_written_to_not_replaced() -> None:
    write_result("/dev/null", b"new")
    assert not Path("/dev/null").is_file()


def test_a_target_that_could_never_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    check_target(tmp_path / "file")
    check_target(tmp_path / "new" / "deeper" / "file")
    for target in (tmp_path, tmp_path / "file" / "below"):
        with pytest.raises(InputError, match="cannot write"):
            check_target(target)
