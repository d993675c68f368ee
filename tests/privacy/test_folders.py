"""A folder that was made is still there after a power cut: its name is flushed in the folder above it."""

from __future__ import annotations

from pathlib import Path

import pytest

from jsam import files
from jsam.files import make_folder


def test_every_folder_on_the_way_is_flushed_after_it_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[tuple[Path, list[str]]] = []

    def sync(folder: Path) -> None:
        flushed.append((folder, [path.name for path in folder.iterdir()]))

    monkeypatch.setattr(files, "sync_folder", sync)
    make_folder(tmp_path / "a" / "b" / "c", mode=0o700)
    assert flushed == [(tmp_path, ["a"]), (tmp_path / "a", ["b"]), (tmp_path / "a" / "b", ["c"])]
    make_folder(tmp_path / "a" / "b" / "c")
    assert len(flushed) == 3


def test_only_the_folder_itself_gets_the_mode(tmp_path: Path) -> None:
    make_folder(tmp_path / "a" / "b", mode=0o700)
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    (tmp_path / "plain").mkdir()
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_file_in_the_way_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    with pytest.raises(OSError, match=r"exists|directory"):
        make_folder(tmp_path / "a")
