"""A run's folder, changed in every way that hides what was spent: each change is named in one line, none passes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jsam.cli import main
from tests.conftest import require

if TYPE_CHECKING:
    import torch
else:
    torch = require("torch", extra="train")

from jsam.errors import JsamError
from jsam.report.run_html import write_run_page
from jsam.runs.settlement import settle
from jsam.training.recorded_run import resume, train
from tests.training.small import run, small_contract, small_settings, small_task

pytestmark = pytest.mark.filterwarnings("ignore::jsam.errors.TrainingWarning")

Change = Callable[[Path], object]
ROUNDS = 8


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints every third round, so that the last one is of the last round."""
    folder = tmp_path_factory.mktemp("tampered") / "run"
    run(folder, noise_seed=None)
    return folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def found_in(folder: Path) -> list[str]:
    """What the report says is wrong; nothing if every contract is kept."""
    try:
        settlement = settle(folder, second_opinion=False)
        write_run_page(folder)
    except JsamError as error:
        return _one_line(error)
    return [] if settlement.kept else settlement.lines()


def _one_line(error: JsamError) -> list[str]:
    assert "\n" not in str(error)
    return [str(error)]


def lines(folder: Path) -> list[str]:
    return (folder / "ledger.jsonl").read_text().splitlines()


def put(kept: Callable[[list[str]], list[str]]) -> Change:
    """The ledger with other lines; the first of those given is its header."""
    return lambda folder: (folder / "ledger.jsonl").write_text("\n".join(kept(lines(folder))) + "\n")


def edit(*which: int, **changes: Any) -> Change:
    """Releases with other values, all of them where none is named; a function is applied to what is there."""

    def change(line: str) -> str:
        record = json.loads(line)
        for name, value in changes.items():
            record[name] = value(record[name]) if callable(value) else value
        return json.dumps(record, separators=(",", ":"))

    return put(
        lambda ls: [ls[0], *(change(x) if not which or i in which else x for i, x in enumerate(ls[1:], start=1))]
    )


def stored(name: str, change: Callable[[dict[str, Any]], object]) -> Change:
    def apply(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        change(content)
        (folder / name).write_text(json.dumps(content))

    return apply


def without(*names: str) -> Change:
    def remove(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return remove


def both(*changes: Change) -> Change:
    def apply(folder: Path) -> None:
        for change in changes:
            change(folder)

    return apply


def last_round_cut(folder: Path) -> None:
    put(lambda ls: [line for line in ls if f'"round":{ROUNDS - 1},' not in line])(folder)
    metrics = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(metrics[:-1]))


def halved(value: float) -> float:
    return value / 2


def doubled(value: Any) -> Any:
    return value * 2


def all_payments(contract: dict[str, Any]) -> None:
    for client in contract["clients"]:
        client["payment"] *= 0.01


def all_epsilons(contract: dict[str, Any]) -> None:
    for client in contract["clients"]:
        client["epsilon"] *= 2


EMPTIED = put(lambda ls: ls[:1])
RESCALED = edit(samples=doubled, sensitivity=halved, noise_std=halved)
LACKS, OVER, OTHER = "the ledger lacks the release of client", "OVER their contract", "the ledger has "
SINCE = "has changed since"

ATTACKS: dict[str, tuple[Change, str]] = {
    # Lines of the ledger taken away, added or torn.
    "a line in the middle": (put(lambda ls: ls[:5] + ls[6:]), LACKS),
    "the last line": (put(lambda ls: ls[:-1]), LACKS),
    "the last round": (put(lambda ls: [x for x in ls if '"round":7,' not in x]), f"{LACKS} "),
    "the first round": (put(lambda ls: [x for x in ls if '"round":0,' not in x]), LACKS),
    "all of one client": (put(lambda ls: [x for x in ls if '"client":"2"' not in x]), "client 2 in round"),
    "all lines": (EMPTIED, LACKS),
    "the header too": (lambda f: (f / "ledger.jsonl").write_bytes(b""), "is empty"),
    "the whole file": (without("ledger.jsonl"), "cannot be read"),
    "a line twice": (put(lambda ls: [*ls, ls[3]]), "repeats round"),
    "a torn end": (lambda f: (f / "ledger.jsonl").write_bytes((f / "ledger.jsonl").read_bytes()[:-40]), LACKS),
    "rubbish in the middle": (put(lambda ls: [*ls[:3], "{rubbish", *ls[4:]]), "line 4 is damaged"),
    # Values of releases.
    "twice the noise": (edit(3, noise_std=doubled), "noise std"),
    "a hundredth less noise": (edit(3, noise_std=lambda v: v * 0.99), OVER),
    "more noise in all, beyond rounding": (edit(noise_std=lambda v: v * (1 + 1.9e-5)), "noise std"),
    "half the clipping norm": (edit(3, clip_norm=halved), "clip_norm"),
    "half the clipping norm in all": (edit(clip_norm=halved, sensitivity=halved), "clip_norm"),
    "twice the records": (edit(3, samples=doubled), "samples"),
    "twice the records in all": (edit(samples=doubled, sensitivity=halved), "samples"),
    "rescaled": (RESCALED, "samples"),
    "another delta": (edit(3, delta=1e-4), "delta"),
    "another delta in all": (edit(delta=1e-4), "delta"),
    "another adjacency in all": (edit(adjacency="replace", sensitivity=doubled), OVER),
    "another multiplicity": (edit(3, multiplicity=lambda v: v + 1), "times; in the schedule"),
    "a client's name as a number": (edit(3, client=int), OVER),
    "an unknown field": (edit(3, note="x"), "has unknown note"),
    # With what the ledger is held against.
    "rescaled, the sizes gone": (both(RESCALED, stored("config.json", lambda c: c["data"].pop("samples"))), "samples"),
    "rescaled, the sizes too": (
        both(
            RESCALED, stored("config.json", lambda c: c["data"].update(samples=[2 * n for n in c["data"]["samples"]]))
        ),
        "data.samples add up to 288, data.num_samples is 144",
    ),
    "rescaled, the sizes and their sum too": (
        both(
            RESCALED,
            stored(
                "config.json",
                lambda c: c["data"].update(samples=[2 * n for n in c["data"]["samples"]], num_samples=288),
            ),
        ),
        SINCE,
    ),
    "a cut ledger and cut metrics": (last_round_cut, LACKS),
    "no metrics, an empty ledger": (both(EMPTIED, without("metrics.jsonl")), LACKS),
    "no metrics, no checkpoint, an empty ledger": (both(EMPTIED, without("metrics.jsonl", "checkpoint.pt")), LACKS),
    "no metrics, no summary, an empty ledger": (both(EMPTIED, without("metrics.jsonl", "summary.json")), LACKS),
    "only the model is left": (both(EMPTIED, without("metrics.jsonl", "summary.json", "checkpoint.pt")), LACKS),
    "only the checkpoint is left": (both(EMPTIED, without("metrics.jsonl", "summary.json", "model.pt")), LACKS),
    "no metrics, round 0 alone": (
        both(put(lambda ls: [x for x in ls if "ledger" in x or '"round":0,' in x]), without("metrics.jsonl")),
        LACKS,
    ),
    "metrics cut": (
        lambda f: (f / "metrics.jsonl").write_text((f / "metrics.jsonl").read_text().split('{"round":7')[0]),
        "metrics.jsonl ends with round 6",
    ),
    "metrics emptied": (lambda f: (f / "metrics.jsonl").write_text(""), "metrics.jsonl ends with round 0"),
    "a damaged checkpoint": (lambda f: (f / "checkpoint.pt").write_bytes(b"rubbish"), "checkpoint.pt is damaged"),
    "a checkpoint of another run": (
        lambda f: torch.save({"rounds_done": 8, "fingerprint": "f" * 32}, f / "checkpoint.pt"),
        f"{SINCE} checkpoint.pt",
    ),
    "a summary of fewer rounds": (stored("summary.json", lambda c: c.update(rounds=1)), "summary.json is of 1 rounds"),
    "fewer rounds in config and ledger": (
        both(
            put(lambda ls: [x for x in ls if "ledger" in x or int(json.loads(x)["round"]) < 4]),
            stored("config.json", lambda c: c["settings"].update(rounds=4)),
        ),
        "config.json",
    ),
    "twice the ε in the contract": (stored("contract.json", all_epsilons), SINCE),
    "smaller payments in the contract": (stored("contract.json", all_payments), SINCE),
    "another delta everywhere": (
        both(edit(delta=1e-2), stored("config.json", lambda c: c["settings"].update(delta=1e-2))),
        SINCE,
    ),
    "another noise rule": (stored("config.json", lambda c: c["settings"].update(noise="lemma1", c2=1.0)), SINCE),
    "a noise seed in the configuration": (stored("config.json", lambda c: c["settings"].update(noise_seed=3)), SINCE),
    "another schedule": (
        lambda f: (f / "schedule.jsonl").write_text((f / "schedule.jsonl").read_text().replace("[", "[0,", 1)),
        "schedule.jsonl",
    ),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_each_change_is_named_and_none_passes(folder: Path, name: str) -> None:
    change, message = ATTACKS[name]
    assert found_in(folder) == []
    change(folder)
    found = found_in(folder)
    assert any(message in line for line in found), found


HARMLESS: dict[str, Change] = {
    "nothing": lambda f: None,
    "the last newline": lambda f: (f / "ledger.jsonl").write_bytes((f / "ledger.jsonl").read_bytes()[:-1]),
    "another order": put(lambda ls: [ls[0], *ls[:0:-1]]),
    "noise within the calibration's margin": edit(3, noise_std=lambda v: v * (1 + 0.7e-5)),
    "the metrics, which must not be shown, deleted": without("metrics.jsonl"),
    "the checkpoint of a run that is over deleted": without("checkpoint.pt"),
    "the key of a run that is over deleted": without("noise.key"),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_changes_no_releases_spending_passes(folder: Path, name: str) -> None:
    HARMLESS[name](folder)
    assert found_in(folder) == []


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("no metrics, an empty ledger", 1),
        ("rescaled, the sizes gone", 2),
        ("smaller payments in the contract", 1),
        ("the whole file", 2),
    ],
)
def test_the_command_says_so_and_fails(folder: Path, capsys: pytest.CaptureFixture[str], name: str, code: int) -> None:
    require("dp_accounting", extra="train")
    change, message = ATTACKS[name]
    change(folder)
    assert main(["report", str(folder)]) == code
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said


class _Stopped(BaseException):
    """Nothing in the library may catch this."""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (EMPTIED, "lacks round 0, which the checkpoint beside it has applied"),
        (put(lambda ls: ls[:2] + ls[3:]), "is not as it was in round 0"),
        (edit(2, samples=doubled, sensitivity=halved, noise_std=halved), "is not as it was in round 0"),
        (put(lambda ls: [x for x in ls if '"round":5,' not in x]), "lacks round 5"),
    ],
)
def test_a_stopped_run_with_a_changed_ledger_does_not_go_on(tmp_path: Path, change: Change, message: str) -> None:
    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 7:
            raise _Stopped

    folder = tmp_path / "run"
    with pytest.raises(_Stopped):
        train(small_contract(), small_task(), small_settings(noise_seed=None), folder, progress=stop)
    change(folder)
    with pytest.raises(JsamError, match=message):
        resume(folder, task=small_task())


ODD: tuple[Any, ...] = (None, True, "8", -1, 1.5, 10**30, float("inf"), [], {}, "\ud800")


def _places(content: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(content, dict):
        return [place for key in content for place in [(*path, key), *_places(content[key], (*path, key))]]
    return [(*path, 0), *_places(content[0], (*path, 0))] if isinstance(content, list) else []


@pytest.mark.parametrize("name", ["config.json", "contract.json", "schedule.jsonl", "ledger.jsonl", "metrics.jsonl"])
def test_values_of_a_wrong_kind_are_no_crash(folder: Path, name: str) -> None:
    """Every third of all places × odd values: whatever a file holds, the report answers in lines of its own."""
    text = (folder / name).read_text()
    documents = [json.loads(line) for line in text.splitlines()] if name.endswith("l") else [json.loads(text)]
    tried = 0
    for number, document in enumerate(documents[:2]):
        for i, place in enumerate(_places(document)):
            for odd in ODD[i % 3 :: 3]:
                changed = json.loads(json.dumps(documents))
                inside = changed[number]
                for key in place[:-1]:
                    inside = inside[key]
                inside[place[-1]] = odd
                (folder / name).write_text("\n".join(map(json.dumps, changed)) + "\n")
                found_in(folder)
                tried += 1
    assert tried > 4
