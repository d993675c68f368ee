"""Nobody but its owner reads what a campaign writes, whatever the umask is; and what lies open is closed or refused."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.conftest import require

if not TYPE_CHECKING:
    require("flwr", extra="flower")

if os.name != "posix":
    pytest.skip("this system has no such rights", allow_module_level=True)

from jsam.campaign.client import client_store
from jsam.campaign.client.client_files import ClientFiles, write_client
from jsam.campaign.client.client_journal import Journal
from jsam.campaign.identity import Certificates
from jsam.campaign.refusal import Refused
from jsam.campaign.server.server_store import ServerStore
from jsam.cli import main
from jsam.errors import InputError, JsamError
from jsam.files import keep_private, make_folder, sync_folder, write_atomically
from jsam.flower.launch.federation import LocalFederation
from jsam.flower.launch.processes import Child, quiet_environment
from jsam.flower.launch.supernode import become_supernode
from jsam.privacy import Ledger
from tests.flower.loopback import Federation, published

ANOTHER = 12345


@pytest.fixture(params=[0, 0o022], ids=["umask 0", "umask 022"])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def _open(folder: Path) -> list[str]:
    """What of a folder's parts others may do anything with, and how."""
    found = sorted(folder.rglob("*"))
    return [f"{stat.filemode(p.stat().st_mode)} {p.relative_to(folder)}" for p in found if p.stat().st_mode & 0o077]


@pytest.mark.usefixtures("umask")
def test_a_whole_campaign_leaves_nothing_open_at_server_and_clients(tmp_path: Path) -> None:
    """Reports, books, offers, ledgers, data, replies, the settled books and the page: all 0600, in folders of 0700."""
    federation = Federation.make(tmp_path, [0.2, 0.4], policies={0: "max_epsilon = 10.0"})
    federation.run(published(rounds=2))
    assert main(["report", str(tmp_path / "server")]) == 0
    assert (tmp_path / "server" / "report.html").exists()
    for place in ("server", "clients/client-0", "clients/client-1"):
        assert _open(tmp_path / place) == []
        assert stat.S_IMODE((tmp_path / place).stat().st_mode) == 0o700


@pytest.mark.usefixtures("umask")
def test_keys_and_the_files_of_processes_that_we_start_are_private(tmp_path: Path) -> None:
    """What a process writes itself, such as the SuperLink its database, is private too; so is its log."""
    Certificates.make(tmp_path / "certificates", ["a"])
    home = tmp_path / "flower"
    make_folder(home)
    command = ["/bin/sh", "-c", f"echo told; : > {home}/superlink.db"]
    child = Child(
        "link", command, environment=quiet_environment(home), log=tmp_path / "logs" / "link.log", folder=tmp_path
    )
    assert child.process.wait(timeout=30) == 0
    assert child.tail() == "told"
    assert (home / "superlink.db").exists()
    assert _open(tmp_path) == []


def test_a_file_is_private_from_the_moment_at_which_it_appears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only once it was closed: a reader that waits for the name would have it open by then."""
    seen: list[int] = []
    flush = os.fsync

    def looking(handle: int) -> None:
        seen.extend(stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir())
        flush(handle)

    monkeypatch.setattr(os, "fsync", looking)
    before = os.umask(0)
    try:
        write_atomically(tmp_path / "reports.json", b"{}")
    finally:
        os.umask(before)
    assert set(seen) == {0o600}


def test_a_store_that_lies_open_is_closed_at_start_with_a_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = tmp_path / "server"
    store.mkdir(mode=0o755)
    store.chmod(0o755)
    with caplog.at_level(logging.WARNING):
        ServerStore(store).begin(published())
        assert stat.S_IMODE(store.stat().st_mode) == 0o700
        assert f"store {store} was open to other users (mode 0755); it is 0700 now" in caplog.text
        store.chmod(0o770)
        ServerStore(store).begin(published())
    assert stat.S_IMODE(store.stat().st_mode) == 0o700


def test_what_is_somebody_elses_and_open_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: ANOTHER)
    with pytest.raises(
        InputError, match=r"store .* belongs to another user and is open to others \(mode 0755\)"
    ) as got:
        ServerStore(tmp_path).begin(published())
    assert "\n" not in str(got.value)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_closed_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o755)

    def refused(self: Path, mode: int, **_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "chmod", refused)
    with pytest.raises(InputError, match="cannot be closed: Operation not permitted"):
        keep_private(tmp_path, "store")


def test_a_supernode_closes_the_clients_files_before_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Client file, data, ledger and Flower's own folder; and Flower's files are made with a umask of 077."""
    records = np.zeros((2, 1, 8, 8), dtype=np.float32), np.zeros(2, dtype=np.int64)
    file = write_client(tmp_path / "a", name="a", sensitivity=0.2, inputs=records[0], targets=records[1])
    home = tmp_path / "a" / "flower"
    for folder in (tmp_path / "a" / "ledger", home):
        folder.mkdir()
        folder.chmod(0o755)
    for path in (file, tmp_path / "a" / "data.npz"):
        path.chmod(0o644)
    masks: list[int] = []

    def execute(*_: Any) -> None:
        masks.append(os.umask(0o022))

    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: None)
    monkeypatch.setattr(os, "execve", execute)
    become_supernode(file, [], environment={**os.environ, "FLWR_HOME": str(home)})
    assert masks == [0o077]
    assert _open(tmp_path / "a") == []


def test_data_of_somebody_else_are_read_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Who else may read them is for their owner to say."""
    records = np.zeros((2, 1, 8, 8), dtype=np.float32), np.zeros(2, dtype=np.int64)
    file = write_client(tmp_path / "a", name="a", sensitivity=0.2, inputs=records[0], targets=records[1])
    (tmp_path / "a" / "data.npz").chmod(0o644)
    monkeypatch.setattr(os, "geteuid", lambda: ANOTHER)
    ClientFiles.load(file).keep_private()
    assert "data.npz belongs to another user" in caplog.text


def test_the_federations_own_folder_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = LocalFederation(tmp_path)
    federation.home.mkdir()
    federation.home.chmod(0o755)
    monkeypatch.setattr(federation, "_start", lambda *_: None)
    monkeypatch.setattr(federation, "_await_port", lambda *_: None)
    federation.start_superlink()
    federation.stop()
    assert stat.S_IMODE(federation.home.stat().st_mode) == 0o700


class _FailingFolders:
    """A system on which no folder can be flushed, from when it is told so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failing, self._flush = True, os.fsync
        monkeypatch.setattr(os, "fsync", self)

    def __call__(self, handle: int) -> None:
        if self.failing and stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(5, "Input/output error")
        self._flush(handle)


def test_a_folder_that_cannot_be_flushed_is_a_failure_and_leaves_no_new_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files, folders and ledgers: what failed is not there, so that nobody takes it for safe the next time."""
    system = _FailingFolders(monkeypatch)
    with pytest.raises(OSError, match="Input/output error"):
        sync_folder(tmp_path)
    with pytest.raises(JsamError, match="new could not be written"):
        write_atomically(tmp_path / "new", b"content")
    with pytest.raises(OSError, match="Input/output error"):
        make_folder(tmp_path / "folder")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(JsamError, match="cannot be written: Input/output error"):
        Ledger(tmp_path / "ledger.jsonl")
    assert (tmp_path / "ledger.jsonl").read_bytes() == b""
    system.failing = False
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        assert len(ledger) == 0


def test_a_file_that_took_anothers_place_is_whole_and_the_failure_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_atomically(tmp_path / "old", b"before")
    _FailingFolders(monkeypatch)
    with pytest.raises(JsamError, match="it is whole, and may be lost in a power cut"):
        write_atomically(tmp_path / "old", b"after")
    assert (tmp_path / "old").read_bytes() == b"after"


def test_a_client_whose_folder_cannot_be_flushed_agrees_to_nothing_and_answers_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a stored answer is not repeated: a power cut could take its digest away, and a second one would leave."""
    federation = Federation.make(tmp_path, [0.2, 0.4])
    federation.run(published(rounds=1))
    system = _FailingFolders(monkeypatch)
    with pytest.raises(Refused, match="ledger-failed"):
        federation.ledger(0).hear(published(campaign="next").to_json())
    store = client_store.CampaignStore.of(Journal.checked(tmp_path / "clients/client-0/ledger"), "test")
    reply = store.reply(0)
    assert reply is not None
    with pytest.raises(OSError, match="Input/output error"):
        store.keep(0, reply)
    system.failing = False
    store.keep(0, reply)
