"""What `jsam deploy-local` says before it starts anything; runs of it are in tests/flower/test_local.py."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import require

if not TYPE_CHECKING:
    require("flwr", extra="flower")

from jsam.cli import main


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--clients", "0"], "--clients"),
        (["--format", "csv"], "'table', 'json'"),
        (["--budget-probability", "0.9"], "--budget-probability needs --budget"),
        (["--mechanism", "fsbm-9"], "fsbm-9 selects 9 of 3 clients"),
        (["--mechanism", "bbm-2"], "bbm-2 selects by local loss"),
        (["--loss-weight", "5", "--budget", "5"], "not both"),
        (["--budget", "-3"], "--budget is -3.0; it must be a positive number"),
        (["--clients", "5000"], "must be 1 to 1500, the number of samples"),
        (["--dataset", "nothing"], "nothing"),
        (["--mechanism", "best"], "unknown mechanism"),
        (["--delta", "2"], "--delta is 2"),
        (["--prior", "nonsense:1"], "nonsense"),
        (["--prior", "halves"], "learned from the reports in a file of clients"),
        (["--lot", "600", "--noise-weight", "1", "--bias-weight", "1"], "lot counts data by records"),
    ],
)
def test_bad_input_is_one_line_and_starts_nothing(
    options: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "deployment"
    assert main(["deploy-local", "--output", str(folder), *options]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert not folder.exists()


@pytest.mark.parametrize("place", ["file", "file/below", "/dev/null/below"])
def test_an_output_that_cannot_be_a_folder_is_one_line(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    assert main(["deploy-local", "--output", str(tmp_path / place)]) == 2
    error = capsys.readouterr().err
    assert "cannot be used" in error
    assert error.count("\n") == 1
    assert (tmp_path / "file").read_text() == "mine"


def test_an_earlier_deployment_is_left_alone(tmp_path: Path) -> None:
    from jsam.cli.deploy_local import holds_something
    from jsam.cli.output import free_folder

    (tmp_path / "d").mkdir()
    assert free_folder(tmp_path / "d", holds_something) == tmp_path / "d"
    (tmp_path / "d" / "something").touch()
    assert free_folder(tmp_path / "d", holds_something) == tmp_path / "d-2"


def test_sizes_count_in_the_plan_unless_the_mechanism_knows_nothing_of_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from jsam.cli.deploy_local import _counting_sizes

    settings = {"campaign": "a", "loss_weight": 5.0, "max_epsilon": 10.0}
    assert _counting_sizes({**settings, "mechanism": "jsam-even"}, wanted=True).sizes == "reported"
    assert _counting_sizes({**settings, "mechanism": "jsam-even"}, wanted=False).sizes == "equal"
    assert not capsys.readouterr().err
    assert _counting_sizes({**settings, "mechanism": "jsam"}, wanted=True).sizes == "equal"
    assert "the plan treats all clients alike" in capsys.readouterr().err
