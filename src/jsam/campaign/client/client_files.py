"""What a client keeps on its own disk: one TOML file that says who it is, what it wants and where its things are.

    name = "hospital-a"
    sensitivity = 0.23          # what a unit of ε costs it
    data = "data.npz"           # arrays `inputs` and `targets`
    ledger = "ledger"           # a folder
    policy = "policy.toml"      # optional

Paths are relative to the file. A SuperNode is told of it by its own node config (`--node-config 'client-file="…"'`),
never by the server: a run's configuration comes from there, so nothing in it may name a path.
"""

from __future__ import annotations

import functools
import json
import logging
import math
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jsam.campaign.checked import ALLOWED, is_name
from jsam.campaign.client.client_folder import ClientFolder
from jsam.campaign.client.client_ledger import ClientLedger
from jsam.campaign.client.client_storage import ClientStorage
from jsam.campaign.client.policy import Policy
from jsam.errors import InputError
from jsam.files import keep_private, make_folder, private, read_toml, write_atomically

# Flower's simulation engine gives its nodes a number and nothing else; whoever starts it says here where clients live.
SIMULATED_CLIENTS = "JSAM_FLOWER_CLIENTS"
CLIENT_FILE = "client.toml"

logger = logging.getLogger(__name__)

_FIELDS = ("name", "sensitivity", "data", "ledger", "policy")


@dataclass(frozen=True, kw_only=True)
class ClientFiles:
    """A client's own settings, checked when they are read."""

    name: str
    sensitivity: float
    data: Path
    ledger: Path
    policy: Policy

    def __post_init__(self) -> None:
        if not is_name(self.name):
            raise InputError(f"name is {self.name!r}; it must be {ALLOWED}")
        value: object = self.sensitivity
        if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value > 0):
            raise InputError(f"sensitivity is {value!r}; it must be a finite number above 0")

    @classmethod
    def load(cls, path: Path | str, *, sensitivity: float | None = None) -> ClientFiles:
        """`sensitivity` replaces the file's where it is given."""
        path = Path(path)
        stored = read_toml(path, "client file")
        if sensitivity is not None:
            stored["sensitivity"] = sensitivity
        unknown = sorted(stored.keys() - set(_FIELDS))
        missing = [name for name in ("name", "sensitivity", "data", "ledger") if name not in stored]
        if unknown or missing:
            words = [f"lacks {name}" for name in missing] + [f"has unknown {name}" for name in unknown]
            raise InputError(f"client file {path} {', '.join(words)}; it may hold: {', '.join(_FIELDS)}")
        for name in ("data", "ledger", "policy"):
            if not isinstance(stored.get(name, ""), str):
                raise InputError(f"client file {path}: {name} is {stored[name]!r}; it must be a path in quotes")
        folder = path.parent
        policy = Policy.load(folder / stored["policy"]) if "policy" in stored else Policy()
        try:
            return cls(
                name=stored["name"],
                sensitivity=stored["sensitivity"],
                data=folder / stored["data"],
                ledger=folder / stored["ledger"],
                policy=policy,
            )
        except InputError as error:
            raise InputError(f"client file {path}: {error}") from error

    @classmethod
    def of_node(cls, node_config: Mapping[str, Any]) -> ClientFiles:
        """From a SuperNode's own configuration, or by number under the folder of a simulation."""
        if "client-file" in node_config:
            sensitivity = node_config.get("sensitivity")
            return cls.load(
                str(node_config["client-file"]), sensitivity=None if sensitivity is None else float(sensitivity)
            )
        folder = os.environ.get(SIMULATED_CLIENTS, "")
        if not folder or "partition-id" not in node_config:
            raise InputError("the node config has no client-file; start flower-supernode with one")
        return cls.load(client_folder(Path(folder), int(node_config["partition-id"])) / CLIENT_FILE)

    def storage(self) -> ClientStorage:
        """Where the books are kept: in the folder. A subclass may keep them elsewhere.

        How long replies take and which records a model takes are in the folder all the same: both are this machine's.
        """
        return ClientFolder(self.ledger)

    def books(self) -> ClientLedger:
        """The books, under the client's own limits."""
        return ClientLedger(self.storage(), self.policy)

    def keep_private(self) -> None:
        """Close data and ledger to other users of this machine; refuse a ledger that is somebody else's and open."""
        keep_private(self.ledger, "ledger")
        try:
            keep_private(self.data, "data")
        except InputError as error:
            # The owner of the data decides who else may read them, so this is a warning and no refusal.
            logger.warning("%s", error)

    def records(self) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Inputs and targets; read once a process."""
        try:
            return _records(self.data, self.data.stat().st_mtime_ns)
        except OSError as error:
            raise InputError(f"data {self.data} cannot be read: {error.strerror or 'it is no .npz file'}") from error


def client_folder(parent: Path, index: int) -> Path:
    return parent / f"client-{index}"


def write_client(
    folder: Path,
    *,
    name: str,
    sensitivity: float,
    inputs: NDArray[Any],
    targets: NDArray[np.int64],
    policy: str | None = None,
) -> Path:
    """A client's folder with all that it needs, as `deploy-local` and the tests make them; the client file."""
    if folder.exists():
        raise InputError(f"{folder} is there already; a client's folder is made once")
    make_folder(folder)
    with open(folder / "data.npz", "xb", opener=private) as data:
        np.savez(data, inputs=inputs, targets=targets)
    lines = [
        f"name = {json.dumps(name, ensure_ascii=False)}",
        f"sensitivity = {sensitivity!r}",
        'data = "data.npz"',
        'ledger = "ledger"',
    ]
    if policy is not None:
        write_atomically(folder / "policy.toml", policy.encode())
        lines.append('policy = "policy.toml"')
    file = folder / CLIENT_FILE
    write_atomically(file, ("\n".join(lines) + "\n").encode())
    return file


@functools.lru_cache(maxsize=8)
def _records(path: Path, _changed: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            inputs, targets = stored["inputs"], stored["targets"]
    except (ValueError, KeyError, TypeError, AttributeError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"data {path} is no .npz file with arrays `inputs` and `targets`") from error
    if len(inputs) != len(targets) or len(targets) == 0:
        raise InputError(f"{path} has {len(inputs)} inputs and {len(targets)} targets; it must have as many, and some")
    if inputs.dtype not in (np.float32, np.int64):
        inputs = inputs.astype(np.float32)
    return inputs, targets.astype(np.int64)
