"""Lines of the documentation are at most 100 characters long, so that they can be read and compared anywhere."""

from __future__ import annotations

import re

import pytest

from tests.docs.blocks import ROOT

LONGEST = 100
FOLDERS = ("docs", "examples", "reproduction", "experiments", "results", "src", "tests", "benchmarks")
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in [*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).glob("**/*.md"))]
)
OUTPUT_FENCES = ("text", "console")  # they show what a program prints
ROW = re.compile(r"\|.*\|")
IMAGE = re.compile(r"!\[[^\]]*\]\([^)]*\)")


def too_long(text: str) -> list[tuple[int, str]]:
    """Number and text of each line over the limit, but for table rows, images, lone URLs and shown output."""
    lines: list[tuple[int, str]] = []
    fence: str | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if stripped.startswith("```"):
            fence = stripped.removeprefix("```") if fence is None else None
        if len(line) <= LONGEST or fence in OUTPUT_FENCES:
            continue
        unbreakable = ROW.fullmatch(stripped) or IMAGE.fullmatch(stripped) or " " not in stripped
        if fence is not None or not unbreakable:
            lines.append((number, line))
    return lines


@pytest.mark.parametrize("page", PAGES)
def test_no_line_is_longer_than_a_hundred_characters(page: str) -> None:
    assert too_long((ROOT / page).read_text(encoding="utf-8")) == []


def test_a_long_line_would_be_noticed() -> None:
    prose, code = "word " * 21, "x = 1  " + "#" * 100
    assert too_long(prose) == [(1, prose)]
    assert too_long(f"```python\n{code}\n```\n{prose}") == [(2, code), (4, prose)]
    assert too_long(f"```text\n{code}\n```\n| {code} |\n![{prose}](a.png)\nhttps://{'a' * 100}\n") == []
