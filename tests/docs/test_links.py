"""Links between pages lead somewhere; the sections, files and modules that pages and docstrings name exist."""

from __future__ import annotations

import pkgutil
import re

import pytest

from tests.conftest import require
from tests.docs.blocks import ROOT

PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]
)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FILE = re.compile(r"`((?:src|tests|benchmarks|reproduction|results|docs|examples)/[\w./-]+)`")
MODULE = re.compile(r"`(jsam\.\w+\.[\w.]+)`")
CITED = re.compile(r'docs/theory\.md,\s+(?:#\s*)?"([^"]+)"')


def prose(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def headings(text: str) -> list[str]:
    return re.findall(r"^#+ (.+)$", prose(text), flags=re.MULTILINE)


def anchor(heading: str) -> str:
    """As GitHub makes them: lower case, punctuation dropped, blanks to dashes."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES)
def test_relative_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in LINK.findall(prose(text)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, section = target.partition("#")
        path = ((ROOT / page).parent / name).resolve() if name else ROOT / page
        assert path.exists(), f"{page} links to {target}, which is not there"
        assert path.is_relative_to(ROOT), f"{page} links to {target}, outside the project"
        if section:
            there = {anchor(heading) for heading in headings(path.read_text(encoding="utf-8"))}
            assert section in there, f"{page} links to {target}, and there is no such section"


@pytest.mark.parametrize("page", PAGES)
def test_files_that_are_named_exist(page: str) -> None:
    text = prose((ROOT / page).read_text(encoding="utf-8"))
    assert [name for name in FILE.findall(text) if not (ROOT / name).exists()] == []


def test_modules_that_are_named_exist() -> None:
    require("torch", extra="train")
    names = {name for page in PAGES for name in MODULE.findall((ROOT / page).read_text(encoding="utf-8"))}
    assert len(names) > 5
    for name in sorted(names):
        pkgutil.resolve_name(name)


def test_cited_sections_of_the_theory_exist() -> None:
    known = set(headings((ROOT / "docs/theory.md").read_text(encoding="utf-8")))
    cited = {
        (str(path.relative_to(ROOT)), re.sub(r"\s+#?\s*", " ", section))
        for folder in ("src", "tests", "benchmarks")
        for path in (ROOT / folder).glob("**/*.py")
        for section in CITED.findall(path.read_text(encoding="utf-8"))
    }
    assert {section for _, section in cited} - known == set(), cited
    assert len(cited) >= 6
