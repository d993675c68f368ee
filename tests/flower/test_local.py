"""`jsam deploy-local` as a user runs it: real processes, TLS and keys, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import require

if not TYPE_CHECKING:
    require("flwr", extra="flower")

from jsam.flower.launch import processes
from jsam.flower.launch.processes import Child, group_alive, quiet_environment, stop_all
from jsam.mechanism.rules import Rules
from jsam.privacy import read_ledger

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")


def _processes_about(folder: Path) -> list[str]:
    """Command lines of living processes that were started for this deployment, by their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes()
            state = (process / "stat").read_text().rpartition(")")[2].split()[0]
            if f"FLWR_HOME={folder}".encode() in environment and state not in "ZX":
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


def _deploy(folder: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "jsam.cli", "deploy-local", "--output", str(folder), "--format", "json", *options]
    temporary = folder.with_name("temporary")
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def _nothing_left(folder: Path) -> bool:
    """No process, no socket, no temporary file."""
    assert _processes_about(folder) == []
    assert [path.name for path in folder.with_name("temporary").iterdir() if path.name.startswith("jsam-")] == []
    return True


@LINUX
@pytest.mark.slow
def test_three_nodes_and_two_rounds_end_to_end_over_tls(tmp_path: Path) -> None:
    """Every client's own ledger agrees with the server's, the run's own status says completed, no process is left."""
    folder = tmp_path / "deployment"
    began = time.monotonic()
    with _deploy(folder, "--clients", "3", "--rounds", "2", "--tls") as process:
        output, errors = process.communicate(timeout=300)
    sys.stdout.write(f"three nodes and two rounds over TLS: {time.monotonic() - began:.1f} s\n")
    assert process.returncode == 0, errors
    result = json.loads(output)
    assert result["status"] == "finished:completed"
    assert Rules.load(folder / "rules.toml").mechanism == "jsam-even"
    assert [client["id"] for client in result["clients"]] == ["client-0", "client-1", "client-2"]
    for client, account in zip(result["clients"], result["server"]["clients"], strict=True):
        named = {
            "id",
            "samples",
            "epsilon_bought",
            "epsilon_spent",
            "participations",
            "releases",
            "payment",
            "payment_agreed",
        }
        assert set(client) == named
        assert 0 <= client["epsilon_spent"] <= client["epsilon_bought"]
        # How many records a client holds the server is told only where the plan counts them.
        assert {name: client[name] for name in account if name in client} == {
            name: account[name] for name in named - {"samples"}
        }
    assert sum(client["participations"] for client in result["clients"]) == 2 * 3
    assert len(read_ledger(folder / "server" / "ledger.jsonl")) == sum(c["releases"] for c in result["clients"])
    assert _nothing_left(folder)


@LINUX
@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "moment"),
    [
        (signal.SIGINT, "training begins"),
        (signal.SIGTERM, "SuperNodes are starting"),
        (signal.SIGHUP, "SuperLink is up"),
    ],
)
def test_interrupted_it_takes_all_its_processes_along(number: int, moment: str, tmp_path: Path) -> None:
    folder = tmp_path / "deployment"
    with _deploy(folder, "--clients", "2", "--rounds", "50") as process:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        assert any(moment in line for line in lines)
        assert _processes_about(folder)
        process.send_signal(number)
        rest = process.stderr.read()
        process.wait(timeout=60)
    assert process.returncode == 130
    assert "what a client has spent" in rest
    assert _nothing_left(folder)


@LINUX
def test_a_stubborn_process_and_its_children_are_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that ignores requests to end, with a child that does too."""
    stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(1000)"
    script = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {stubborn!r}]); {stubborn}"
    log = tmp_path / "log"
    child = Child("stubborn", [sys.executable, "-c", script], environment=os.environ, log=log, folder=tmp_path)
    deadline = time.monotonic() + 30
    while child.tail().count("up") < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert group_alive(child.group)
    monkeypatch.setattr(processes, "_GRACE", 0.5)
    stop_all([child])
    assert not group_alive(child.group)


def test_everything_we_start_is_quiet_and_offline(tmp_path: Path) -> None:
    environment = quiet_environment(tmp_path)
    assert environment["FLWR_TELEMETRY_ENABLED"] == "0"
    assert environment["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert environment["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert environment["FLWR_HOME"] == str(tmp_path)
