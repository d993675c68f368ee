"""Every path that ARCHITECTURE.md names exists, and every package of jsam is named there."""

from __future__ import annotations

import re

from tests.docs.blocks import ROOT

TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
PATHS = {name for name in re.findall(r"`([^`\s]+)`", TEXT) if "/" in name or name.endswith((".py", ".toml", ".md"))}


def test_every_path_that_is_named_exists() -> None:
    assert len(PATHS) > 30
    assert [name for name in sorted(PATHS) if not (ROOT / name).exists()] == []
    assert [name for name in sorted(PATHS) if name.endswith("/") and not (ROOT / name).is_dir()] == []


def test_every_package_is_named() -> None:
    packages = {f"src/jsam/{path.parent.name}/" for path in (ROOT / "src/jsam").glob("*/__init__.py")}
    assert packages - PATHS == set()
