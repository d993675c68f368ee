"""Run the client's own app, never what a server ships, and run it without delay.

A SuperNode executes the app that the server packs into a run: whoever controls the server could ship code that reads
the data and ignores every ledger. Flower's own answer, apps signed by trusted entities, needs a SuperLink that supports
it. Here the client decides instead: its SuperNode finds our programs first in its PATH, and of those `flwr-clientapp`
talks to the SuperNode as Flower's does, but takes an app that is installed here; the shipped one is neither unpacked
nor imported. Programs for other kinds of tasks refuse.

Flower starts a process for every message, and loading Flower and torch takes seconds. So one process loads them once
and forks for each message. It computes nothing itself, and a fork shares no open file or lock of the ledger.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import shlex
import shutil
import signal
import socket
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

from jsam.errors import InputError, NotSupportedError

OWN_APP = "jsam.flower.client_app:deployed"

_KEPT = "flwr-clientapp"
_REFUSED = ("flwr-agentapp", "flwr-connector", "flwr-model", "flwr-serverapp", "flwr-simulation")
# Names in flwr.supernode.runtime.run_clientapp that decide what is loaded; another version may call them otherwise.
_REPLACED = ("install_from_fab", "get_load_client_app_fn", "install_app_dependencies")
# Asks the loaded process to fork; where there is none, becomes a process that loads everything itself.
_STARTER = """\
import os, socket, sys
try:
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(10)
        line.connect({socket!r})
        line.sendall("\\0".join(sys.argv[1:]).encode())
        line.shutdown(socket.SHUT_WR)
        forked = line.recv(1) == b"1"
except OSError:
    forked = False
if not forked:
    os.execv({python!r}, [{python!r}, "-P", "-m", "jsam.flower.launch.clientapp_launcher", {app!r}, *sys.argv[1:]])
"""


def write_programs(folder: Path, app: str = OWN_APP) -> Path:
    """A folder to put first in a SuperNode's PATH."""
    starter = folder / "start.py"
    starter.write_text(_STARTER.format(socket=str(line_in(folder)), python=sys.executable, app=app), encoding="utf-8")
    # -I, -S and -P: nothing from the working folder may take the place of an installed module.
    _script(folder / _KEPT, f'exec {shlex.quote(sys.executable)} -I -S {shlex.quote(str(starter))} "$@"')
    for name in _REFUSED:
        _script(folder / name, f"echo '{name} is not run on this machine' >&2; exit 1")
    return folder


def line_in(folder: Path) -> Path:
    return folder / "line"


def _script(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
    path.chmod(0o700)


def app_named(name: str) -> object:
    """The app that the client chose, `module:name`, from its own installation."""
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"app {name!r} cannot be loaded ({error}); it must be module:name of an installed app"
        ) from error


def run(app: str, arguments: list[str]) -> None:
    """Run Flower's program `flwr-clientapp` with the client's own app."""
    from flwr.supernode.cli import flwr_clientapp
    from flwr.supernode.runtime import run_clientapp as runtime

    missing = [name for name in _REPLACED if not hasattr(runtime, name)]
    if missing:
        raise NotSupportedError(f"this Flower has no {missing[0]}; jsam runs the client's own app with flwr 1.41 only")
    chosen = app_named(app)
    for name, replacement in zip(_REPLACED, (_nothing, lambda **_: lambda *_: chosen, _nothing), strict=True):
        setattr(runtime, name, replacement)
    sys.argv = [_KEPT, *arguments]
    flwr_clientapp()


def _nothing(*_: object, **__: object) -> None:
    return None


def serve(app: str, folder: Path, parent: int) -> None:
    """Load everything, then fork for whoever calls, until the parent is gone; then remove the folder.

    The parent says its own number: it may be gone before this process can ask for it.
    """
    signal.signal(signal.SIGTERM, _end)
    with _removed(folder), socket.socket(socket.AF_UNIX) as line:
        line.bind(str(line_in(folder)))
        line.listen(16)
        if os.getppid() != parent:
            return
        importlib.import_module("flwr.supernode.cli")
        importlib.import_module("jsam.training.federated.local_training")
        app_named(app)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children
        while os.getppid() == parent:
            if select.select([line], [], [], 0.5)[0]:
                with contextlib.suppress(OSError):
                    _fork(line, app)


def _end(_number: int, _frame: object) -> None:
    raise SystemExit


@contextlib.contextmanager
def _removed(folder: Path) -> Iterator[None]:
    owner = os.getpid()
    try:
        yield
    finally:
        if os.getpid() == owner:  # a fork must not clear away what others need
            shutil.rmtree(folder, ignore_errors=True)


def _fork(line: socket.socket, app: str) -> None:
    caller, _ = line.accept()
    with caller:
        caller.settimeout(10)
        words = b""
        while piece := caller.recv(65536):
            words += piece
        if os.fork() == 0:
            code = 1
            try:
                caller.sendall(b"1")
                caller.close()
                line.close()
                for number in (signal.SIGCHLD, signal.SIGTERM):
                    signal.signal(number, signal.SIG_DFL)
                run(app, words.decode().split("\0"))
                code = 0
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 1
            except BaseException:  # noqa: BLE001 - what would be Python's own last word
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
    else:
        run(sys.argv[1], sys.argv[2:])
