"""Encryption and identity by Flower's own means: a node with a wrong key, a wrong authority or none gets nothing."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.conftest import require

if not TYPE_CHECKING:
    require("flwr", extra="flower")

from jsam.campaign.client.client_files import write_client
from jsam.campaign.identity import Certificates
from jsam.flower.launch.federation import LocalFederation
from jsam.flower.launch.processes import Child, program


def _until(ready: object, *, seconds: float = 90.0) -> bool:
    assert callable(ready)
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def _connected(child: Child) -> bool:
    """A SuperNode logs its id once the SuperLink has let it in."""
    return "SuperNode ID" in child.tail(1000)


class _FlowersOwnNodes(LocalFederation):
    """Flower's own program, not ours: what is asked here is whether the SuperLink lets it in."""

    def __init__(self, folder: Path, certificates: Certificates, connections: dict[str, list[str]]) -> None:
        super().__init__(folder, certificates=certificates)
        self.connections = connections

    def node_program(self, name: str) -> list[str]:
        return [program("flower-supernode"), "--node-config", f"client-file={json.dumps(str(self.client_files[name]))}"]

    def connection(self, name: str) -> list[str]:
        return self.connections.get(name) or super().connection(name)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="starts processes as Linux does")
def test_only_a_registered_key_over_the_right_authority_gets_in(tmp_path: Path) -> None:
    certificates = Certificates.make(tmp_path / "certificates", ["good", "stranger"])
    other = Certificates.make(tmp_path / "other")
    file = write_client(
        tmp_path / "client", name="good", sensitivity=0.2,
        inputs=np.zeros((2, 1, 8, 8), dtype=np.float32), targets=np.zeros(2, dtype=np.int64),
    )  # fmt: skip
    key = ("--auth-supernode-private-key", str(certificates.private_key("good")))
    limit = ("--max-retries", "1", "--max-wait-time", "5")
    refused = {
        "stranger": [*certificates.supernode_options("stranger"), *limit],
        "wrong authority": ["--root-certificates", str(other.authority), *key, *limit],
        "plain text": ["--insecure", *limit],
        "no key": ["--root-certificates", str(certificates.authority), *limit],
    }
    with _FlowersOwnNodes(tmp_path, certificates, refused) as federation:
        federation.register("good")
        children = {name: federation.add_node(name, file) for name in refused}
        assert _until(lambda: not any(child.running for child in children.values())), [
            (name, child.tail(5)) for name, child in children.items() if child.running
        ]
        for name, child in children.items():
            assert not _connected(child), name
            assert child.process.returncode != 0, name
        good = federation.add_node("good", file)
        assert _until(lambda: _connected(good)), good.tail()
        assert good.running


def test_secret_files_are_for_their_owner_only(tmp_path: Path) -> None:
    certificates = Certificates.make(tmp_path / "made", ["a"])
    assert (tmp_path / "made").stat().st_mode & 0o077 == 0
    for path in (certificates.private_key("a"), tmp_path / "made" / "server.key"):
        assert path.stat().st_mode & 0o077 == 0


def test_the_certificate_names_this_machine_and_is_signed_by_the_authority(tmp_path: Path) -> None:
    from cryptography import x509

    made = Certificates.make(tmp_path)
    authority = x509.load_pem_x509_certificate(made.authority.read_bytes())
    server = x509.load_pem_x509_certificate((tmp_path / "server.crt").read_bytes())
    server.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
