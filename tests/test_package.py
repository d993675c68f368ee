"""The package as a whole: its version, what importing it costs, and how tests treat what is not installed."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

import jsam
from tests.conftest import require

HEAVY = {"torch", "matplotlib", "sklearn", "flwr", "ray", "fastapi", "sqlalchemy"}


def modules_after(statement: str) -> set[str]:
    """Top-level modules that a fresh interpreter holds after `statement`."""
    code = f"import json, sys; {statement}; print(json.dumps([name.partition('.')[0] for name in sys.modules]))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return set(json.loads(run.stdout))


def test_version_is_the_installed_one() -> None:
    assert jsam.__version__ == version("jsam-fl")


def test_a_wheel_holds_the_product_and_nothing_of_the_reproduction() -> None:
    checkout = Path(__file__).parents[1]
    project = tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))
    folders = project["tool"]["setuptools"]["packages"]["find"]["where"]
    packages = {path.parent.name for folder in folders for path in (checkout / folder).glob("*/__init__.py")}
    assert packages == {"jsam"}


def test_every_public_name_is_there() -> None:
    for name in jsam.__all__:
        assert getattr(jsam, name) is not None
        assert name in dir(jsam)
    assert jsam.mechanism.contract.Contract is jsam.Contract
    with pytest.raises(AttributeError, match="no attribute 'auction'"):
        _ = jsam.auction  # type: ignore[attr-defined]


@pytest.mark.parametrize("module", ["jsam", "jsam.mechanism", "jsam.cli"])
def test_import_loads_nothing_heavy(module: str) -> None:
    """Planning must start within a second and without the extras, so none of them may come with the import."""
    loaded = modules_after(f"import {module}")
    assert "jsam" in loaded
    assert not loaded & HEAVY


def test_the_import_check_sees_a_heavy_module() -> None:
    assert "matplotlib" in modules_after("import jsam, matplotlib") & HEAVY


def test_require_returns_what_is_installed() -> None:
    assert require("json", extra="dev") is json


def test_require_skips_and_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JSAM_REQUIRE_ALL", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"pip install '\.\[train\]'"):
        require("no_such_module", extra="train")


def test_require_fails_where_skips_are_not_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JSAM_REQUIRE_ALL", "1")
    with pytest.raises(pytest.fail.Exception, match="no_such_module is not installed"):
        require("no_such_module", extra="train")
