"""What the commands answered before they still answer: a sample here, all of it by `python -m tests.golden`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.golden.__main__ import OUTPUTS, answer
from tests.golden.cases import cases

# Processors round the last digits of exp and log differently; on one machine the comparison by hand is exact.
NEAR = 1e-9
SAMPLE = ("plan-1", "plan-6", "plan-13", "plan-20", "audit-3", "compare-4", "calibrate-3", "calibrate-7")
CASES = {case.name: case for case in cases()}


@pytest.mark.parametrize("name", SAMPLE)
def test_a_command_answers_as_it_did(name: str, tmp_path: Path) -> None:
    stored = json.loads((OUTPUTS / f"{name}.json").read_text(encoding="utf-8"))
    assert _same(json.loads(answer(CASES[name], tmp_path)), stored)


def test_the_comparison_sees_a_changed_number() -> None:
    stored = json.loads((OUTPUTS / "plan-1.json").read_text(encoding="utf-8"))
    changed = json.loads(json.dumps(stored))
    changed["clients"][0]["payment"] *= 1 + 1e-7
    assert not _same(changed, stored)


def test_the_comparison_sees_a_key_that_is_gone_and_lets_new_ones_come() -> None:
    stored = json.loads((OUTPUTS / "plan-1.json").read_text(encoding="utf-8"))
    assert _same({**stored, "more": 1}, stored)
    assert not _same({name: value for name, value in stored.items() if name != "objective"}, stored)


def _same(now: Any, stored: Any) -> bool:
    if isinstance(stored, dict):
        # New keys may come; what was there stays as it was.
        return isinstance(now, dict) and now.keys() >= stored.keys() and all(_same(now[k], stored[k]) for k in stored)
    if isinstance(stored, list):
        return isinstance(now, list) and len(now) == len(stored) and all(map(_same, now, stored))
    if isinstance(stored, float):
        return isinstance(now, float) and math.isclose(now, stored, rel_tol=NEAR, abs_tol=1e-12)
    return bool(now == stored)
