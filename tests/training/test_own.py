"""The how-to on one's own data and model runs as it is printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import require

if TYPE_CHECKING:
    import torch
else:
    torch = require("torch", extra="train")

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "own-data-and-model.md"


def test_the_page_trains_resumes_and_keeps_its_contracts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training, resuming = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.S)
    assert len([line for line in training.splitlines() if line and "import" not in line]) <= 10
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        exec(training, names)  # noqa: S102 - the page is ours
        assert names["result"].accuracy > 0.8
        torch.manual_seed(0)
        names["fresh_model"] = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
        exec(resuming, names)  # noqa: S102
    from jsam.training import settle

    assert settle("runs/mine", second_opinion=False).kept
