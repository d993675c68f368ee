"""A federation on this machine that fails: one line says why, and what the clients spent is told all the same."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import require

if not TYPE_CHECKING:
    require("flwr", extra="flower")

from flwr.app import Message

from jsam.campaign.server.server_options import ServerOptions
from jsam.cli import main
from jsam.errors import InputError, JsamError
from jsam.flower.client_app import app
from jsam.flower.launch import deploy as local_campaign
from jsam.flower.launch import federation as local
from jsam.flower.launch.deploy import Shares, longest, run_local
from jsam.flower.launch.federation import LocalFederation, RunStatus
from jsam.flower.launch.processes import Child, ProcessError, _dying_with
from tests.flower.loopback import FAST, LoopbackGrid, published, run_server


class _WithoutProcesses(LocalFederation):
    """The same folders, apps and books, but messages go from hand to hand."""

    fault: Callable[[Message], str | None] = staticmethod(lambda message: None)
    waited: Callable[[], RunStatus] | None = None
    timeout = 0.0

    def start_superlink(self) -> None:
        pass

    def start_node(self, name: str) -> Child:
        return None  # type: ignore[return-value]

    def submit(self, values: Mapping[str, object], **_: Any) -> str:
        names = {field for field in ServerOptions.__dataclass_fields__ if field in values}
        options = ServerOptions(**{**{name: values[name] for name in names}, **FAST})  # type: ignore[arg-type]
        rules = published(**{name: value for name, value in values.items() if name not in names})
        nodes = {k + 1: (app, {"client-file": str(file)}) for k, file in enumerate(self.client_files.values())}
        grid = LoopbackGrid(dict(nodes), fault=type(self).fault)
        self.ended = "finished:completed"
        try:
            run_server(grid, rules, options)
        except JsamError:
            self.ended = "finished:failed"
        return "7"

    def wait(self, run_id: str, *, timeout: float, over: Callable[[], bool] = lambda: False) -> RunStatus:
        type(self).timeout = timeout
        waited = type(self).waited
        if waited is not None:
            return waited()
        return RunStatus(run_id=run_id, status=self.ended)


@pytest.fixture
def federation(monkeypatch: pytest.MonkeyPatch) -> type[_WithoutProcesses]:
    class Fresh(_WithoutProcesses):
        pass

    monkeypatch.setattr(local_campaign, "LocalFederation", Fresh)
    return Fresh


def _from_the_second_round(message: Message) -> str | None:
    return "lost" if message.metadata.group_id not in ("", "0") else None


def _deploy(folder: Path, *options: str) -> int:
    return main(["deploy-local", "--clients", "2", "--rounds", "3", "--output", str(folder), *options])


def test_a_failed_run_shows_what_was_spent_and_says_why_in_one_line(
    federation: type[_WithoutProcesses], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody answers after the first round, for which clients have spent something."""
    federation.fault = staticmethod(_from_the_second_round)
    assert _deploy(tmp_path / "d", "--format", "json") == 2
    output, errors = capsys.readouterr()
    result = json.loads(output)
    assert result["status"] == "finished:failed"
    assert sum(client["epsilon_spent"] for client in result["clients"]) > 0
    assert result["kept"]
    assert "round 2 of 3: 0 of 2 slots answered" in result["failure"]
    (line,) = [line for line in errors.splitlines() if line.startswith("jsam: error")]
    assert line == errors.splitlines()[-1]
    assert "round 2 of 3: 0 of 2 slots answered" in line


def test_the_table_of_a_failed_run(
    federation: type[_WithoutProcesses], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    federation.fault = staticmethod(_from_the_second_round)
    assert _deploy(tmp_path / "d") == 2
    assert "What each client's own ledger says" in capsys.readouterr().out


def test_a_run_that_is_given_up_says_after_how_long(
    federation: type[_WithoutProcesses], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    federation.waited = lambda: RunStatus(run_id="7", status="running")
    assert _deploy(tmp_path / "d", "--limit", "5") == 2
    assert federation.timeout == 5
    assert "given up after 5 s (--limit); the run was still running" in capsys.readouterr().err


def test_a_superlink_that_dies_is_a_failed_run_with_statements(
    federation: type[_WithoutProcesses], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def lost() -> RunStatus:
        raise ProcessError("the SuperLink ended: out of memory")

    federation.waited = lost
    assert _deploy(tmp_path / "d", "--format", "json") == 2
    output, errors = capsys.readouterr()
    assert sum(client["epsilon_spent"] for client in json.loads(output)["clients"]) > 0
    assert "out of memory" in errors.splitlines()[-1]


def test_before_anything_was_agreed_there_are_no_books_and_no_traceback(
    federation: type[_WithoutProcesses], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    federation.fault = staticmethod(lambda message: "lost")
    assert _deploy(tmp_path / "d", "--format", "json") == 2
    output, errors = capsys.readouterr()
    assert json.loads(output)["server"] == {}
    assert "no client reported" in errors.splitlines()[-1]


def test_the_usual_limit_grows_with_the_rounds_and_outlasts_the_server(
    federation: type[_WithoutProcesses], tmp_path: Path
) -> None:
    rules = published(rounds=400)
    usual = ServerOptions(clients=2, store="-")
    assert longest(rules, 2) > usual.wait_seconds + usual.elicit_seconds + 400 * usual.round_seconds
    shares = Shares.deal(published(), clients=2, dataset="digits")
    run_local(tmp_path / "d", shares)
    assert federation.timeout == longest(published(), 2)
    with pytest.raises(InputError, match="limit is 0"):
        run_local(tmp_path / "e", shares, limit=0.0)


@pytest.mark.skipif(sys.platform != "linux", reason="starts processes as Linux does")
def test_a_command_of_flower_that_hangs_is_ended_and_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "flwr"
    script.write_text("#!/bin/sh\nexec sleep 1000\n")
    script.chmod(0o700)
    monkeypatch.setattr(local, "program", lambda name: str(script))
    monkeypatch.setattr(local, "_COMMAND", 0.2)
    federation = LocalFederation(tmp_path / "f")
    started: list[Child] = []

    def start(name: str, command: list[str]) -> Child:
        started.append(LocalFederation._start(federation, name, command))
        return started[-1]

    monkeypatch.setattr(federation, "_start", start)
    try:
        with pytest.raises(ProcessError, match=r"flwr list did not answer within 0\.2 s") as caught:
            federation.status("7")
        assert not started[0].left
    finally:
        federation.stop()
    assert "\n" not in str(caught.value)


def test_a_question_that_fails_does_not_end_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice no answer, then the run has ended; three times in a row is too often."""
    monkeypatch.setattr(local, "_LOOK", 0.0)
    federation = LocalFederation(tmp_path)
    answers: list[RunStatus | None] = [None, None, RunStatus(run_id="7", status=local.COMPLETED)]

    def status(run_id: str) -> RunStatus:
        answer = answers.pop(0)
        if answer is None:
            raise ProcessError("flwr list failed")
        return answer

    monkeypatch.setattr(federation, "status", status)
    assert federation.wait("7", timeout=100, over=lambda: True).completed
    answers[:] = [None, None, None]
    with pytest.raises(ProcessError):
        federation.wait("7", timeout=100, over=lambda: True)
    federation.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can tell")
def test_a_process_whose_parent_is_gone_before_it_begins_does_not_begin(tmp_path: Path) -> None:
    trace = tmp_path / "begun"
    child = subprocess.Popen(["touch", str(trace)], preexec_fn=_dying_with(0))  # noqa: PLW1509
    assert child.wait() == 1
    assert not trace.exists()
