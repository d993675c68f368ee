"""By the operator's list one id has one key and one key has one id: a key cannot be several clients."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives import serialization

from tests.conftest import require

if not TYPE_CHECKING:
    require("flwr", extra="flower")

from jsam.campaign.identity import Certificates
from jsam.campaign.server.answers import Flaw
from jsam.campaign.server.storage import NobodyLeftError
from jsam.errors import InputError
from tests.flower.loopback import Federation, published


def _as_pem(path: Path) -> bytes:
    key = serialization.load_ssh_public_key(path.read_bytes())
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


@pytest.mark.parametrize("form", ["the same file", "another remark", "another form"])
def test_two_ids_with_the_same_key_are_refused_at_start_in_one_line(form: str, tmp_path: Path) -> None:
    """Before anything is stored or anybody is asked, and however the key is written down."""
    federation = Federation.make(tmp_path, [0.2, 0.4])
    made = Certificates.make(tmp_path / "keys", ["client-0", "client-2"])
    first, second = made.public_key("client-0"), made.public_key("client-1")
    if form == "another form":
        second.write_bytes(_as_pem(first))
    else:
        second.write_bytes(first.read_bytes().rstrip() + (b" me@home\n" if "remark" in form else b"\n"))
    with pytest.raises(InputError, match=r"client-0.pub and client-1.pub are the same key; each client must") as got:
        federation.run(published(), keys=str(made.folder))
    assert "\n" not in str(got.value)
    assert federation.grid.log == []


def test_a_list_with_a_name_that_no_client_may_bear_is_refused(tmp_path: Path) -> None:
    federation = Federation.make(tmp_path, [0.2])
    made = Certificates.make(tmp_path / "keys", ["client-0"])
    shutil.copy(made.public_key("client-0"), made.folder / ("x" * 101 + ".pub"))
    with pytest.raises(InputError, match="is no name for a client"):
        federation.run(published(), keys=str(made.folder))


def test_a_key_that_is_not_on_the_list_cannot_report(tmp_path: Path) -> None:
    """It is a key that Flower let in; under its own name or another's, it is not in the market."""
    federation = Federation.make(tmp_path, [0.2, 0.4])
    first, second = federation.grid.nodes
    listed = Certificates.make(tmp_path / "keys", ["client-0"])
    own = Certificates.make(tmp_path / "own", ["client-1"])
    federation.grid.keys = {
        first: listed.public_key("client-0").read_bytes(),
        second: own.public_key("client-1").read_bytes(),
    }
    books = federation.run(published(), keys=str(listed.folder))
    assert [entry["id"] for entry in books["clients"]] == ["client-0"]
    assert books["left"] == [{"id": f"node {second}", "declined": str(Flaw.NAME_TAKEN)}]


def test_a_node_without_a_key_cannot_report(tmp_path: Path) -> None:
    federation = Federation.make(tmp_path, [0.2])
    listed = Certificates.make(tmp_path / "keys", ["client-0"])
    with pytest.raises(NobodyLeftError):
        federation.run(published(), keys=str(listed.folder))


def test_one_key_under_several_nodes_is_one_client(tmp_path: Path) -> None:
    """Flower lets a key in once; were it otherwise, its second report would not count either."""
    federation = Federation.make(tmp_path, [0.2, 0.4])
    first, second = federation.grid.nodes
    made = Certificates.make(tmp_path / "keys", ["client-0", "client-1"])
    key = made.public_key("client-0").read_bytes()
    federation.grid.keys = {first: key, second: key}
    books = federation.run(published(), keys=str(made.folder))
    assert [entry["id"] for entry in books["clients"]] == ["client-0"]
