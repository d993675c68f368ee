"""Files and folders that cannot be used are refused in one line that names them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from jsam.errors import InputError
from reproduction.__main__ import main
from reproduction.paths import Places
from reproduction.running import Outcome, run_specs
from reproduction.spec import load_specs
from tests.reproduction.conftest import CHOSEN, PLANNER, SPEC


def refused(arguments: Sequence[str], places: Places, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that the program says, without its beginning."""
    assert main([*arguments, "--root", str(places.home)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err.partition("error: ")[2]


SPECS = {
    "no text": ("order = 1", "\udcff", "small.toml is not a specification: "),
    "lacks": ("order = 1", "", "small.toml is not a specification: it lacks order\n"),
    "too much": ("order = 1", "order = 1\ncolour = 'red'", "is not a specification: it has no use for colour\n"),
    "order": ("order = 1", "order = 'a'", "small: order is 'a'; it must be a number\n"),
    "grid": ("[[grid]]", "[grid]", "small: settings must be a table, and grid a list of tables, [[grid]]\n"),
    "setting lacks": ("clip_norm = 1", "", "small: not the configuration of a run: it lacks clip_norm\n"),
    "setting unknown": (
        "clip_norm = 1",
        "clip = 1",
        "small: not the configuration of a run: there is no setting clip\n",
    ),
    "own without a cost": ("learning_rate = 0.5", "learning_rate = 'own'", "small: a learning rate of its own takes a"),
}


@pytest.mark.parametrize("case", SPECS)
def test_specifications(case: str, places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    old, new, wanted = SPECS[case]
    text = SPEC.replace(old, new) if case != "own without a cost" else SPEC.replace(old, new).replace("cost = 5\n", "")
    (places.specs / "small.toml").write_bytes(text.encode(errors="surrogateescape"))
    assert wanted in refused(["list"], places, capsys)


def test_a_folder_without_specifications(places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    (places.specs / "small.toml").unlink()
    assert refused(["list"], places, capsys) == f"{places.specs} has no specification, NAME.toml\n"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("\udcff", "chosen.toml is not TOML: "),
        (CHOSEN.replace("[lemma1]", "[exact]"), "small: {} has no c2 for noise 'lemma1'"),
        ("lemma1 = 3", "small: {}: lemma1 is 3; it must be a table\n"),
        ("lemma1.digits = 3", "small: {}: lemma1.digits is 3; it must be a table\n"),
    ],
    ids=["no text", "a value lacks", "no table", "no table within"],
)
def test_chosen_values(text: str, wanted: str, places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    places.chosen.write_bytes(text.encode(errors="surrogateescape"))
    assert wanted.format(places.chosen) in refused(["list"], places, capsys)


def test_without_chosen_values_nothing_is_advised_that_does_not_help(
    places: Places, capsys: pytest.CaptureFixture[str]
) -> None:
    places.chosen.unlink()
    for command in ("list", "choose"):
        wanted = f"{places.chosen} cannot be read: No such file or directory; a checkout of jsam has it\n"
        assert refused([command], places, capsys) == wanted


@pytest.mark.parametrize(
    ("name", "content", "wanted"),
    [
        ("small.jsonl", b"\xff\n", "small.jsonl cannot be read: not text in UTF-8\n"),
        ("plans/loss-weights.json", b"[1]", "loss-weights.json cannot be read: not a table; remove it"),
    ],
    ids=["runs", "plans"],
)
def test_stored_results(
    name: str, content: bytes, wanted: str, places: Places, capsys: pytest.CaptureFixture[str]
) -> None:
    (places.results / name).parent.mkdir(exist_ok=True)
    (places.results / name).write_bytes(content)
    assert wanted in refused(["table", "small"], places, capsys)


def test_a_planner_that_lacks_a_setting(places: Places) -> None:
    (places.specs / "planner.toml").write_text(PLANNER.replace("seed = 1\n", ""))
    with pytest.raises(InputError, match=r"^planner: it lacks the setting seed$"):
        run_specs(load_specs(places, ["planner"]), places, tell=lambda line: None)


@pytest.mark.parametrize("command", ["list", "table small"])
def test_a_folder_that_is_to_be_read_must_be_there(
    command: str, places: Places, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    for name in ("file", "nowhere"):
        arguments = [*command.split(), "--output", str(tmp_path / name), "--root", str(tmp_path)]
        assert main(arguments) == 2
        err = capsys.readouterr().err
        assert err.endswith(f" error: --output '{tmp_path / name}' is not a folder\n")
        assert err.count("\n") == 1


def test_a_folder_that_cannot_be_made_is_refused_before_anything_is_run(
    places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("reproduction.running.run_trials", lambda *_, **__: pytest.fail("something was run"))
    file = tmp_path / "file"
    file.touch()
    for target, wanted in (
        (str(file), f"--output '{file}' is a file; name a folder\n"),
        ("", "--output is empty, or the folder you are in; name a new one\n"),
    ):
        assert main(["run", "--all", "--root", str(places.home), "--output", target]) == 2
        err = capsys.readouterr().err
        assert err.endswith(wanted)
        assert err.count("\n") == 1


def test_merging_from_a_folder_without_results(
    places: Places, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "new").mkdir()
    assert (
        refused(["merge", str(tmp_path / "new")], places, capsys) == f"{tmp_path / 'new'} has no results, NAME.jsonl\n"
    )


def test_a_planner_counts_as_a_run_and_is_none_that_was_named(places: Places) -> None:
    (places.specs / "planner.toml").write_text(PLANNER)
    specs, said = load_specs(places), list[str]()
    for only, left in ((["*seed0"], 4), ([], 9)):
        assert run_specs(specs, places, only=only, limit_seconds=1e-9, tell=said.append).left == left
    assert said == []
    assert run_specs(specs[1:], places, tell=said.append).made == 1
    assert said == ["planner: computing"]
    assert str(Outcome(made=1, left=0, seconds=2.0)) == "1 run made in 2 s, 0 left"
    assert str(Outcome(made=2, left=1, seconds=2.0)) == "2 runs made in 2 s, 1 left"


def test_an_interrupt_is_one_line(
    places: Places, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("reproduction.running.run_specs", stop)
    assert main(["run", "--all", "--root", str(places.home)]) == 130
    err = capsys.readouterr().err
    assert err.endswith(" stopped\n")
    assert err.count("\n") == 1
