"""A small sample of the soak: real SuperNodes, and the real server, killed at random moments of a real campaign."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import require

if not TYPE_CHECKING:
    require("flwr", extra="flower")

from tests.soak.federation_kills import soak


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs SIGKILL and /proc")
def test_three_killed_clients_and_a_killed_server_overspend_nothing_and_the_run_ends(tmp_path: Path) -> None:
    """By the clients' ledgers and by the server's; no reply that may have left is ever followed by another one."""
    result = soak(3, tmp_path, seed=5, server_kills=1, rounds=3)
    assert result["kills_of_clients"] == 3
    assert result["kills_of_the_server"] == 1
