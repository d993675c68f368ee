"""A whole federation on this machine: a SuperLink, SuperNodes with folders of their own, and runs submitted to them."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsam.campaign.client.client_files import ClientFiles
from jsam.campaign.identity import Certificates
from jsam.campaign.statement import Statement
from jsam.files import keep_private, make_folder, write_atomically
from jsam.flower.launch.app_folder import write_app
from jsam.flower.launch.clientapp_launcher import OWN_APP
from jsam.flower.launch.processes import (
    Child,
    ProcessError,
    end_all,
    free_port,
    program,
    quiet_environment,
    started_with,
    stop_all,
    uninterrupted,
)

CONNECTION = "jsam-local"
COMPLETED = "finished:completed"
_START, _COMMAND, _LOOK, _ASK_EVERY = 60.0, 120.0, 0.3, 15.0
_MOST_FAILURES = 3  # of questions for a run's status, one after the other


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """A run as Flower's own list has it; only `finished:completed` is success."""

    run_id: str
    status: str
    details: str = ""

    @property
    def completed(self) -> bool:
        return self.status == COMPLETED


class LocalFederation:
    """Processes under `folder`, on free ports of the loopback interface; leaving the context ends all of them.

    With `certificates` everything goes over TLS and every SuperNode proves its key; without, in plain text. Nodes
    run `own_app` from this installation whatever a run ships.
    """

    def __init__(self, folder: Path, *, certificates: Certificates | None = None, own_app: str = OWN_APP) -> None:
        self.folder = folder.absolute()
        self.own_app = own_app
        self.home = self.folder / "flower"
        self.certificates = certificates
        self.environment = {**quiet_environment(self.home), "TMPDIR": tempfile.mkdtemp(prefix="jsam-")}
        self.run_options: tuple[str, ...] = ()
        self.port = 0
        self.superlink: Child | None = None
        self.nodes: dict[str, Child] = {}
        self.client_files: dict[str, Path] = {}
        self._children: list[Child] = []

    def __enter__(self) -> LocalFederation:
        try:
            self.start_superlink()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start_superlink(self) -> None:
        """Start it, or start it again on the same port and with the same database."""
        make_folder(self.home)
        keep_private(self.home, "Flower's folder")
        self.port = self.port or free_port()
        write_atomically(self.home / "config.toml", self._flower_config().encode())
        self.superlink = self._start("superlink", self.superlink_command())
        self._await_port(self.superlink)

    def superlink_command(self) -> list[str]:
        command = [program("flower-superlink"), "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--database", str(self.home / "superlink.db")]
        return command + (["--insecure"] if self.certificates is None else self.certificates.superlink_options())

    def started(self) -> list[int]:
        """Everything that was started for this federation and still lives."""
        return started_with("FLWR_HOME", str(self.home))

    def add_node(self, name: str, client_file: Path) -> Child:
        """A SuperNode for the client of this file."""
        self.client_files[name] = client_file.absolute()
        return self.start_node(name)

    def start_node(self, name: str) -> Child:
        """A node for a client that is known, perhaps after it was killed."""
        command = [*self.node_program(name), "--superlink", f"127.0.0.1:{self.port}"]
        command += ["--host", "127.0.0.1", "--port", str(free_port()), *self.connection(name)]
        self.nodes[name] = self._start(f"node-{name}", command)
        return self.nodes[name]

    def node_program(self, name: str) -> list[str]:
        return [sys.executable, "-P", "-m", "jsam.flower.launch.supernode", self.own_app, str(self.client_files[name])]

    def connection(self, name: str) -> list[str]:
        """The options that say how a node connects."""
        return ["--insecure"] if self.certificates is None else self.certificates.supernode_options(name)

    def register(self, name: str) -> None:
        """Tell the SuperLink the public key of a client."""
        assert self.certificates is not None
        self._flwr("supernode", "register", str(self.certificates.public_key(name)), CONNECTION)

    def submit(self, values: Mapping[str, object], *, app: Path | None = None) -> str:
        """Start a run with these settings, or with another app folder; its id."""
        folder = app or write_app(self.folder / "app", values)
        answer = self._flwr("run", str(folder), CONNECTION, "--format", "json", *self.run_options)
        run_id = _json(answer).get("run-id")
        if not run_id:
            raise ProcessError(f"the run was not accepted: {' '.join(answer.split())[-300:]}")
        return str(run_id)

    def status(self, run_id: str) -> RunStatus:
        """From the SuperLink's own list."""
        listing = _json(self._flwr("list", CONNECTION, "--run-id", run_id, "--format", "json"))
        run = (listing.get("runs") or [{}])[0]
        return RunStatus(
            run_id=run_id, status=str(run.get("status", "unknown")), details=str(run.get("status-details", "") or "")
        )

    def wait(self, run_id: str, *, timeout: float, over: Callable[[], bool] = lambda: False) -> RunStatus:
        """Until the run has ended. `over` is a cheap hint of that, looked at often; the SuperLink has the last word.

        `flwr log` is no help: it answers 0 for failed runs too.
        """
        deadline = time.monotonic() + timeout
        asked, failures = time.monotonic(), 0
        while True:
            if self.superlink is not None and not self.superlink.running:
                raise ProcessError(f"the SuperLink ended: {' '.join(self.superlink.tail(3).split())}")
            now = time.monotonic()
            # Each question is a process that loads Flower, too dear to ask at every look.
            if over() or now - asked > _ASK_EVERY or now > deadline:
                try:
                    status, failures = self.status(run_id), 0
                except ProcessError:
                    # The run may go on although the question was not answered.
                    failures += 1
                    if failures >= _MOST_FAILURES:
                        raise
                    status = RunStatus(run_id=run_id, status="unknown")
                if status.status.startswith("finished") or now > deadline:
                    return status
                asked = time.monotonic()
            time.sleep(_LOOK)

    def statements(self) -> dict[str, tuple[Statement, ...]]:
        """From each client's own ledger."""
        return {name: ClientFiles.load(path).books().statement() for name, path in self.client_files.items()}

    def stop(self) -> None:
        """End everything, the nodes first."""
        with uninterrupted():
            children, self._children = self._children, []
            stop_all(children[::-1])
            # The SuperLink detaches what it starts; those follow it, a moment later.
            end_all(self.started)
            # Killed nodes leave their sockets here.
            shutil.rmtree(self.environment["TMPDIR"], ignore_errors=True)

    def _start(self, name: str, command: list[str]) -> Child:
        log = self.folder / "logs" / f"{name}.log"
        with uninterrupted():
            child = Child(name, command, environment=self.environment, log=log, folder=self.folder)
            self._children.append(child)
        return child

    def _await_port(self, child: Child) -> None:
        deadline = time.monotonic() + _START
        while time.monotonic() < deadline:
            if not child.running:
                break
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return
            time.sleep(0.05)
        raise ProcessError(f"{child.name} did not start: {' '.join(child.tail(5).split())}")

    def _flower_config(self) -> str:
        lines = [f"[superlink.{CONNECTION}]", f'address = "127.0.0.1:{self.port}"']
        if self.certificates is None:
            lines.append("insecure = true")
        else:
            lines.append(f"root-certificates = {json.dumps(str(self.certificates.authority))}")
        return "\n".join(lines) + "\n"

    def _flwr(self, *arguments: str) -> str:
        log = self.folder / "logs" / "flwr.log"
        written = log.stat().st_size if log.exists() else 0
        child = self._start("flwr", [program("flwr"), *arguments])
        try:
            code = child.process.wait(timeout=_COMMAND)
        except subprocess.TimeoutExpired:
            raise ProcessError(f"flwr {arguments[0]} did not answer within {_COMMAND:g} s (log: {log})") from None
        finally:
            with uninterrupted():
                if child.running:
                    child.kill()
                self._children.remove(child)
        text = log.read_bytes()[written:].decode(errors="replace")
        if code != 0:
            raise ProcessError(f"flwr {arguments[0]} failed: {' '.join(text.split())[-400:]}")
        return text


def _json(text: str) -> dict[str, Any]:
    """The JSON object in an answer that may have other lines around it."""
    start, end = text.find("{"), text.rfind("}")
    try:
        parsed = json.loads(text[start : end + 1])
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}
