"""Report pages stand alone, say what the files say, and show ids as text."""

from __future__ import annotations

import dataclasses
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import require

if not TYPE_CHECKING:
    require("torch", extra="train")

from jsam.errors import InputError
from jsam.report.comparison_html import write_comparison_page
from jsam.report.run_html import write_run_page
from jsam.runs.settlement import settle
from tests.training.small import run, small_contract

pytestmark = pytest.mark.filterwarnings("ignore::jsam.errors.TrainingWarning")

NAMES = ("<script>alert(1)</script>", "b&c", 'd"e', "f", "g", "h")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pages") / "run"
    run(path, contract=dataclasses.replace(small_contract(), names=NAMES))
    settle(path, second_opinion=False)
    write_run_page(path)
    return path


class _Tags(HTMLParser):
    """Every tag closed in order, and what each refers to."""

    VOID = ("meta", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "xlink:href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def _parsed(page: str) -> _Tags:
    tags = _Tags()
    tags.feed(page)
    tags.close()
    assert tags.open == []
    return tags


def test_the_page_is_whole_and_asks_nobody_for_anything(folder: Path) -> None:
    page = (folder / "report.html").read_text(encoding="utf-8")
    tags = _parsed(page)
    assert tags.links == []
    assert "script" not in tags.tags
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", page)
    assert tags.tags.count("svg") == 10  # five charts, each for a desk and for a telephone


def test_the_page_shows_every_client_as_text_with_what_the_audit_says(folder: Path) -> None:
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<script" not in page
    assert page.count("<tr") > len(NAMES)
    assert "no contract was overspent: 6 clients under contract" in page
    assert "one record added, removed or zeroed" in page


def test_pages_say_how_even_a_contract_is(folder: Path, tmp_path: Path) -> None:
    """Under USBM every client is drawn equally often, and the rent is what the contract's numbers say."""
    content = json.loads((folder / "contract.json").read_text(encoding="utf-8"))
    cost = sum(client["sensitivity"] * client["epsilon"] for client in content["clients"])
    rent = f"{1 - cost / content['total_payment']:.0%}"
    row = f"<td>usbm</td><td>6</td><td>0</td><td>0</td><td>1</td><td>{max_epsilon(content):.4g}</td>"
    write_comparison_page([folder], tmp_path / "page.html", headline="a", notes=[])
    for page in (folder / "report.html", tmp_path / "page.html"):
        text = page.read_text(encoding="utf-8")
        assert row in text
        assert f"<td>{rent}</td>" in text


def max_epsilon(contract: dict[str, Any]) -> float:
    return max(float(client["epsilon"]) for client in contract["clients"])


def test_the_comparison_links_to_its_runs_and_to_nothing_else(folder: Path, tmp_path: Path) -> None:
    path = folder.parent / "report.html"
    write_comparison_page([folder, folder], path, headline="A < B", notes=["a note"])
    page = path.read_text(encoding="utf-8")
    assert _parsed(page).links == ["run/report.html", "run/report.html"]
    assert "A &lt; B" in page


def test_a_page_needs_the_audit_and_says_so(tmp_path: Path) -> None:
    run(tmp_path / "run")
    with pytest.raises(InputError, match=r"audit\.json cannot be read.*jsam report"):
        write_run_page(tmp_path / "run")
