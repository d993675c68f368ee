"""Linear models, on records and on their features, through the commands: plan, noise weight, resume and report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jsam.cli import main
from tests.conftest import require

if not TYPE_CHECKING:
    require("torch", extra="train")
    require("sklearn", extra="train")
    require("dp_accounting", extra="train")

RUN = ["--dataset", "digits", "--clients", "10", "--rounds", "6", "--per-round", "3", "--threads", "1"]
RUN += ["--loss-weight", "60", "--noise-seed", "0"]


def simulate(folder: Path, model: str = "scatter-linear") -> int:
    return main(["simulate", *RUN, "--model", model, "--output", str(folder)])


@pytest.mark.parametrize(("model", "parameters"), [("linear", 650), ("scatter-linear", 3250)])
def test_the_noise_weight_is_that_of_the_linear_model_and_the_contracts_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], model: str, parameters: int
) -> None:
    assert simulate(tmp_path / "run", model) == 0
    assert f"D = {parameters:,} parameters" in capsys.readouterr().err
    assert json.loads((tmp_path / "run" / "config.json").read_text())["data"]["parameters"] == parameters
    assert main(["report", str(tmp_path / "run")]) == 0
    assert "no contract was overspent" in capsys.readouterr().out


@pytest.mark.parametrize("cache", ["kept", "lost"])
def test_a_stopped_run_on_features_resumes_to_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: str
) -> None:
    from jsam.cli.running import RoundProgress

    seen = RoundProgress.__call__

    def stop(self: RoundProgress, record: dict[str, Any]) -> None:
        seen(self, record)
        if record["round"] == 4:
            raise KeyboardInterrupt

    assert simulate(tmp_path / "whole") == 0
    with monkeypatch.context() as patch:
        patch.setattr(RoundProgress, "__call__", stop)
        assert simulate(tmp_path / "run") == 130
    files = list((tmp_path / "cache" / "jsam" / "features").iterdir())
    assert files
    if cache == "lost":
        for path in files:
            path.unlink()
    assert main(["resume", str(tmp_path / "run")]) == 0
    for name in ("ledger.jsonl", "metrics.jsonl", "model.pt", "summary.json"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def test_what_takes_long_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("jsam.cli.running._UNSEEN_SECONDS", 0.0)
    assert simulate(tmp_path / "run") == 0
    assert capsys.readouterr().err.count("Computing features of 1,797 records") == 1
    assert simulate(tmp_path / "again") == 0
    assert "Computing features" not in capsys.readouterr().err
