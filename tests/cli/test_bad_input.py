"""Every bad input ends in exit code 2 and one line that says what, where and what is allowed; nothing is written."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import UNIFORM, Run, WriteClients
from tests.conftest import require

GOOD = "id,sensitivity\na,0.2\nb,0.5\nc,0.9\n"


def refused(run: Run, tmp_path: Path, *arguments: str) -> str:
    """Run with a result file and a picture asked for; check that there is one line and no file; return the line."""
    folder = tmp_path / "results"
    result = run(*arguments, "--output", folder / "result.json", "--plot", folder / "plan.png")
    assert result.code == 2, result
    assert result.out == ""
    assert not folder.exists()
    assert result.err.startswith("jsam: error: ")
    assert result.err.count("\n") == 1
    assert result.err.endswith("\n")
    assert len(result.err) < 500
    return result.err


FILES: dict[str, tuple[str | bytes, tuple[str, ...]]] = {
    "empty": ("", ("clients.csv is empty", "id,sensitivity")),
    "blank lines only": ("\n\r\n \n", ("clients.csv is empty",)),
    "binary": (bytes(range(256)), ("clients.csv is not text in UTF-8",)),
    "UTF-16": (GOOD.encode("utf-16"), ("not text in UTF-8",)),
    "missing column": ("id,cost\na,0.2\n", ("line 1", "no column 'sensitivity'", "'cost'")),
    "no header": ("a,0.2\nb,0.3\n", ("line 1", "no column 'id'")),
    "semicolons": ("id;sensitivity\na;0.2\n", ("separate the columns with commas",)),
    "column twice": ("id,sensitivity,id\na,0.2,b\n", ("column 'id' stands twice",)),
    "column misspelt": ("id,sensitivity,smaples\na,0.2,3\n", ("line 1", "'smaples'", "is it 'samples'?")),
    "no clients": ("id,sensitivity\n", ("no clients",)),
    "short row": ("id,sensitivity\na,0.2\nb\n", ("line 3", "1 cells", "header has 2")),
    "long row": ("id,sensitivity\na,0.2,9\n", ("line 2", "3 cells", "header has 2")),
    "open quote": ('id,sensitivity\n"a,0.2\nb,0.3\n', ("line 2", "not CSV")),
    "duplicate id": ("id,sensitivity\na,0.2\nb,0.5\na,0.9\n", ("line 4", "id 'a'", "line 2")),
    "no id": ("id,sensitivity\na,0.2\n ,0.5\n", ("line 3", "no id")),
    "blank": ("id,sensitivity\na,0.2\n\nb,\n", ("line 4", "client 'b'", "no sensitivity", "positive")),
    "NaN": ("id,sensitivity\na,NaN\n", ("line 2", "client 'a'", "'NaN'", "positive, finite")),
    "infinite": ("id,sensitivity\na,inf\n", ("line 2", "client 'a'", "'inf'")),
    "too large for a double": ("id,sensitivity\na,1e400\n", ("line 2", "'1e400'")),
    "zero": ("id,sensitivity\na,0\n", ("line 2", "client 'a'", "'0'")),
    "negative": ("id,sensitivity\na,-0.5\n", ("line 2", "client 'a'", "'-0.5'")),
    "no number": ("id,sensitivity\na,much\n", ("line 2", "client 'a'", "'much'")),
    "underscore": ("id,sensitivity\na,0.1_5\n", ("line 2", "'0.1_5'")),
    "outside the support": ("id,sensitivity\nb,0.5\n\na,1.5\n", ("line 4", "client 'a'", "1.5", "[0, 1]")),
    "own prior unknown": ("id,sensitivity,prior\na,0.2,\nb,0.3,odd:1\n", ("line 3", "client 'b'", "'odd'")),
    "outside own support": ('id,sensitivity,prior\na,0.2,\nb,0.4,"uniform:0,0.3"\n', ("line 3", "'b'", "[0, 0.3]")),
    "samples no count": ("id,sensitivity,samples\na,0.2,1.5\n", ("line 2", "client 'a'", "samples '1.5'")),
    "loss missing": ("id,sensitivity,loss\na,0.2,1\nb,0.3,\n", ("line 3", "client 'b'", "no loss")),
    "too small for doubles": ("id,sensitivity\na,1e-320\nb,0.5\n", ("line 2", "client 'a'", "below 1e-290")),
}


@pytest.mark.parametrize("case", FILES)
def test_a_file_that_cannot_be_used(case: str, run: Run, clients: WriteClients, tmp_path: Path) -> None:
    content, wanted = FILES[case]
    line = refused(run, tmp_path, "plan", clients(content), *UNIFORM)
    for part in wanted:
        assert part in line
    if "line" in "".join(wanted):
        assert "clients.csv" in line


def test_a_file_that_is_not_there(run: Run, tmp_path: Path) -> None:
    assert "No such file" in refused(run, tmp_path, "plan", str(tmp_path / "nowhere.csv"), *UNIFORM)


def test_a_folder(run: Run, tmp_path: Path) -> None:
    assert "directory" in refused(run, tmp_path, "plan", str(tmp_path), *UNIFORM)


def test_a_file_name_with_a_line_break_still_gives_one_line(run: Run, tmp_path: Path) -> None:
    assert "no where" in refused(run, tmp_path, "plan", str(tmp_path / "no\nwhere.csv"), *UNIFORM)


OPTIONS: dict[str, tuple[str, str]] = {
    "no loss weight": ("--prior uniform:0,1", "--loss-weight"),
    "no prior": ("--loss-weight 5", "uniform:0,1"),
    "loss weight and budget": ("--prior uniform:0,1 --loss-weight 5 --budget 5", "not both"),
    "unknown prior": ("--prior odd:1 --loss-weight 5", "unknown distribution 'odd'"),
    "discrete prior": ("--prior poisson:3 --loss-weight 5", "unknown distribution 'poisson'"),
    "not a distribution": ("--prior beta:-1,2 --loss-weight 5", "no distribution"),
    "parameter missing": ("--prior beta:2 --loss-weight 5", "shapes a, b"),
    "parameter unknown": ("--prior beta:2,5,q=1 --loss-weight 5", "shapes a, b"),
    "parameter no number": ("--prior uniform:0,x --loss-weight 5", "'x' is no number"),
    "parameter not finite": ("--prior lognorm:s=inf --loss-weight 5", "not finite"),
    "ends the wrong way": ("--prior uniform:1,0 --loss-weight 5", "second end"),
    "negative sensitivities": ("--prior norm:0,1 --loss-weight 5", "truncate it at 0"),
    "negative end": ("--prior uniform:-1,1 --loss-weight 5", "down to -1"),
    "past reports missing": ("--prior empirical:nowhere.csv --loss-weight 5", "cannot read past reports"),
    "unknown mechanism": ("--prior uniform:0,1 --loss-weight 5 --mechanism magic", "unknown mechanism 'magic'"),
    "M above N": ("--prior uniform:0,1 --loss-weight 5 --mechanism fsbm-4", "1 to 3 are possible"),
    "M zero": ("--prior uniform:0,1 --loss-weight 5 --mechanism fsbm-0", "1 to 3 are possible"),
    "bbm without losses": ("--prior uniform:0,1 --loss-weight 5 --mechanism bbm-2", "loss"),
    "no probabilities": ("--prior uniform:0,1 --loss-weight 5 --mechanism usbm-compensated", "'selection_prob'"),
    "loss weight 0": ("--prior uniform:0,1 --loss-weight 0", "--loss-weight is 0"),
    "loss weight nan": ("--prior uniform:0,1 --loss-weight nan", "--loss-weight is nan"),
    "loss weight text": ("--prior uniform:0,1 --loss-weight much", "'much'"),
    "loss weight huge": ("--prior uniform:0,1 --loss-weight 1e308 --mechanism jsam", "too large for floating-point"),
    "parameter twice": ("--prior lognorm:s=0.5,s=0.6 --loss-weight 5", "'s' is given twice"),
    "cap on ε tiny": ("--prior uniform:0,1 --loss-weight 5 --max-epsilon 1e-200", "--max-epsilon is 1e-200"),
    "cap on ε tiny under a budget": ("--prior uniform:0,1 --budget 5 --max-epsilon 1e-200", "--max-epsilon is 1e-200"),
    "bias weight huge": ("--prior uniform:0,1 --loss-weight 5 --bias-weight 1e160 --mechanism fsbm-2", "1e+160"),
    "budget tiny": ("--prior uniform:0,1 --budget 1e-300", "--budget 1e-300 cannot be turned into a loss weight"),
    "budget 0": ("--prior uniform:0,1 --budget 0", "--budget is 0"),
    "budget infinite": ("--prior uniform:0,1 --budget inf", "--budget is inf"),
    "probability 1": ("--prior uniform:0,1 --budget 3 --budget-probability 1", "between 0 and 1"),
    "probability alone": ("--prior uniform:0,1 --loss-weight 3 --budget-probability 0.5", "needs --budget"),
    "noise weight": ("--prior uniform:0,1 --loss-weight 5 --noise-weight 0", "--noise-weight is 0"),
    "bias weight": ("--prior uniform:0,1 --loss-weight 5 --bias-weight -1", "--bias-weight is -1"),
    "cap under 1/N": ("--prior uniform:0,1 --loss-weight 5 --max-selection-prob 0.3", "1/3"),
    "cap above 1": ("--prior uniform:0,1 --loss-weight 5 --max-selection-prob 1.5", "--max-selection-prob is 1.5"),
    "cap on ε": ("--prior uniform:0,1 --loss-weight 5 --max-epsilon 0", "--max-epsilon is 0"),
    "divergent payments": ("--prior halfcauchy --loss-weight 5 --mechanism usbm", "diverge"),
    "seed": ("--prior uniform:0,1 --loss-weight 5 --seed -1", "--seed"),
    "format": ("--prior uniform:0,1 --loss-weight 5 --format xml", "'xml'"),
    "unknown option": ("--prior uniform:0,1 --loss-weight 5 --colour red", "--colour"),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_options_that_cannot_be_used(case: str, run: Run, clients: WriteClients, tmp_path: Path) -> None:
    options, wanted = OPTIONS[case]
    assert wanted in refused(run, tmp_path, "plan", clients(GOOD), *options.split())


@pytest.mark.parametrize("mechanism", ["jsam", "usbm", "bbm-1"])
def test_one_client_under_a_heavy_tail(mechanism: str, run: Run, clients: WriteClients, tmp_path: Path) -> None:
    """A client that cannot be dropped would be owed an infinite amount."""
    path = clients("id,sensitivity,loss\na,0.5,1\n")
    options = ("--prior", "halfcauchy", "--loss-weight", "5", "--mechanism", mechanism)
    assert "diverge" in refused(run, tmp_path, "plan", path, *options)


PAST = {
    "too few": ("sensitivity\n0.1\n0.2\n", "at least 5"),
    "negative": ("sensitivity\n0.1\n0.2\n\n-0.3\n0.4\n0.5\n", "line 5: '-0.3'"),
    "all equal": ("0.1\n0.1\n0.1\n0.1\n0.1\n", "all equal"),
    "binary": ("sensitivity\n0.1\n0.\x002\n", "not a text file"),
    "words": ("0.1\nmuch\n0.1\n0.1\n0.1\n", "line 2: 'much'"),
}


@pytest.mark.parametrize("case", PAST)
def test_past_reports_that_cannot_be_used(case: str, run: Run, clients: WriteClients, tmp_path: Path) -> None:
    content, wanted = PAST[case]
    past = tmp_path / "past.csv"
    past.write_text(content)
    options = ("--prior", f"empirical:{past}", "--loss-weight", "5")
    assert wanted in refused(run, tmp_path, "plan", clients(GOOD), *options)


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (("plan",), "CLIENTS.csv"),
        (("plann", "x.csv"), "plann"),
        (("compare", "nowhere.csv", *UNIFORM), "No such file"),
        (("audit", "nowhere.csv", *UNIFORM), "No such file"),
        (("--nonsense",), "--nonsense"),
    ],
)
def test_usage(arguments: tuple[str, ...], wanted: str, run: Run) -> None:
    result = run(*arguments)
    assert result.code == 2
    assert wanted in result.err
    assert (result.out, result.err.count("\n")) == ("", 1)


def test_targets_that_cannot_be_written(run: Run, clients: WriteClients, tmp_path: Path) -> None:
    """They are refused before anything is computed, and the file in the way is left as it was."""
    path = clients(GOOD)
    for option, target, wanted in [
        ("--output", tmp_path, "it is a folder"),
        ("--output", f"{path}/result.json", "is not a folder"),
        ("--plot", tmp_path / "plan.docx", "must end in .png"),
        ("--plot", f"{path}/plan.png", "is not a folder"),
    ]:
        result = run("plan", path, *UNIFORM, option, target)
        assert (result.code, result.out) == (2, "")
        assert wanted in result.err
    assert Path(path).read_text() == GOOD
    assert os.listdir(tmp_path) == ["clients.csv"]


OUTPUTS: dict[str, tuple[str, ...]] = {
    "plan": ("plan", "{clients}", *UNIFORM),
    "compare": ("compare", "{clients}", *UNIFORM),
    "audit": ("audit", "{clients}", *UNIFORM),
    "calibrate": ("calibrate", "--epsilon", "1"),
    "data list": ("data", "list"),
    "data partition": ("data", "partition", "digits"),
    "report": ("report", "{folder}"),
    "verify-contract": ("verify-contract", "{clients}"),
}


@pytest.mark.parametrize("command", OUTPUTS)
def test_an_ending_that_says_nothing_is_refused_everywhere(
    command: str, run: Run, clients: WriteClients, tmp_path: Path
) -> None:
    """Before anything is read or computed; with --format any name will do."""
    arguments = [part.format(clients=clients(GOOD), folder=tmp_path / "run") for part in OUTPUTS[command]]
    target = tmp_path / "new" / "result.xyz"
    result = run(*arguments, "--output", target)
    assert (result.code, result.out) == (2, "")
    wanted = f"--output {str(target)!r}: what to write is not clear from '.xyz'; end the name in .json, .csv or .txt"
    assert result.err == f"jsam: error: {wanted}, or give --format\n"
    assert not target.parent.exists()
    if command in ("plan", "compare", "audit", "calibrate"):
        assert run(*arguments, "--output", target, "--format", "json").code == 0
        assert target.read_text().startswith("{")
        assert run(*arguments, "--output", target.with_suffix("")).code == 0


@pytest.mark.parametrize("command", ["plan", "compare", "audit"])
def test_an_input_is_never_overwritten(command: str, run: Run, clients: WriteClients, tmp_path: Path) -> None:
    """Under no name: neither the clients' file nor the past reports."""
    path = clients(GOOD)
    past, link, twin = tmp_path / "past.csv", tmp_path / "link.csv", tmp_path / "twin.csv"
    past.write_text("sensitivity\n0.1\n0.2\n0.4\n0.7\n0.9\n")
    link.symlink_to(path)
    os.link(path, twin)
    for target in (path, tmp_path / "." / "clients.csv", link, twin, past):
        result = run(command, path, "--prior", f"empirical:{past}", "--loss-weight", "5", "--output", target)
        assert (result.code, result.out) == (2, "")
        assert "--output" in result.err
        assert "would overwrite" in result.err
        assert result.err.count("\n") == 1
    assert Path(path).read_text() == GOOD


def test_a_picture_never_overwrites_the_input(run: Run, tmp_path: Path) -> None:
    (tmp_path / "clients.png").write_text(GOOD)
    result = run("plan", tmp_path / "clients.png", *UNIFORM, "--plot", tmp_path / "clients.png")
    assert result.code == 2
    assert "would overwrite" in result.err
    assert (tmp_path / "clients.png").read_text() == GOOD


@pytest.mark.parametrize("command", ["plan", "compare"])
def test_result_and_picture_need_a_file_each(command: str, run: Run, clients: WriteClients, tmp_path: Path) -> None:
    target = tmp_path / "both.png"
    result = run(command, clients(GOOD), *UNIFORM, "--output", target, "--plot", tmp_path / "." / "both.png")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "a file of its own" in result.err
    assert not target.exists()


@pytest.mark.parametrize("command", ["plan", "compare"])
def test_a_result_that_cannot_be_written_leaves_no_picture(
    command: str, run: Run, clients: WriteClients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fills up just when the result is to be written, after its picture."""
    require("matplotlib", extra="plot")
    make = tempfile.mkstemp

    def full_for_results(**options: Any) -> tuple[int, str]:
        if "result.json" in options["prefix"]:
            raise OSError(28, "No space left on device")
        return make(**options)

    monkeypatch.setattr("tempfile.mkstemp", full_for_results)
    folder = tmp_path / "results"
    folder.mkdir()
    target = folder / "result.json"
    result = run(command, clients(GOOD), *UNIFORM, "--output", target, "--plot", folder / "plan.png")
    assert (result.code, result.out) == (2, "")
    assert result.err == f"jsam: error: cannot write {str(target)!r}: No space left on device\n"
    assert os.listdir(folder) == []


def test_comparing_refuses_what_no_mechanism_could_do(run: Run, clients: WriteClients) -> None:
    for options, wanted in [("--max-selection-prob 0.1", "1/3"), ("--noise-weight -1", "--noise-weight is -1")]:
        result = run("compare", clients(GOOD), *UNIFORM, *options.split())
        assert result.code == 2
        assert wanted in result.err


def test_probabilities_that_do_not_sum_to_one(run: Run, clients: WriteClients) -> None:
    path = clients("id,sensitivity,selection_prob\na,0.2,0.5\nb,0.3,0.4\n")
    result = run("plan", path, *UNIFORM, "--mechanism", "usbm-compensated")
    assert result.code == 2
    assert "sums to 0.9" in result.err
