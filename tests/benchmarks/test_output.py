"""A benchmark's table and file: what is measured in minutes must not be lost at the end."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest

from benchmarks.output import print_table, store
from benchmarks.timing import Row

ROWS = {
    "rounds": [
        Row(
            what="ours ÷ theirs",
            bar="≤ 1.5",
            measured="2 ms to 1 ms",
            ratio=2.0,
            met=False,
            numbers={"seconds": [2e-3]},
        ),
        Row(what="of interest only", bar="", measured="1 ms", ratio=1.0, met=True, numbers={}),
    ],
    "peer": [],
}


def test_what_was_measured_is_stored_with_versions_and_machine(tmp_path: Path) -> None:
    store(ROWS, tmp_path / "new" / "found.json", module="benchmarks", packages=["numpy", "no-such-package"], threads=2)
    found = json.loads((tmp_path / "new" / "found.json").read_text())
    assert found["versions"]["python"] == platform.python_version()
    assert found["versions"]["numpy"][0].isdigit()
    assert found["versions"]["no-such-package"] is None
    assert found["results"]["rounds"][0]["ratio"] == 2.0
    assert found["threads"] == 2
    assert found["cores"] > 0


def test_a_bar_that_is_missed_is_called_so_and_what_was_left_out_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(ROWS, title="t", command="c", packages=["numpy"], left_out=lambda name: f"{name} is not installed")
    printed = capsys.readouterr().out
    assert printed.count("MISSED") == 1
    assert "met" not in printed.replace("MISSED", "")
    assert "peer: left out, peer is not installed" in printed
