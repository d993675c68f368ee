"""The copy of a run that may be shown holds nothing that was computed from records without noise, and no key."""

from __future__ import annotations

import dataclasses
import json
import resource
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from jsam.cli import main
from tests.conftest import require

if TYPE_CHECKING:
    import torch
else:
    torch = require("torch", extra="train")
    require("sklearn", extra="train")
    require("dp_accounting", extra="train")

from jsam.errors import JsamError
from jsam.privacy import read_ledger, spent_epsilons
from jsam.runs.publishing import files_of, publish
from jsam.runs.settlement import settle
from jsam.training.recorded_run import train
from tests.training.small import contents, run, small_contract, small_settings, small_task

pytestmark = pytest.mark.filterwarnings("ignore::jsam.errors.TrainingWarning")

FROM_RECORDS = (
    "train_loss", "share_clipped", "mean_sample_norm", "gradient_norm", "noise_norm", "noise_to_signal",
)  # fmt: skip
OPTIONS = [
    "--dataset", "digits", "--clients", "8", "--loss-weight", "50", "--max-epsilon", "2", "--rounds", "6",
    "--per-round", "4", "--threads", "1", "--seed", "5", "--momentum", "0.5", "--tensorboard",
]  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("publish") / "run"
    assert main(["simulate", *OPTIONS, "--output", str(folder)]) == 0
    return folder


def forms(value: float) -> Iterator[bytes]:
    """A number as text of seven digits or more, and as the bytes of a float."""
    yield f"{value:.7g}".encode()[:8]
    yield repr(value).encode()
    for kind in ("<f", "<d", ">f", ">d"):
        yield struct.pack(kind, value)


def private_bytes(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Everything of a run that looked at the records without noise, the key, and what was reported and paid."""
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        for name in FROM_RECORDS:
            value = record.get(name)
            if value is not None and value not in (0.0, 1.0):
                yield from ((f"{name} of round {record['round']}", form) for form in forms(value))
    config = json.loads((folder / "config.json").read_text())
    yield "the data's digest", config["data"]["digest"].encode()
    yield "the digest's fingerprint", json.loads((folder / "summary.json").read_text())["fingerprint"].encode()
    yield "the key's check", config["noise_key_check"].encode()
    key = (folder / "noise.key").read_text().strip()
    yield from (("the key", form) for form in (key.encode(), bytes.fromhex(key), bytes.fromhex(key)[::-1]))
    for client in json.loads((folder / "contract.json").read_text())["clients"]:
        yield f"sensitivity of {client['id']}", repr(client["sensitivity"]).encode()
        if client["payment"]:
            yield f"payment of {client['id']}", repr(client["payment"]).encode()


@pytest.mark.parametrize("options", [[], ["--with-ledger"]])
def test_no_number_without_noise_is_in_the_copy(finished: Path, tmp_path: Path, options: list[str]) -> None:
    copy = tmp_path / "copy"
    assert main(["publish", str(finished), str(copy), *options]) == 0
    assert {path.name for path in copy.iterdir()} == {"model.pt", "publication.json"} | (
        {"ledger.jsonl"} if options else set()
    )
    forbidden = list(private_bytes(finished))
    assert len(forbidden) > 150
    for path in copy.iterdir():
        content = path.read_bytes()
        for what, form in forbidden:
            assert form not in content, f"{path.name} holds {what}"
    # The search finds them where they are.
    whole = b"".join(path.read_bytes() for path in finished.rglob("*") if path.is_file())
    assert all(any(form in whole for what, form in forbidden if what == name) for name in {w for w, _ in forbidden})


def test_the_copy_says_what_is_promised_and_has_the_model(finished: Path, tmp_path: Path) -> None:
    assert main(["publish", str(finished), str(tmp_path / "new" / "copy"), "--with-ledger"]) == 0
    copy = tmp_path / "new" / "copy"
    said = json.loads((copy / "publication.json").read_text())
    contract = json.loads((finished / "contract.json").read_text())
    assert said["epsilon"] == max(client["epsilon"] for client in contract["clients"])
    assert said["delta"] == 1e-5
    assert said["noise_from"] == "the noise follows from a secret key"
    assert said["accuracy"] == json.loads((finished / "summary.json").read_text())["accuracy"]
    assert {path.stat().st_mode & 0o777 for path in copy.iterdir()} == {0o644}
    assert sorted(said["files"]) == sorted(path.name for path in copy.iterdir())
    assert (copy / "model.pt").read_bytes() == (finished / "model.pt").read_bytes()
    assert read_ledger(copy / "ledger.jsonl") == read_ledger(finished / "ledger.jsonl")
    assert max(spent_epsilons(read_ledger(copy / "ledger.jsonl"), 1e-5).values()) <= said["epsilon"]


def test_of_a_task_of_ones_own_the_accuracy_is_left_out(tmp_path: Path) -> None:
    """Its test records may be somebody's, and no contract covers them."""
    run(tmp_path / "run", noise_seed=None)
    copy = publish(tmp_path / "run", tmp_path / "copy", settle(tmp_path / "run", second_opinion=False))
    said = json.loads((copy / "publication.json").read_text())
    assert said["accuracy"] is said["loss"] is said["class_accuracy"] is None


def test_a_weight_that_is_a_view_is_stored_without_what_lies_beside_it(tmp_path: Path) -> None:
    """torch stores the whole memory of a view; a model whose weights lie beside data would publish the data."""
    task = small_task()
    layer: Any = task.model.get_submodule("0")
    beside = torch.full((1000, 4), 123.456)
    beside[:8] = layer.weight.detach()
    layer.weight = torch.nn.Parameter(beside[:8])
    train(small_contract(), task, small_settings(noise_seed=None), tmp_path / "run")
    publish(tmp_path / "run", tmp_path / "copy", settle(tmp_path / "run", second_opinion=False))
    assert struct.pack("<f", 123.456) * 4 not in (tmp_path / "copy" / "model.pt").read_bytes()


def test_every_file_that_a_run_writes_has_a_verdict(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that nobody has thought about is none that may be shown."""
    judged = {file.name.rstrip("/") for file in files_of(simulated=True)}
    assert {path.name for path in finished.iterdir()} <= judged
    assert main(["report", str(finished)]) == 0
    shown = capsys.readouterr().out
    page = (finished / "report.html").read_text()
    for name in judged:
        assert name in shown
        assert name in page
    assert main(["report", str(finished), "--format", "json"]) == 0
    files = {file["name"]: file["publish"] for file in json.loads(capsys.readouterr().out)["files"]}
    assert files["model.pt"] == "yes"
    assert files["noise.key"] == files["metrics.jsonl"] == files["config.json"] == files["checkpoint.pt"] == "no"


def refused(folder: Path, target: Path, message: str, capsys: pytest.CaptureFixture[str], code: int = 2) -> None:
    capsys.readouterr()
    there = sorted(target.parent.iterdir())
    assert main(["publish", str(folder), str(target)]) == code
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said
    assert code == 1 or said.count("\n") == 1
    assert sorted(target.parent.iterdir()) == there


def test_what_is_there_already_is_left_alone(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("mine")
    for name in ("empty", "file"):
        refused(finished, tmp_path / name, "is there already; name a new folder", capsys)
    assert (tmp_path / "file").read_text() == "mine"
    refused(finished, finished / "copy", "lies in the run's folder", capsys)
    refused(tmp_path / "empty", tmp_path / "copy", "is not a run folder", capsys)


def test_a_run_with_known_noise_an_unfinished_one_and_one_with_an_open_key_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path / "known", noise_seed=5)
    refused(tmp_path / "known", tmp_path / "copy", "is not private: the noise follows from the seed", capsys)
    run(tmp_path / "run", noise_seed=None)
    (tmp_path / "run" / "noise.key").chmod(0o644)
    refused(tmp_path / "run", tmp_path / "copy", "may be read by others (mode 0644", capsys)
    (tmp_path / "run" / "noise.key").chmod(0o600)
    (tmp_path / "run" / "summary.json").unlink()
    refused(tmp_path / "run", tmp_path / "copy", "is not complete; nothing is published", capsys)


def test_a_run_whose_books_do_not_hold_is_not_published(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path / "run", noise_seed=None, noise="lemma1", c2=0.1)
    refused(tmp_path / "run", tmp_path / "copy", "nothing is published", capsys, code=1)


def test_a_contract_that_was_chosen_by_losses_is_not_published(tmp_path: Path) -> None:
    """BBM selects by each client's loss, a look at the records that no noise covers."""
    run(tmp_path / "run", noise_seed=None, contract=dataclasses.replace(small_contract(), mechanism="bbm-6"))
    settlement = settle(tmp_path / "run", second_opinion=False)
    assert settlement.kept
    with pytest.raises(JsamError, match="bbm-6 chose clients by losses"):
        publish(tmp_path / "run", tmp_path / "copy", settlement)


def test_a_full_disk_leaves_nothing_half_published(tmp_path: Path) -> None:
    model: Any = torch.nn.Sequential(torch.nn.Linear(4, 600), torch.nn.Tanh(), torch.nn.Linear(600, 3))
    run(tmp_path / "run", noise_seed=None, task=small_task(model=model))
    settlement, before = settle(tmp_path / "run", second_opinion=False), contents(tmp_path / "run")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(JsamError, match="could not be written") as caught:
            publish(tmp_path / "run", tmp_path / "copy", settlement)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert contents(tmp_path / "run") == before


def test_weights_are_all_that_the_published_model_holds(finished: Path, tmp_path: Path) -> None:
    assert main(["publish", str(finished), str(tmp_path / "copy")]) == 0
    found = torch.load(tmp_path / "copy" / "model.pt", weights_only=True)
    assert all(isinstance(value, torch.Tensor) for value in found.values())
    assert np.isfinite(torch.cat([value.flatten() for value in found.values()]).numpy()).all()
