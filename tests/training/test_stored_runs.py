"""Stored runs: contracts read back exactly, metrics cut back safely, ledgers held against contract and schedule."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.conftest import require

if not TYPE_CHECKING:
    require("torch", extra="train")

from jsam.errors import InputError, JsamError, RunFolderError
from jsam.mechanism.contract_files import contract_from_dict, load_contract
from jsam.runs.run_folder import MetricsFile, RunFolder
from jsam.runs.settlement import settle
from jsam.training.recorded_run import train
from tests.training.small import contents, run, small_contract, small_settings, small_task

pytestmark = pytest.mark.filterwarnings("ignore::jsam.errors.TrainingWarning")


def test_a_contract_comes_back_from_json_number_for_number() -> None:
    contract = small_contract(update_weights=np.linspace(0.3, 1.7, 6), budget=3.0)
    again = contract_from_dict(json.loads(json.dumps(contract.as_dict())))
    assert again.as_dict() == contract.as_dict()
    assert again.ids == contract.ids
    for name in ("epsilons", "selection_probs", "payments", "update_weights", "sensitivities"):
        assert np.array_equal(getattr(again, name), getattr(contract, name))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda c: c.pop("clients"), "clients"),
        (lambda c: c["clients"][0].pop("epsilon"), "epsilon"),
        (lambda c: c["clients"][1].update(id="0"), "id of its own"),
        (lambda c: c.update(clients=[]), "at least one client"),
    ],
)
def test_what_is_no_contract_is_refused(
    tmp_path: Path, spoil: Callable[[dict[str, Any]], object], message: str
) -> None:
    content = small_contract().as_dict()
    spoil(content)
    (tmp_path / "c.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=message):
        load_contract(tmp_path / "c.json")


def test_files_that_are_no_json_or_not_there_are_refused(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text("id,epsilon\n")
    with pytest.raises(InputError, match="is not JSON"):
        load_contract(tmp_path / "c.json")
    with pytest.raises(InputError, match="cannot be read: No such file"):
        load_contract(tmp_path / "d.json")


def test_metrics_are_cut_back_to_the_checkpoint_and_never_filled_up(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsFile(path) as metrics:
        metrics.add({"round": 1})
        size = metrics.sync()
        metrics.add({"round": 2})
    with MetricsFile(path, size=size) as metrics:
        metrics.add({"round": 2, "again": True})
    assert path.read_text() == '{"round":1}\n{"round":2,"again":true}\n'
    with pytest.raises(RunFolderError, match="shorter"):
        MetricsFile(path, size=1000)


def test_a_torn_last_line_of_metrics_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"round":1}\n{"rou')
    assert RunFolder(tmp_path).read_metrics() == [{"round": 1}]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="cannot be made"):
        RunFolder(tmp_path / "file" / "run").create()


def test_settling_a_run_finds_every_contract_kept_by_two_accountants(tmp_path: Path) -> None:
    require("dp_accounting", extra="train")
    run(tmp_path / "run")
    settlement = settle(tmp_path / "run")
    assert settlement.kept
    assert settlement.lines()[0].startswith("no contract was overspent: 6 clients under contract ")
    stored = json.loads((tmp_path / "run" / "audit.json").read_text())
    assert stored["kept"] and stored["rounds_recorded"] == 8  # noqa: PT018
    assert sum(client["participations"] for client in stored["clients"]) == 8 * 4
    for client in stored["clients"]:
        assert client["spent"] <= client["bought"]
        assert client["second_opinion"] == pytest.approx(client["spent"], rel=1e-3)


def _lines_changed(folder: Path, change: Callable[[list[dict[str, Any]]], None]) -> None:
    path = folder / "ledger.jsonl"
    head, *lines = path.read_text().splitlines()
    records = [json.loads(line) for line in lines]
    change(records)
    path.write_text("\n".join([head, *(json.dumps(record, separators=(",", ":")) for record in records), ""]))


def test_too_little_noise_in_one_release_is_found_and_the_client_named(tmp_path: Path) -> None:
    run(tmp_path / "run")
    _lines_changed(tmp_path / "run", lambda records: records[0].update(noise_std=records[0]["noise_std"] * 0.999))
    settlement = settle(tmp_path / "run", second_opinion=False)
    assert not settlement.kept
    assert len(settlement.report.violations) == 1
    assert settlement.lines()[0].startswith("1 of 6 clients are OVER their contract")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda records: records.pop(0), "lacks the release of client"),
        (lambda records: records.append({**records[0], "client": "5", "round": 7, "multiplicity": 4}), "drawn 4 times"),
        (lambda records: records.append({**records[0], "client": "stranger"}), "stranger"),
        (lambda records: records.append({**records[0], "round": 88}), "in round 88"),
    ],
)
def test_a_ledger_that_is_not_the_schedules_is_found(
    tmp_path: Path, change: Callable[[list[dict[str, Any]]], None], message: str
) -> None:
    run(tmp_path / "run", per_round=1)
    _lines_changed(tmp_path / "run", change)
    settlement = settle(tmp_path / "run", second_opinion=False)
    assert not settlement.kept
    assert any(message in line for line in settlement.lines())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda record: record.update(noise_std=record["noise_std"] * 1.5), "noise std"),
        (lambda record: record.update(samples=record["samples"] * 2), "samples"),
        (lambda record: record.update(clip_norm=record["clip_norm"] / 2), "clip_norm"),
    ],
)
def test_a_ledger_that_claims_more_than_its_contract_demands_is_not_believed(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    """Every edit makes the spent ε look smaller, so the accountants alone would be content."""

    def change_all(records: list[dict[str, Any]]) -> None:
        for record in records:
            change(record)

    run(tmp_path / "run", noise_seed=None)
    _lines_changed(tmp_path / "run", change_all)
    settlement = settle(tmp_path / "run", second_opinion=False)
    assert settlement.report.kept
    assert not settlement.kept
    assert settlement.lines()[0] == "the ledger is NOT the one that the contract demands"
    assert message in settlement.lines()[1]
    assert "more differences" in settlement.lines()[-1]
    assert json.loads((tmp_path / "run" / "audit.json").read_text())["kept"] is False


def test_a_ledger_cut_short_of_the_rounds_that_were_applied_is_found(tmp_path: Path) -> None:
    """Fewer releases look like less spending, and a ledger alone cannot tell that it once was longer."""
    run(tmp_path / "run")
    _lines_changed(tmp_path / "run", lambda records: records.__delitem__(-1))
    settlement = settle(tmp_path / "run", second_opinion=False)
    assert settlement.report.kept
    assert any("lacks the release of client" in line and "in round 7" in line for line in settlement.lines())


def test_a_schedule_edited_along_with_the_ledger_is_found(tmp_path: Path) -> None:
    """Fewer draws of a client would mean less noise; but who is drawn follows from contract and seed."""
    run(tmp_path / "run")
    path = tmp_path / "run" / "schedule.jsonl"
    head, first, *rest = path.read_text().splitlines()
    path.write_text("\n".join([head, json.dumps([0] * len(json.loads(first))), *rest, ""]))
    settlement = settle(tmp_path / "run", second_opinion=False)
    assert any("schedule is not the one that seed 5 draws" in line for line in settlement.lines())


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (None, "data.samples must be the clients' numbers of records"),
        ([12, 30, 18, 30, 24, 0], "data.samples must be the clients' numbers of records"),
        ([12, 30, 18, 30, 54], "samples of 5 clients; contract.json 6"),
        ([24, 60, 36, 60, 48, 60], "data.samples add up to 288, data.num_samples is 144"),
    ],
)
def test_a_run_without_the_sizes_that_its_noise_is_measured_by_is_refused(
    tmp_path: Path, samples: list[int] | None, message: str
) -> None:
    """The ledger's own sizes cannot stand in for them: they could be rescaled together with the noise."""
    run(tmp_path / "run")
    path = tmp_path / "run" / "config.json"
    config = json.loads(path.read_text())
    config["data"]["samples"] = samples
    path.write_text(json.dumps({**config, "data": {k: v for k, v in config["data"].items() if v is not None}}))
    with pytest.raises(RunFolderError, match=message):
        settle(tmp_path / "run", second_opinion=False)


def test_a_run_can_be_settled_while_it_goes_on(tmp_path: Path) -> None:
    """After a kill in the middle of a round's records, the incomplete last round is no disagreement."""

    class KilledError(Exception):
        pass

    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 8:
            raise KilledError

    with pytest.raises(KilledError):
        train(small_contract(), small_task(), small_settings(), tmp_path / "run", progress=stop)
    path = tmp_path / "run" / "ledger.jsonl"
    lines = path.read_text().splitlines()
    last = json.loads(lines[-1])["round"]
    first_of_last = next(i for i, line in enumerate(lines) if i and json.loads(line)["round"] == last)
    path.write_text("\n".join(lines[: first_of_last + 1]) + "\n" + lines[-1][:10])
    metrics = tmp_path / "run" / "metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:-1]))
    settlement = settle(tmp_path / "run", second_opinion=False)
    assert settlement.kept
    before = contents(tmp_path / "run")
    settle(tmp_path / "run", second_opinion=False)
    assert contents(tmp_path / "run") == before


def test_lemma1_with_a_small_constant_is_reported_as_what_it_spends(tmp_path: Path) -> None:
    run(tmp_path / "run", noise="lemma1", c2=0.1)
    settlement = settle(tmp_path / "run", second_opinion=False)
    assert not settlement.kept
    for entry in settlement.report.violations:
        assert entry.spent > entry.bought


def test_a_damaged_ledger_is_refused_by_line(tmp_path: Path) -> None:
    run(tmp_path / "run")
    path = tmp_path / "run" / "ledger.jsonl"
    lines = path.read_text().splitlines()
    lines[3] = lines[3][:20]
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(JsamError, match="line 4 is damaged"):
        settle(tmp_path / "run", second_opinion=False)
