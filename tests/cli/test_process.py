"""`jsam` as a process of its own: exit codes, streams and signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import jsam
from tests.cli.conftest import EXAMPLE, UNIFORM

PROGRAM = str(Path(sys.executable).with_name("jsam"))
JSAM = [sys.executable, "-m", "jsam"]

# Loaded by the interpreter itself, before the program: where MOMENT comes, it tells so and waits.
HOOK = """
import atexit, os, sys

def moment():
    os.write(int(os.environ["TOLD"]), b".")
    os.read(int(os.environ["GO_ON"]), 1)

class Finder:
    def find_spec(self, name, *rest):
        if name == os.environ["MOMENT"]:
            moment()

sys.meta_path.insert(0, Finder())
if os.environ["MOMENT"] == "the end":
    atexit.register(moment)
"""


def start(*arguments: str | Path, stdout: int = subprocess.PIPE) -> subprocess.Popen[str]:
    command = [*JSAM, *map(str, arguments)]
    return subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE, text=True, encoding="utf-8")


def interrupted_at(moment: str, folder: Path, command: list[str], *, ignored: bool = False) -> tuple[int, str, str]:
    """The interrupt is sent when the process stands at that moment, and only then it may go on."""
    (folder / "sitecustomize.py").write_text(HOOK)
    told, tell = os.pipe()
    wait, go_on = os.pipe()
    if ignored:
        command = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command]
    process = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": str(folder), "MOMENT": moment, "TOLD": str(tell), "GO_ON": str(wait)},
        pass_fds=(tell, wait),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(tell)
    os.close(wait)
    try:
        reached = os.read(told, 1)
        process.send_signal(signal.SIGINT)
    finally:
        os.close(told)
        os.close(go_on)
    out, err = process.communicate(timeout=60)
    assert reached == b".", f"it ended without coming to {moment}: {err}"
    return process.returncode, out, err


def test_a_plan_is_all_that_standard_output_holds() -> None:
    """With the installed program itself, and nothing heavy loaded for it."""
    program = Path(sys.executable).with_name("jsam")
    command: list[str | Path] = [program, "plan", EXAMPLE, *UNIFORM, "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["num_clients"] == 100


def test_planning_under_a_uniform_prior_starts_quickly() -> None:
    """It must be done within a second: scipy.stats alone may take that long to import."""
    code = (
        "import sys; from jsam.cli import main; "
        f"main(['plan', {str(EXAMPLE)!r}, '--prior', 'uniform:0,1', '--loss-weight', '5']); "
        "loaded = {name.partition('.')[0] for name in sys.modules} & {'scipy', 'torch', 'matplotlib', 'pydantic'}; "
        "sys.exit(f'loaded {loaded}' if loaded else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_version() -> None:
    out, err = start("--version").communicate()
    assert (out, err) == (f"jsam {jsam.__version__}\n", "")


def test_bad_input_gives_one_line_and_code_2(tmp_path: Path) -> None:
    process = start("plan", tmp_path / "nowhere.csv", *UNIFORM)
    out, err = process.communicate()
    assert process.returncode == 2
    assert out == ""
    assert err.startswith("jsam: error: cannot read")
    assert err.count("\n") == 1


def test_a_violation_gives_code_1(tmp_path: Path) -> None:
    (tmp_path / "clients.csv").write_text("id,sensitivity\na,0.1\nb,0.4\nc,0.8\n")
    process = start("audit", tmp_path / "clients.csv", *UNIFORM, "--mechanism", "jsam-ci", "--strict")
    _, err = process.communicate()
    assert (process.returncode, err) == (1, "")


def test_an_interrupt_stops_it_without_a_traceback(tmp_path: Path) -> None:
    """The clients come through a named pipe: once it is open for reading, the command is surely at work."""
    pipe, target = tmp_path / "clients.csv", tmp_path / "result.json"
    os.mkfifo(pipe)
    process = start("plan", pipe, *UNIFORM, "--output", target)

    def release() -> None:
        """A command that ends without opening the pipe must fail this test, not hang it."""
        process.wait()
        os.close(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK))

    threading.Thread(target=release, daemon=True).start()
    with pipe.open("wb", buffering=0):
        process.send_signal(signal.SIGINT)
    # Only now, with the pipe closed: a signal just before the child blocks in read() takes effect when that returns.
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "jsam: stopped\n")
    assert not target.exists()


@pytest.mark.parametrize("command", [[PROGRAM], [*JSAM]], ids=["jsam", "python -m jsam"])
@pytest.mark.parametrize("moment", ["jsam.cli", "jsam.cli.app", "numpy", "typer", "jsam.cli.verify_contract"])
def test_an_interrupt_while_it_loads_leaves_no_traceback_either(
    tmp_path: Path, command: list[str], moment: str
) -> None:
    """From its own first import to its last; before that there is only the interpreter."""
    assert interrupted_at(moment, tmp_path, [*command, "--version"]) == (130, "", "jsam: stopped\n")


@pytest.mark.parametrize("command", [[PROGRAM], [*JSAM]], ids=["jsam", "python -m jsam"])
def test_an_interrupt_while_the_interpreter_ends_leaves_no_traceback(tmp_path: Path, command: list[str]) -> None:
    """What was printed is out by then."""
    found = interrupted_at("the end", tmp_path, [*command, "--version"])
    assert found == (130, f"jsam {jsam.__version__}\n", "jsam: stopped\n")


@pytest.mark.parametrize("moment", ["numpy", "the end"])
def test_an_interrupt_that_the_parent_ignores_stays_ignored(tmp_path: Path, moment: str) -> None:
    """As under nohup, or in the background of a script."""
    found = interrupted_at(moment, tmp_path, [*JSAM, "--version"], ignored=True)
    assert found == (0, f"jsam {jsam.__version__}\n", "")


def test_an_interrupt_while_it_loads_in_somebodys_process_is_answered_too() -> None:
    """`jsam.cli.main` leaves signals to whoever calls it."""
    code = (
        "import sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'numpy': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "from jsam.cli import main\n"
        "sys.exit(main(['--version']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "jsam: stopped\n")


def test_a_reader_that_goes_away_is_no_error() -> None:
    """As in `jsam plan … | head -0`: the pipe is closed before anything is written."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    process = start("plan", EXAMPLE, *UNIFORM, stdout=write_end)
    os.close(write_end)
    _, err = process.communicate()
    assert (process.returncode, err) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a disk that is always full")
def test_a_full_disk_is_reported() -> None:
    with open("/dev/full", "w") as full:
        process = start("plan", EXAMPLE, *UNIFORM, "--format", "json", stdout=full.fileno())
        _, err = process.communicate()
    assert process.returncode == 2
    assert err == "jsam: error: cannot write to standard output: No space left on device\n"


def test_a_terminal_without_greek_letters(tmp_path: Path) -> None:
    done = subprocess.run(
        [*JSAM, "plan", EXAMPLE, *UNIFORM],
        capture_output=True,
        text=True,
        encoding="ascii",
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "client-038" in done.stdout


def test_a_file_on_standard_input_is_not_overwritten(tmp_path: Path) -> None:
    path, content = tmp_path / "clients.csv", "id,sensitivity\na,0.1\nb,0.4\n"
    path.write_text(content)
    with path.open() as file:
        command: list[str | Path] = [*JSAM, "plan", "-", *UNIFORM, "--output", path]
        done = subprocess.run(command, stdin=file, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "would overwrite standard input" in done.stderr
    assert path.read_text() == content
