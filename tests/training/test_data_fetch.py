"""Fetching against a real HTTP server on the loopback interface: resume, mirrors, files put by hand, no network."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import os
import re
import tarfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jsam.errors import ChecksumError, DataError, DownloadError, InputError, JsamError, MissingDataError
from jsam.training.data import Progress, describe_datasets, fetch
from jsam.training.data.catalogue import WRITERS
from jsam.training.data.data_files import DataSpec, Mirror, RawFile
from jsam.training.data.download import download
from jsam.training.data.fetching import fetch_spec

IMAGES = np.random.default_rng(0).integers(0, 256, 300_000, dtype=np.uint8).tobytes()
LABELS = b"labels" * 50


@dataclass
class Site:
    """What the server holds and how it misbehaves: `tears` are the bytes after which successive answers break off."""

    files: dict[str, bytes] = field(default_factory=dict)
    tears: list[int] = field(default_factory=list)
    ranges: bool = True
    requests: list[tuple[str, str]] = field(default_factory=list)
    url: str = ""


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("no_proxy", "*")
    here = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers.get("Range", "")
            here.requests.append((self.path, asked))
            content = here.files.get(self.path.lstrip("/"))
            if content is None:
                self.send_error(404)
                return
            start = int(re.sub(r"\D", "", asked) or 0) if here.ranges else 0
            if start and start >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            tear = here.tears.pop(0) if here.tears else len(content)
            self.wfile.write(content[start : start + tear])
            self.close_connection = True

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    here.url = f"http://127.0.0.1:{server.server_port}/"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield here
    server.shutdown()
    server.server_close()
    thread.join()


def _raw(name: str, content: bytes) -> RawFile:
    return RawFile(name=name, size=len(content), algorithm="md5", checksum=hashlib.md5(content).hexdigest())


def _tar(**files: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f"batches/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def _spec(*urls: str, tar: bool = False) -> DataSpec:
    files = (_raw("images", IMAGES), _raw("labels", LABELS))
    archives = tuple(f"{raw.name}.gz" for raw in files)
    if tar:
        archives = ("all.tar.gz",)
    mirrors = tuple(Mirror(url=url, archives=archives) for url in urls)
    return DataSpec(name="tiny", title="", folder="tiny", files=files, mirrors=mirrors, packages=())


def _files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {".lock"}


def _silent(_: Progress) -> None:
    pass


NOWHERE = "http://127.0.0.1:9/"  # the discard port: refused at once


@pytest.fixture
def packed(site: Site) -> Site:
    site.files = {"images.gz": gzip.compress(IMAGES), "labels.gz": gzip.compress(LABELS)}
    return site


class TestDownload:
    def test_a_download_torn_twice_goes_on_where_it_broke(self, site: Site, tmp_path: Path) -> None:
        site.files["big"], site.tears = IMAGES, [100_000, 50_000]
        seen: list[Progress] = []
        download(site.url + "big", tmp_path / "big", progress=seen.append)
        assert (tmp_path / "big").read_bytes() == IMAGES
        assert _files(tmp_path) == {"big"}
        assert [asked for _, asked in site.requests] == ["", "bytes=100000-", "bytes=150000-"]
        assert all(step.total == len(IMAGES) for step in seen)
        assert seen[-1].done == len(IMAGES)
        assert [step.done for step in seen] == sorted(step.done for step in seen)

    def test_a_part_left_by_an_earlier_run_is_not_fetched_again(self, site: Site, tmp_path: Path) -> None:
        site.files["big"] = IMAGES
        (tmp_path / "big.part").write_bytes(IMAGES[:299_000])
        assert download(site.url + "big", tmp_path / "big", progress=_silent) is True
        assert (tmp_path / "big").read_bytes() == IMAGES
        assert site.requests == [("/big", "bytes=299000-")]

    def test_a_part_that_is_already_whole_is_taken_as_it_is(self, site: Site, tmp_path: Path) -> None:
        site.files["big"] = IMAGES
        (tmp_path / "big.part").write_bytes(IMAGES)
        download(site.url + "big", tmp_path / "big", progress=_silent)
        assert (tmp_path / "big").read_bytes() == IMAGES
        assert len(site.requests) == 1

    def test_a_part_longer_than_the_file_is_thrown_away(self, site: Site, tmp_path: Path) -> None:
        site.files["big"] = IMAGES
        (tmp_path / "big.part").write_bytes(IMAGES + b"!")
        assert download(site.url + "big", tmp_path / "big", progress=_silent) is False
        assert (tmp_path / "big").read_bytes() == IMAGES

    def test_a_server_without_ranges_starts_over(self, site: Site, tmp_path: Path) -> None:
        site.files["big"], site.ranges, site.tears = IMAGES, False, [1000]
        download(site.url + "big", tmp_path / "big", progress=_silent)
        assert (tmp_path / "big").read_bytes() == IMAGES

    def test_a_line_that_keeps_tearing_gives_up_but_keeps_the_part(self, site: Site, tmp_path: Path) -> None:
        site.files["big"], site.tears = IMAGES, [1000] * 50
        with pytest.raises(DownloadError, match="torn 5 times; run again"):
            download(site.url + "big", tmp_path / "big", progress=_silent)
        assert (tmp_path / "big.part").read_bytes() == IMAGES[:5000]

    def test_a_place_that_sends_more_than_there_can_be_is_given_up(self, site: Site, tmp_path: Path) -> None:
        site.files["big"] = IMAGES
        with pytest.raises(DownloadError, match="sends more than 1000 bytes"):
            download(site.url + "big", tmp_path / "big", progress=_silent, limit=1000)
        assert _files(tmp_path) == set()

    def test_an_absent_file_and_an_absent_server_are_told_apart(self, site: Site, tmp_path: Path) -> None:
        with pytest.raises(DownloadError, match="HTTP 404"):
            download(site.url + "none", tmp_path / "none", progress=_silent)
        with pytest.raises(DownloadError, match="no connection"):
            download(NOWHERE + "none", tmp_path / "none", progress=_silent)
        assert _files(tmp_path) == set()


class TestFetch:
    def test_what_is_fetched_is_unpacked_checked_and_found_again(self, packed: Site, tmp_path: Path) -> None:
        result = fetch_spec(_spec(packed.url), [tmp_path])
        assert (result.folder, result.source) == (tmp_path / "tiny", packed.url)
        assert (tmp_path / "tiny" / "images").read_bytes() == IMAGES
        assert (tmp_path / "tiny" / "labels").read_bytes() == LABELS
        assert _files(tmp_path / "tiny") == {"images", "labels"}
        asked = len(packed.requests)
        assert fetch_spec(_spec(packed.url), [tmp_path]).source == "already there"
        assert len(packed.requests) == asked

    def test_a_tar_of_several_files_is_unpacked_by_name(self, site: Site, tmp_path: Path) -> None:
        site.files["all.tar.gz"] = _tar(readme=b"hello", images=IMAGES, labels=LABELS)
        fetch_spec(_spec(site.url, tar=True), [tmp_path])
        assert _files(tmp_path / "tiny") == {"images", "labels"}

    def test_a_later_folder_that_has_the_files_is_used_and_the_first_left_alone(
        self, packed: Site, tmp_path: Path
    ) -> None:
        fetch_spec(_spec(packed.url), [tmp_path / "cache"])
        result = fetch_spec(_spec(NOWHERE), [tmp_path / "own", tmp_path / "cache"])
        assert result.folder == tmp_path / "cache" / "tiny"
        assert not (tmp_path / "own").exists()

    def test_only_what_is_missing_is_fetched(self, packed: Site, tmp_path: Path) -> None:
        (tmp_path / "tiny").mkdir()
        (tmp_path / "tiny" / "images").write_bytes(IMAGES)
        fetch_spec(_spec(packed.url), [tmp_path])
        assert [path for path, _ in packed.requests] == ["/labels.gz"]

    def test_archives_put_by_hand_need_no_network_and_stay(self, tmp_path: Path) -> None:
        (tmp_path / "tiny").mkdir()
        (tmp_path / "tiny" / "images.gz").write_bytes(gzip.compress(IMAGES))
        (tmp_path / "tiny" / "labels.gz").write_bytes(gzip.compress(LABELS))
        fetch_spec(_spec(NOWHERE), [tmp_path])
        assert _files(tmp_path / "tiny") == {"images", "labels", "images.gz", "labels.gz"}

    def test_a_wrong_archive_put_by_hand_is_named(self, packed: Site, tmp_path: Path) -> None:
        (tmp_path / "tiny").mkdir()
        (tmp_path / "tiny" / "images.gz").write_bytes(b"not gzip")
        with pytest.raises(DataError, match=r"tiny/images.gz: not the published archive; delete it"):
            fetch_spec(_spec(packed.url), [tmp_path])

    @pytest.mark.parametrize("complete", [True, False])
    def test_a_wrong_file_in_the_folder_is_named_and_not_overwritten(
        self, complete: bool, packed: Site, tmp_path: Path
    ) -> None:
        (tmp_path / "tiny").mkdir()
        (tmp_path / "tiny" / "images").write_bytes(b"mine")
        if complete:
            (tmp_path / "tiny" / "labels").write_bytes(LABELS)
        with pytest.raises(ChecksumError, match="tiny/images: wrong md5 checksum"):
            fetch_spec(_spec(packed.url), [tmp_path])
        assert (tmp_path / "tiny" / "images").read_bytes() == b"mine"
        assert packed.requests == []

    def test_a_mirror_with_other_content_is_left_for_the_next(self, packed: Site, tmp_path: Path) -> None:
        packed.files["bad/images.gz"] = gzip.compress(IMAGES[::-1])
        result = fetch_spec(_spec(packed.url + "bad/", packed.url), [tmp_path])
        assert result.source == packed.url
        assert (tmp_path / "tiny" / "images").read_bytes() == IMAGES

    @pytest.mark.parametrize(
        "damage", [lambda whole: b"", lambda whole: whole[: len(whole) // 2], lambda whole: b"junk"]
    )
    def test_a_broken_archive_is_no_answer(
        self, damage: Callable[[bytes], bytes], packed: Site, tmp_path: Path
    ) -> None:
        packed.files["images.gz"] = damage(packed.files["images.gz"])
        with pytest.raises(MissingDataError, match=r"images\.gz: not the published file"):
            fetch_spec(_spec(packed.url), [tmp_path])
        assert _files(tmp_path / "tiny") == set()

    def test_a_spoilt_part_is_fetched_afresh_once(self, packed: Site, tmp_path: Path) -> None:
        (tmp_path / "tiny").mkdir()
        (tmp_path / "tiny" / ".images.gz.download.part").write_bytes(b"spoilt" * 100)
        fetch_spec(_spec(packed.url), [tmp_path])
        assert [asked for path, asked in packed.requests if path == "/images.gz"] == ["bytes=600-", ""]
        assert _files(tmp_path / "tiny") == {"images", "labels"}

    def test_no_network_gives_one_line_that_names_files_and_folder(self, tmp_path: Path) -> None:
        with pytest.raises(MissingDataError) as got:
            fetch_spec(_spec(NOWHERE, NOWHERE), [tmp_path])
        line = str(got.value)
        assert isinstance(got.value, JsamError)
        assert "\n" not in line
        assert "no connection" in line
        assert f"put images, labels (or the archives as published) by hand into {tmp_path / 'tiny'}" in line

    def test_a_disk_that_fills_up_while_unpacking_does_not_cost_the_download(
        self, packed: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(_: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", full)
            with pytest.raises(DataError, match="images: cannot write: the disk is full"):
                fetch_spec(_spec(packed.url), [tmp_path])
        fetch_spec(_spec(packed.url), [tmp_path])
        whole = len(packed.files["images.gz"])
        assert packed.requests[:2] == [("/images.gz", ""), ("/images.gz", f"bytes={whole}-")]
        assert _files(tmp_path / "tiny") == {"images", "labels"}

    def test_what_a_killed_fetch_left_is_swept_up_but_a_users_files_stay(self, packed: Site, tmp_path: Path) -> None:
        (tmp_path / "tiny" / ".fetch-abc").mkdir(parents=True)
        (tmp_path / "tiny" / ".fetch-abc" / "half.tgz").write_bytes(b"half")
        for name in (".images.123.tmp", "notes.txt"):
            (tmp_path / "tiny" / name).write_bytes(b"x")
        fetch_spec(_spec(packed.url), [tmp_path])
        assert _files(tmp_path / "tiny") == {"images", "labels", "notes.txt"}

    def test_the_folder_is_locked_while_files_arrive(self, packed: Site, tmp_path: Path) -> None:
        fcntl = pytest.importorskip("fcntl")
        tried = []

        def try_the_lock(_: Progress) -> None:
            with open(tmp_path / "tiny" / ".lock", "ab") as lock, pytest.raises(BlockingIOError):
                fcntl.flock(lock.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            tried.append(True)

        fetch_spec(_spec(packed.url), [tmp_path], progress=try_the_lock)
        assert tried

    def test_two_that_fetch_at_once_download_once(self, packed: Site, tmp_path: Path) -> None:
        with ThreadPoolExecutor(2) as pool:
            sources = sorted(r.source for r in pool.map(lambda _: fetch_spec(_spec(packed.url), [tmp_path]), range(2)))
        assert sources == ["already there", packed.url]
        assert sorted(path for path, _ in packed.requests) == ["/images.gz", "/labels.gz"]

    def test_a_folder_that_cannot_be_made_is_one_line(self, packed: Site, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("in the way")
        with pytest.raises(DataError, match=r"cannot write: .* or set JSAM_DATA_DIR"):
            fetch_spec(_spec(packed.url), [tmp_path / "file"])


def test_an_unknown_name_lists_the_known_ones_and_an_embedded_set_needs_nothing() -> None:
    with pytest.raises(InputError, match="'mnits' is unknown, must be one of mnist, cifar10, mnist-writers, digits"):
        fetch("mnits")
    assert fetch("digits").folder is None


def test_the_writers_need_neither_network_nor_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JSAM_DATA_DIR", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    result = fetch("mnist-writers")
    assert (result.folder, result.source) == (None, "embedded")
    assert list(tmp_path.iterdir()) == []
    (status,) = (status for status in describe_datasets() if status.name == "mnist-writers")
    assert (status.state, status.folder, status.detail) == ("embedded", None, "comes with jsam")


def test_wrong_label_files_of_the_writers_are_named_and_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "mnist-writers").mkdir()
    for raw in WRITERS.files:
        (tmp_path / "mnist-writers" / raw.name).write_bytes(b"mine")
    with pytest.raises(ChecksumError, match=r"qmnist-train-labels-idx2-int\.gz: wrong md5 checksum"):
        fetch_spec(WRITERS, [tmp_path])


def test_the_list_tells_missing_from_wrong(tmp_path: Path) -> None:
    (tmp_path / "mnist-writers").mkdir()
    for part in ("train", "test"):
        (tmp_path / "mnist-writers" / f"qmnist-{part}-labels-idx2-int.gz").write_bytes(b"")
    states = {status.name: status for status in describe_datasets([tmp_path])}
    assert {name: status.state for name, status in states.items()} == {
        "mnist": "missing",
        "cifar10": "missing",
        "mnist-writers": "wrong",
        "digits": "embedded",
    }
    assert "qmnist-train-labels-idx2-int.gz: wrong md5" in states["mnist-writers"].detail
    assert states["mnist"].detail == "run: jsam data fetch mnist"
    assert states["mnist"].folder == tmp_path / "mnist"
