"""Processes that we start and answer for: quiet, offline, and gone when we are."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

from jsam.errors import JsamError, install_hint
from jsam.files import PRIVATE_UMASK, make_folder, private

# Ctrl-C, a supervisor, a terminal that is closed.
_ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
_PR_SET_PDEATHSIG = 1
_GRACE = 6.0


class ProcessError(JsamError):
    """A process that we need did not start, or ended too early."""


def quiet_environment(home: Path) -> dict[str, str]:
    """No telemetry, no update check, nothing installed at run time, and Flower's own files in a private folder."""
    environment = {**os.environ}
    # Flower's processes start each other by name.
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", "")])
    environment.update(
        FLWR_TELEMETRY_ENABLED="0",
        FLWR_DISABLE_UPDATE_CHECK="1",
        FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION="1",
        FLWR_SUPEREXEC_TASK_POLL_INTERVAL="0.1",
        FLWR_HOME=str(home),
        RAY_USAGE_STATS_ENABLED="0",
        PYTHONUNBUFFERED="1",
    )
    environment.setdefault("OMP_NUM_THREADS", "1")
    return environment


def program(name: str) -> str:
    """One of Flower's programs, from the same installation as this Python."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise ProcessError(f"{name} is not installed beside {sys.executable}: {install_hint('flower')}")
    return str(path)


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Put off Ctrl-C and the like until the block is over: in between nobody would know of a new process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    try:
        with _handling(lambda number, _: came.append(number)):
            yield
    finally:
        if came:
            signal.raise_signal(came[0])


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Whoever asks this process to end interrupts it as Ctrl-C does, so that what it started ends with it."""
    with _handling(_interrupt):
        yield


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


@contextlib.contextmanager
def _handling(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    # What is ignored (nohup) stays so.
    numbers = [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


class Child:
    """A process with a session of its own, so that it ends together with all that it started."""

    def __init__(
        self, name: str, command: Sequence[str], *, environment: Mapping[str, str], log: Path, folder: Path
    ) -> None:
        self.name, self.log = name, log
        make_folder(log.parent)
        with open(log, "ab", opener=private) as output:
            self.process = subprocess.Popen(
                list(command),
                env=dict(environment),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # Flower's database holds sensitivities, and its logs whatever went wrong.
                umask=PRIVATE_UMASK,
                preexec_fn=_dying_with(os.getpid()) if sys.platform == "linux" else None,  # noqa: PLW1509 - no threads
            )
        self.group = self.process.pid

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def signal(self, number: int) -> None:
        """To the process and all that it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.group, number)

    def kill(self) -> None:
        """At once, as a power cut would."""
        self.signal(signal.SIGKILL)
        self.process.wait()

    def tail(self, lines: int = 15) -> str:
        with contextlib.suppress(OSError):
            return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
        return ""

    @property
    def left(self) -> bool:
        """Whether anything of its group is still there."""
        # A process whose main thread has ended looks like a zombie while other threads go on; only `poll` can tell.
        return self.process.poll() is None or group_alive(self.group)


def group_alive(group: int) -> bool:
    """Whether a process group has a member that is not a zombie (someone else may be slow to reap those)."""
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return not Path("/proc").is_dir() or any(owner == group for _, owner in _living())


def started_with(name: str, value: str) -> list[int]:
    """Living processes with this in their environment, however they were detached; none where there is no /proc."""
    wanted, numbers = f"{name}={value}".encode(), []
    for process, _ in _living():
        with contextlib.suppress(OSError):
            if wanted in (process / "environ").read_bytes().split(b"\0"):
                numbers.append(int(process.name))
    return numbers


def _living() -> Iterator[tuple[Path, int]]:
    """The folder in /proc and the group of each process that is not a zombie."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            state, _, group = (process / "stat").read_text().rpartition(")")[2].split()[:3]
            if state not in "ZX":
                yield process, int(group)


def end_all(find: Callable[[], list[int]]) -> None:
    """Wait for processes that are about to end by themselves, then insist."""
    deadline = time.monotonic() + _GRACE
    while (left := find()) and time.monotonic() < deadline:
        time.sleep(0.1)
    for number in left:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(number, signal.SIGKILL)


def stop_all(children: Sequence[Child]) -> None:
    """Ask all to end, give them a moment, then insist; returns when nothing of them is left."""
    for child in children:
        child.signal(signal.SIGTERM)
    _until_gone(children, _GRACE)
    for child in children:
        if child.left:
            child.signal(signal.SIGKILL)
    _until_gone(children, _GRACE)
    left = [child.name for child in children if child.left]
    if left:
        raise ProcessError(f"processes would not end: {', '.join(left)}")


def _until_gone(children: Sequence[Child], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while any(child.left for child in children) and time.monotonic() < deadline:
        time.sleep(0.05)


def _dying_with(parent: int) -> Callable[[], None]:
    """Linux: a parent that is killed takes its children along, even if it was killed before they could ask for it."""

    def prepare() -> None:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    return prepare
