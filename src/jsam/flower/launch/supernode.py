"""Start a SuperNode that is quiet, installs nothing, and runs the client's own app whatever a server ships."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from jsam.campaign.client.client_files import ClientFiles
from jsam.errors import InputError
from jsam.files import PRIVATE_UMASK, keep_private, make_folder
from jsam.flower.launch.clientapp_launcher import OWN_APP, write_programs
from jsam.flower.launch.processes import program

_OURS = ("--node-config", "--isolation", "--allow-runtime-dependency-installation")


def become_supernode(
    client_file: Path, options: Sequence[str], *, environment: Mapping[str, str], app: str = OWN_APP
) -> None:
    """Check the client's own file, then turn this process into `flower-supernode`; returns only by raising."""
    ours = [option for option in options if option.partition("=")[0] in _OURS]
    if ours:
        raise InputError(f"{ours[0]} is set by jsam; leave it out")
    files = ClientFiles.load(client_file)
    keep_private(client_file, "client file")
    files.keep_private()
    files.records()
    if home := environment.get("FLWR_HOME"):
        make_folder(Path(home))
        keep_private(Path(home), "Flower's folder")
    os.umask(PRIVATE_UMASK)  # for all that Flower itself writes
    # A socket's path may have a hundred characters, so it does not lie with the client's files.
    programs = write_programs(Path(tempfile.mkdtemp(prefix="jsam-")), app)
    own = {**environment, "PATH": os.pathsep.join([str(programs), environment.get("PATH", "")])}
    served = ["--serve", app, str(programs), str(os.getpid())]
    subprocess.Popen([sys.executable, "-P", "-m", "jsam.flower.launch.clientapp_launcher", *served], env=own)
    config = f"client-file={json.dumps(str(client_file.absolute()))}"
    command = program("flower-supernode")
    os.execve(command, [command, "--node-config", config, *options], own)


if __name__ == "__main__":
    become_supernode(Path(sys.argv[2]), sys.argv[3:], environment=os.environ, app=sys.argv[1])
