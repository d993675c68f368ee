"""A small sample of the soak: real SuperNodes, and the real server, killed at random moments of a real campaign."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import require

if not TYPE_CHECKING:
    require("flwr", extra="flower")

from tests.soak.federation_kills import COUNTED, soak, violations
from tests.soak.federation_nodes import ANSWERING, NODE, NODE_ANSWERING


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs SIGKILL and /proc")
def test_killed_clients_and_a_killed_server_overspend_nothing_and_the_run_ends(tmp_path: Path) -> None:
    """By the clients' ledgers and by the server's; no reply that may have left is ever followed by another one."""
    result = soak(2, tmp_path, seed=5, server_kills=1, rounds=4, order=(NODE_ANSWERING, NODE))
    assert violations(result) == {}
    assert result["kills_by_kind"] == {NODE: 1, NODE_ANSWERING: 1, ANSWERING: 0}
    assert result["kills_of_the_server"] == 1
    assert result["accounts_settled"] == result["clients"] * result["campaigns"]
    assert result["replies_that_may_have_left"] == result["releases"] > 0
    assert result["replies_compared"] > 0


def test_whatever_is_counted_is_a_violation() -> None:
    """The verdict above is empty only where every count is 0."""
    for name in COUNTED:
        assert violations({**dict.fromkeys(COUNTED, 0), name: 1}) == {name: 1}
