"""A small sample of the soak: a few real kills at random moments."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import require

if not TYPE_CHECKING:
    require("torch", extra="train")
    require("sklearn", extra="train")
    require("dp_accounting", extra="train")

from tests.soak.kill_and_resume import preload, soak


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs fork and SIGKILL")
def test_killed_at_random_moments_and_resumed_every_byte_is_the_same(tmp_path: Path) -> None:
    preload()
    result = soak(4, tmp_path, seed=3)
    assert result["kills"] == 4
