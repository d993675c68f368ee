"""The commands about training, end to end on the small digits: what they write, what they say, how they fail."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jsam.cli import main
from tests.conftest import require

if not TYPE_CHECKING:
    require("torch", extra="train")
    require("sklearn", extra="train")
    require("dp_accounting", extra="train")

SMALL = ["--dataset", "digits", "--clients", "10", "--rounds", "6", "--per-round", "3", "--threads", "1"]
ECONOMY = ["--loss-weight", "60", "--max-epsilon", "10"]
REPEATABLE = ["--noise-seed", "0"]
PROC = pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc, where nobody can make a folder")
FILES = {
    "audit.json", "checkpoint.pt", "config.json", "contract.json", "ledger.jsonl", "metrics.jsonl", "model.pt",
    "report.html", "rules.toml", "schedule.jsonl", "summary.json",
}  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli") / "run"
    assert main(["simulate", *SMALL, *ECONOMY, *REPEATABLE, "--output", str(folder)]) == 0
    return folder


def test_simulate_writes_the_whole_folder_and_says_how_it_went(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", *SMALL, *ECONOMY, "--mechanism", "usbm", "--output", str(tmp_path / "run")]) == 0
    assert {path.name for path in (tmp_path / "run").iterdir()} == FILES | {"noise.key"}
    said = capsys.readouterr()
    # On the screen and on the page, the noise weight with what it follows from.
    assert "noise weight" in said.err
    assert "· D/M², with D = 8,714 parameters" in said.err
    assert "as follows from the task" in (tmp_path / "run" / "report.html").read_text()
    assert "test accuracy" in said.out
    assert "no contract was overspent: 10 clients under contract" in said.out
    assert "round 6 of 6" in said.err


def test_report_recomputes_the_spending_and_agrees(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(finished), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kept"] is True
    assert len(found["clients"]) == 10
    assert all(client["spent"] <= client["bought"] for client in found["clients"])
    sold = sum(client["bought"] > 0 for client in found["clients"])
    assert main(["report", str(finished)]) == 0
    shown = capsys.readouterr().out
    assert f"{sold} of 10 under contract" in shown
    assert f"no contract was overspent: {sold} clients under contract" in shown
    assert main(["report", str(finished), "--format", "csv"]) == 0
    assert capsys.readouterr().out.startswith("id,bought,spent,second_opinion")


def test_report_fails_loudly_if_a_client_is_over_its_contract(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(finished, tmp_path / "run")
    path = tmp_path / "run" / "ledger.jsonl"
    head, first, *rest = path.read_text().splitlines()
    record = json.loads(first)
    record["noise_std"] /= 2
    path.write_text("\n".join([head, json.dumps(record, separators=(",", ":")), *rest, ""]))
    assert main(["report", str(tmp_path / "run")]) == 1
    said = capsys.readouterr()
    assert "OVER" in said.out
    assert f"client {record['client']}: sold" in said.err
    assert "OVER their contract" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_report_does_not_believe_a_ledger_with_other_noise_than_the_contract_demands(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], factor: float
) -> None:
    shutil.copytree(finished, tmp_path / "run")
    path = tmp_path / "run" / "ledger.jsonl"
    head, first, *rest = path.read_text().splitlines()
    record = json.loads(first)
    due, record["noise_std"] = record["noise_std"], record["noise_std"] * factor
    path.write_text("\n".join([head, json.dumps(record, separators=(",", ":")), *rest, ""]))
    assert main(["report", str(tmp_path / "run")]) == 1
    said = capsys.readouterr()
    line = f"noise std {due * factor:.9g} for client {record['client']} in round 0; the contract demands"
    assert line in said.err
    page = (tmp_path / "run" / "report.html").read_text()
    assert ("OVER their contract" if factor < 1 else "NOT the one that the contract demands") in page
    assert main(["report", str(tmp_path / "run"), "--format", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["kept"] is False


def test_resume_finishes_a_stopped_run_to_the_same_files(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from jsam.cli.running import RoundProgress

    seen = RoundProgress.__call__

    def stop(self: RoundProgress, record: dict[str, Any]) -> None:
        seen(self, record)
        if record["round"] == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(RoundProgress, "__call__", stop)
    folder = tmp_path / "run"
    options = [*SMALL, *ECONOMY, *REPEATABLE, "--checkpoint-every", "20"]
    assert main(["simulate", *options, "--output", str(folder)]) == 130
    assert f"jsam resume {folder}" in capsys.readouterr().err
    monkeypatch.undo()
    assert main(["resume", str(folder)]) == 0
    assert "Training (jsam-even): round 6 of 6" in capsys.readouterr().err
    for name in FILES - {"report.html"}:
        assert (folder / name).read_bytes() == (finished / name).read_bytes(), name
    assert main(["resume", str(folder)]) == 0
    assert "is complete" in capsys.readouterr().err


def test_a_contract_file_is_trained_as_it_stands(tmp_path: Path, finished: Path) -> None:
    contract = str(finished / "contract.json")
    assert main(["simulate", *SMALL, "--contract", contract, "--output", str(tmp_path / "run")]) == 0
    assert (tmp_path / "run" / "contract.json").read_bytes() == (finished / "contract.json").read_bytes()
    assert (tmp_path / "run" / "ledger.jsonl").read_bytes() == (finished / "ledger.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--mechanism", "jsam"),
        ("--prior", "uniform:0,1"),
        ("--loss-weight", "5"),
        ("--budget", "5"),
        ("--budget-probability", "0.9"),
        ("--noise-weight", "1"),
        ("--bias-weight", "1"),
        ("--max-selection-prob", "0.5"),
        ("--max-epsilon", "3"),
    ],
)
def test_a_contract_leaves_nothing_to_plan(
    tmp_path: Path, finished: Path, capsys: pytest.CaptureFixture[str], option: str, value: str
) -> None:
    """Not even a value that happens to be the default: whoever writes it expects it to count."""
    given = ["--contract", str(finished / "contract.json"), option, value]
    assert main(["simulate", *SMALL, *given, "--output", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert said == f"jsam: error: give --contract or {option}, not both: a contract is already planned\n"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("clients", ["11", "reports.csv"])
def test_other_clients_than_the_contract_has_are_refused(
    tmp_path: Path, finished: Path, capsys: pytest.CaptureFixture[str], clients: str
) -> None:
    given = ["--contract", str(finished / "contract.json"), "--clients", clients]
    assert main(["simulate", "--dataset", "digits", *given, "--output", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert f"--clients is {clients} and contract" in said
    assert said.count("\n") == 1


def test_tensorboard_files_are_written_if_asked_for(tmp_path: Path) -> None:
    require("tensorboard", extra="train")
    assert main(["simulate", *SMALL, *ECONOMY, "--tensorboard", "--output", str(tmp_path / "run")]) == 0
    assert list((tmp_path / "run" / "tensorboard").glob("events.*"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([*ECONOMY, "--clip-norm", "0"], "--clip-norm is 0"),
        ([*ECONOMY, "--per-round", "0"], "--per-round is 0"),
        ([*ECONOMY, "--delta", "2"], "--delta is 2"),
        ([*ECONOMY, "--device", "cuda:9"], "cuda:9"),
        ([*ECONOMY, "--device", "abacus"], "abacus"),
        ([*ECONOMY, "--noise", "lemma1"], "without --c2"),
        ([*ECONOMY, "--dataset", "imagenet"], "data set 'imagenet' is unknown"),
        ([*ECONOMY, "--clients", "0"], "--clients is 0"),
        # Before a plan for so many, which would take minutes.
        ([*ECONOMY, "--clients", "1000000000"], "must be 1 to 1500, the number of samples"),
        ([*ECONOMY, "--clients", "nobody.csv"], "cannot read nobody.csv"),
        ([*ECONOMY, "--clients", "-5"], "--clients is -5; it must be a whole number"),
        ([*ECONOMY, "--scheme", "writer"], "scheme 'writer' is for mnist"),
        ([*ECONOMY, "--scheme", "dirichlet"], "alpha"),
        ([*ECONOMY, "--model", "transformer"], "model 'transformer' is not installed here"),
        ([*ECONOMY, "--model", "cifar10"], "model 'cifar10' does not take the 1x8x8 examples of data set digits"),
        ([], "--loss-weight"),
        (["--contract", "nothing.json"], "nothing.json cannot be read"),
    ],
)
def test_bad_input_is_one_line_and_leaves_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert main(["simulate", *SMALL, *options, "--output", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    errors = [line for line in said.splitlines() if line.startswith("jsam: error:")]
    assert len(errors) == 1
    assert message in errors[0]
    assert "Traceback" not in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", ["simulate", "demo"])
@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("", "the folder you are in; name a new one"),
        (".", "the folder you are in; name a new one"),
        ("file", "is a file; name a folder"),
        ("file/below", "is not a folder"),
        pytest.param("/proc/z", "'/proc/z' cannot be used: No such file or directory", marks=PROC),
    ],
)
def test_a_place_that_cannot_be_a_new_folder_is_refused_before_anything_is_planned(
    command: str,
    place: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("mine")
    options = [*SMALL, *ECONOMY] if command == "simulate" else ["--dataset", "digits", "--rounds", "1"]
    assert main([command, *options, "--output", place]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_folder_with_a_wrong_checksum_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from jsam.training.data.catalogue import MNIST

    folder = tmp_path / "data" / MNIST.folder
    folder.mkdir(parents=True)
    for raw in MNIST.files:
        (folder / raw.name).write_bytes(b"\0" * raw.size)
    monkeypatch.setenv("JSAM_DATA_DIR", str(tmp_path / "data"))
    options = ["--dataset", "mnist", "--clients", "10", "--rounds", "2", *ECONOMY]
    assert main(["simulate", *options, "--output", str(tmp_path / "run")]) == 2
    assert "train-images-idx3-ubyte" in capsys.readouterr().err


def test_warnings_are_lines_and_the_run_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *SMALL, *ECONOMY, "--delta", "0.1", "--output", str(tmp_path / "a")]) == 0
    assert "warning: --delta is 0.1, not below 1/150" in capsys.readouterr().err
    poor = ["--loss-weight", "0.001", "--max-epsilon", "10"]
    assert main(["simulate", *SMALL, *poor, "--output", str(tmp_path / "b")]) == 0
    assert "warning: the budget is too small to train on" in capsys.readouterr().err


def test_lemma1_is_done_as_asked_and_said_to_overspend(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [*SMALL, *ECONOMY, "--noise", "lemma1", "--c2", "0.1"]
    assert main(["simulate", *options, "--output", str(tmp_path / "run")]) == 0
    assert "OVER their contract" in capsys.readouterr().out
    assert main(["report", str(tmp_path / "run")]) == 1
    ledger = tmp_path / "run" / "ledger.jsonl"
    head, _, *rest = ledger.read_text().splitlines()
    ledger.write_text("\n".join([head, *rest, ""]))
    # That overspending was asked for does not excuse a release that is missing.
    assert main(["resume", str(tmp_path / "run")]) == 1


def test_report_and_resume_of_what_is_no_run_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("report", "resume"):
        assert main([command, str(tmp_path)]) == 2
        assert "is not a run folder: it has no config.json; jsam simulate makes one" in capsys.readouterr().err


def test_a_run_folder_one_level_below_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = {"jsam": "{0}/jsam is one\n", "usbm": "{0}/jsam is one, and so is {0}/usbm\n", "x": "and so are 2 more"}
    for name, wanted in words.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").touch()
        for command in ("report", "resume"):
            assert main([command, str(tmp_path)]) == 2
            assert wanted.format(tmp_path) in capsys.readouterr().err


def test_calibrate_prints_the_documented_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "--epsilon", "1", "--delta", "1e-5", "--participations", "100"]) == 0
    found = json.loads(capsys.readouterr().out)
    expected = {
        "noise_multiplier": pytest.approx(37.306, rel=1e-4),
        "epsilon": 1.0,
        "delta": 1e-5,
        "participations": 100,
        "noise": "exact",
        "adjacency": "add-remove",
    }
    assert found == expected
    twice = ["calibrate", "--epsilon", "1", "--participations", "100", "--adjacency", "replace"]
    assert main(twice) == 0
    assert json.loads(capsys.readouterr().out)["noise_multiplier"] == pytest.approx(2 * 37.306, rel=1e-4)
    assert main(["calibrate", "--epsilon", "1", "--noise", "lemma1", "--c2", "0.1"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["exact_epsilon"] > 1
    assert "above the 1 asked for" in said.err


def test_calibrate_writes_what_it_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "--epsilon", "1", "--format", "table"]) == 0
    assert capsys.readouterr().out.startswith("noise multiplier  3.73")
    for name, begins in (("a.txt", "noise multiplier "), ("a.csv", "noise_multiplier,"), ("a.json", "{"), ("a", "{")):
        assert main(["calibrate", "--epsilon", "1", "--output", str(tmp_path / name)]) == 0
        assert (tmp_path / name).read_text().startswith(begins)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--epsilon", "0"], "--epsilon is 0"),
        (["--epsilon", "1", "--participations", "0"], "--participations is 0"),
        (["--epsilon", "1", "--delta", "1"], "--delta is 1"),
        (["--epsilon", "1", "--c2", "1"], "only noise 'lemma1' takes it"),
    ],
)
def test_calibrate_refuses_bad_input(capsys: pytest.CaptureFixture[str], options: list[str], message: str) -> None:
    assert main(["calibrate", *options]) == 2
    assert message in capsys.readouterr().err


def test_data_list_and_partition(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "list", "--format", "json"]) == 0
    states = {row["name"]: row["state"] for row in json.loads(capsys.readouterr().out)["datasets"]}
    assert states["digits"] == "embedded"
    options = ["digits", "--clients", "10", "--similarity", "0", "--seed", "4"]
    picture = tmp_path / "p.png"
    assert main(["data", "partition", *options, "--format", "json", "--plot", str(picture)]) == 0
    dealt = json.loads(capsys.readouterr().out)
    assert dealt["num_clients"] == len(dealt["clients"]) == 10
    assert {client["samples"] for client in dealt["clients"]} == {150}
    assert picture.read_bytes().startswith(b"\x89PNG")
    # A result that cannot be written leaves no picture behind, and a folder on the way is made for both.
    assert main(["data", "partition", "digits", "--output", "/dev/full", "--plot", str(tmp_path / "q.png")]) == 2
    assert not (tmp_path / "q.png").exists()
    assert main(["data", "partition", "digits", "--plot", str(tmp_path / "new" / "q.PNG")]) == 0
    assert (tmp_path / "new" / "q.PNG").read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()
    assert main(["data", "fetch", "digits"]) == 0
    assert "embedded in scikit-learn" in capsys.readouterr().out


def test_data_list_breaks_paths_at_slashes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from jsam.training.data import describe_datasets

    folder = Path("/home/ada/.cache/jsam/data/cifar-10-batches-bin")
    found = [replace(status, folder=folder, detail="6 files, checksums right") for status in describe_datasets()]
    monkeypatch.setattr("jsam.training.data.describe_datasets", lambda: found)
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["data", "list"]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert str(folder) not in shown
    for name in folder.parts[1:]:
        assert shown.count(name) == len(found)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rounds", "0"], "--rounds is 0"),
        (["--budget", "-1"], "--budget is -1"),
        (["--dataset", "cifar10"], "knows mnist"),
    ],
)
def test_the_demo_refuses_bad_input_before_it_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert main(["demo", "--dataset", "digits", *options, "--output", str(tmp_path / "demo")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "demo").exists()


def test_the_demo_tells_the_whole_story(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--dataset", "digits", "--rounds", "6", "--output", str(tmp_path / "demo")]
    assert main(["demo", *options]) == 0
    told, said = capsys.readouterr()
    assert "Training (jsam): round 6 of 6" in said
    assert "there already" not in said
    chosen = [
        f"{json.loads((tmp_path / 'demo' / name / 'contract.json').read_text())['num_selected']} of {name}"
        for name in ("jsam-even", "jsam", "usbm")
    ]
    assert f"NO CONTRACT WAS OVERSPENT ({', '.join(chosen)}," in " ".join(told.split())
    for words in ("jsam-even", "usbm", "NO CONTRACT WAS OVERSPENT", "Who is paid under jsam", "accuracy"):
        assert words in told
    page = (tmp_path / "demo" / "report.html").read_text()
    assert "no contract was overspent in any run" in page
    assert (tmp_path / "demo" / "jsam" / "report.html").exists()
    assert (tmp_path / "demo" / "jsam" / "noise.key").exists()
    known = "not private: the noise follows from the seed"
    assert known not in told + said + page
    assert main(["demo", *options, "--noise-seed", "3"]) == 0
    told, said = capsys.readouterr()
    first, second = said.splitlines()[:2]
    assert first == f"jsam: {known} (--noise-seed 3)"
    assert second == f"jsam: {tmp_path / 'demo'} is there already; this goes to {tmp_path / 'demo-2'}"
    assert known in told
    assert known in (tmp_path / "demo-2" / "report.html").read_text()


def test_an_interrupted_demo_says_what_can_be_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from jsam.cli.inputs import Inputs
    from jsam.cli.running import RoundProgress

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    folder = tmp_path / "demo"
    command = ["demo", "--dataset", "digits", "--rounds", "10", "--output", str(folder)]
    with monkeypatch.context() as planning:
        planning.setattr(Inputs, "contract", stop)
        assert main(command) == 130
    assert capsys.readouterr().err.endswith("\njsam: interrupted; jsam demo starts anew\njsam: stopped\n")
    with monkeypatch.context() as training:
        training.setattr(RoundProgress, "__call__", stop)
        assert main(command) == 130
    begun = folder / "jsam-even"
    words = f"interrupted; jsam demo starts anew; go on with this training alone: jsam resume {begun}\n"
    assert words in capsys.readouterr().err
    assert main(["resume", str(begun)]) == 0


def test_the_demo_says_why_the_payments_are_not_the_expected_cost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the screen and on the page, with the clients' own cost, which the payments exceed."""
    assert main(["demo", "--dataset", "digits", "--rounds", "2", "--output", str(tmp_path / "demo")]) == 0
    told, page = capsys.readouterr().out, (tmp_path / "demo" / "report.html").read_text()
    costs = []
    for name in ("jsam-even", "jsam", "usbm"):
        contract = json.loads((tmp_path / "demo" / name / "contract.json").read_text())
        own = sum(client["sensitivity"] * client["epsilon"] for client in contract["clients"])
        assert own < contract["total_payment"]
        assert abs(contract["total_payment"] - contract["expected_cost"]) > 0.1
        costs.append(f"{own:.2f} with {name}")
    for shown in (told, page):
        words = " ".join(unescape(shown).split())
        assert f"the clients' own cost, sensitivity × ε ({', '.join(costs)})" in words
        assert "equals the expected cost only on average over reports from the prior" in words


def test_the_demo_falls_back_to_digits_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from jsam.training.data import MissingDataError

    def offline(name: str) -> None:
        raise MissingDataError(f"{name}: cannot be fetched; put it by hand into a folder")

    monkeypatch.setattr("jsam.cli.data.fetched", offline)
    assert main(["demo", "--rounds", "2", "--output", str(tmp_path / "demo")]) == 0
    said = capsys.readouterr()
    assert "instead of MNIST" in said.err
    assert "MNIST could not be had" in " ".join(said.out.split())


def test_a_model_that_learns_from_one_or_two_clients_is_warned_about(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Data that are alike and a small budget keep few; a floor on their number is what the line names."""
    wish = ["simulate", "--dataset", "digits", "--clients", "6", "--budget", "5", "--rounds", "1", "--threads", "1"]
    assert main([*wish, "--output", str(tmp_path / "few")]) == 0
    assert "1 of 6 clients are drawn" in capsys.readouterr().err
    assert main([*wish, "--min-clients", "3", "--output", str(tmp_path / "more")]) == 0
    assert "clients are drawn" not in capsys.readouterr().err


def test_automatic_weights_of_the_papers_mechanism_are_said_to_be_those_of_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wish = ["simulate", "--dataset", "digits", "--clients", "6", "--budget", "5", "--rounds", "1", "--threads", "1"]
    for number, (mechanism, said) in enumerate([("jsam", True), ("jsam-even", False)]):
        assert main([*wish, "--mechanism", mechanism, "--output", str(tmp_path / str(number))]) == 0
        assert ("these are made for jsam-even" in capsys.readouterr().err) is said
