"""A client's SuperNode runs the client's own app: shipped code is not even unpacked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.conftest import require

if not TYPE_CHECKING:
    require("flwr", extra="flower")

from flwr.supernode.runtime import run_clientapp as runtime

from jsam.campaign.client.client_files import write_client
from jsam.cli import main
from jsam.errors import InputError, NotSupportedError
from jsam.flower.client_app import deployed as app
from jsam.flower.launch import clientapp_launcher as own_app
from jsam.flower.launch.supernode import become_supernode


def test_flower_loads_what_the_client_chose_and_unpacks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def instead() -> None:
        seen["app"] = vars(runtime)["get_load_client_app_fn"](default_app_ref="", app_path=None, multi_app=True)(
            "a", "b", "c"
        )
        seen["installed"] = vars(runtime)["install_from_fab"](b"not even an archive", skip_prompt=True)

    for name in own_app._REPLACED:
        monkeypatch.setattr(runtime, name, getattr(runtime, name))
    monkeypatch.setattr("flwr.supernode.cli.flwr_clientapp", instead)
    monkeypatch.setattr("sys.argv", ["x"])
    own_app.run(own_app.OWN_APP, ["--token", "t"])
    assert seen == {"app": app, "installed": None}


def test_another_flower_is_refused_rather_than_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(runtime, "install_from_fab")
    with pytest.raises(NotSupportedError, match="install_from_fab"):
        own_app.run(own_app.OWN_APP, [])


@pytest.mark.parametrize("name", ["flwr-agentapp", "flwr-serverapp", "flwr-simulation", "flwr-connector", "flwr-model"])
def test_other_kinds_of_tasks_are_not_run(name: str, tmp_path: Path) -> None:
    programs = own_app.write_programs(tmp_path)
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    result = subprocess.run([name, "--token", "t"], env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "not run on this machine" in result.stderr


def test_what_serves_a_supernode_ends_with_it_even_if_that_was_gone_first(tmp_path: Path) -> None:
    """Its parent is said to be a process that has ended: it must not take whoever adopted it for its parent."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    folder = tmp_path / "programs"
    folder.mkdir()
    command = [
        sys.executable,
        "-P",
        "-m",
        "jsam.flower.launch.clientapp_launcher",
        "--serve",
        own_app.OWN_APP,
        str(folder),
    ]
    assert subprocess.run([*command, str(gone.pid)], check=False, timeout=60).returncode == 0
    assert not folder.exists()


@pytest.mark.parametrize("option", ["--node-config", "--node-config=a=1", "--isolation", "--isolation=process"])
def test_options_that_would_undo_this_are_refused(option: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="set by jsam"):
        become_supernode(tmp_path / "client.toml", [option], environment={})


@pytest.fixture
def client_file(tmp_path: Path) -> Path:
    inputs = np.zeros((2, 1, 8, 8), dtype=np.float32)
    return write_client(tmp_path / "c", name="a", sensitivity=0.5, inputs=inputs, targets=np.zeros(2, dtype=np.int64))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "--superlink"),
        (["--superlink", "127.0.0.1:1"], "--key"),
        (["--superlink", "127.0.0.1:1", "--key", "missing"], "--key 'missing' is not a file"),
        (["--superlink", "127.0.0.1:1", "--insecure", "--key", "k"], "not both"),
    ],
)
def test_the_command_asks_for_what_it_needs_in_one_line(
    options: list[str], words: str, client_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["supernode", str(client_file), *options]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_the_statement_of_an_empty_ledger(client_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["supernode", str(client_file), "--statement", "--format", "json"]) == 0
    assert '"campaigns": []' in capsys.readouterr().out
    assert main(["supernode", str(client_file), "--statement"]) == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('name = "a"', "lacks sensitivity"),
        ('name = "a"\nsensitivity = -1.0\ndata = "d"\nledger = "l"', "sensitivity is -1"),
        ('name = "a"\nsensitivity = true\ndata = "d"\nledger = "l"', "sensitivity is True"),
        ('name = ""\nsensitivity = 1.0\ndata = "d"\nledger = "l"', "name is ''"),
        ('name = "a"\nsensitivity = 1.0\ndata = "d"\nledger = "l"\nsensitvity = 2', "has unknown sensitvity"),
        ("name = ", "is not TOML"),
    ],
)
def test_client_files_that_cannot_be_used(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "client.toml"
    file.write_text(text)
    assert main(["supernode", str(file), "--statement"]) == 2
    assert words in capsys.readouterr().err
