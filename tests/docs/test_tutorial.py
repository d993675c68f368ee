"""What the documentation shows is what happens: every block runs, and prints what stands below it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import require
from tests.docs.blocks import CUT, PAGES, agrees, reader, steps

require("matplotlib", extra="plot")


@pytest.mark.parametrize("page", PAGES)
def test_every_block_runs_and_prints_what_is_shown(page: str, tmp_path: Path) -> None:
    with reader(page, tmp_path) as (text, session):
        ran = 0
        for step in steps(text):
            printed = session.run(step)
            ran += 1
            if step.shown is not None:
                shown = text[slice(*step.shown)]
                assert agrees(shown, printed), f"{page}:{step.line} shows\n{shown}\nbut prints\n{printed}"
        assert ran > 0


def test_a_wrong_output_would_be_noticed() -> None:
    assert agrees("a\nb\n", "a\nb  \n\n")
    assert not agrees("a\nb\n", "a\nc\n")
    assert not agrees("a\n", "a\nb\n")
    assert agrees(f"a\n{CUT}\n", "a\nb\nc\n")
    assert not agrees(f"b\n{CUT}\n", "a\nb\nc\n")
    assert not agrees("", "a\n")
