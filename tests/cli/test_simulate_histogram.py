"""`--heterogeneity histogram:EPS`: bought, charged, paid, shown, resumed, and flagged where the charge is gone."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from jsam.cli import main
from tests.conftest import require

if not TYPE_CHECKING:
    require("torch", extra="train")
    require("sklearn", extra="train")
    require("dp_accounting", extra="train")

TASK = ["--dataset", "digits", "--rounds", "6", "--per-round", "3", "--threads", "1", "--similarity", "30"]
ASKED = ["--loss-weight", "60", "--heterogeneity", "histogram:0.5"]
CLIENTS, PRICE, EPSILON = 10, 1.0, 0.5


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("histogram") / "run"
    assert main(["simulate", *TASK, "--clients", "10", *ASKED, "--noise-seed", "0", "--output", str(folder)]) == 0
    return folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def charges(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "ledger.jsonl").read_text().splitlines()[1:]
    return [record for record in map(json.loads, lines) if record.get("query") == "label counts"]


def test_what_it_costs_is_said_in_a_line_and_stands_in_every_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert main(["simulate", *TASK, "--clients", "10", *ASKED, "--output", str(run)]) == 0
    said = capsys.readouterr()
    zeta2 = json.loads((run / "config.json").read_text())["label_counts"]["heterogeneity"]
    cost = f"ζ² = {zeta2:.4g}; ε = 0.5 charged to each of 10 clients, paid 0.5 each, 5 in total, beside the budget"
    # Planned with, shown at the end, and on the page.
    assert f"jsam: heterogeneity from label counts with noise: {cost}\n" in said.err
    assert "no client sells more than ε = 10 in all, 9.96882 of it in training" in said.err
    assert cost in " ".join(said.out.split())
    page = (run / "report.html").read_text()
    assert cost in page
    assert "over the whole training and its label counts together" in page
    assert f'heterogeneity = "{zeta2:.6g}"' in (run / "rules.toml").read_text()
    contract = json.loads((run / "contract.json").read_text())
    assert contract["bias_weight"] == pytest.approx(math.sqrt(zeta2))
    assert f"{contract['total_payment'] + 5:.6g} in total" in said.out


def test_the_report_charges_it_together_with_the_training(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(folder), "--format", "json"]) == 0
    settled = json.loads(capsys.readouterr().out)
    assert settled["label_counts"]["total"] == CLIENTS * PRICE * EPSILON
    assert settled["rounds_recorded"] == 6
    sellers = [client for client in settled["clients"] if client["bought_for_training"]]
    assert 0 < len(sellers) < CLIENTS
    for client in settled["clients"]:
        assert client["bought_for_labels"] == EPSILON
        assert client["label_payment"] == PRICE * EPSILON
        assert client["spent"] <= client["bought"]
        assert client["second_opinion"] == pytest.approx(client["spent"], rel=1e-3)
        if client["participations"]:
            parts = client["bought_for_training"], EPSILON
            assert max(parts) < client["bought"] <= min(sum(parts), 10.0)
            assert client["spent"] == pytest.approx(client["bought"], rel=1e-4)
        else:
            assert client["spent"] == pytest.approx(EPSILON, rel=1e-4)


def test_both_parts_stand_beside_the_whole(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(folder)]) == 0
    shown = capsys.readouterr().out
    head = next(line for line in shown.splitlines() if "ε sold" in line)
    assert head.split()[:8] == ["client", "draws", "ε", "sold", "for", "training", "for", "labels"]
    rows = [line.split() for line in shown.splitlines()]
    assert ["10", "9.9688", "0.5", "10"] in [row[2:6] for row in rows]  # drawn: ten in all, as the cap says
    assert ["0", "0.5", "0", "0.5", "0.5"] in [row[1:6] for row in rows]  # never drawn
    assert "of it for labels" in (folder / "report.html").read_text()


def test_the_noise_of_the_charges_is_in_the_counts_and_from_a_stream_of_its_own(finished: Path) -> None:
    """ζ² follows from the run's seed and the labels, and from nothing else."""
    from jsam.mechanism.noisy_labels import spread_of_noisy
    from jsam.privacy import generator
    from jsam.training.task import TaskSpec

    stored = json.loads((finished / "config.json").read_text())
    task = TaskSpec.from_dict(stored["task"]).build()
    counts = task.partition.label_counts(task.dataset.train_targets, 10)
    std = charges(finished)[0]["noise_std"]
    normals = generator(0, "noise on label counts").standard_normal(counts.size).reshape(counts.shape)
    again = spread_of_noisy(counts + std * normals, task.partition.sizes, std)
    assert stored["label_counts"]["heterogeneity"] == float(f"{again:.6g}")


def test_all_are_charged_before_a_count_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from jsam.training import label_survey

    run, seen = tmp_path / "run", []

    def looking(noisy: Any, *_: object) -> float:
        seen.append([record["client"] for record in charges(run)])
        raise KeyboardInterrupt

    monkeypatch.setattr(label_survey, "spread_of_noisy", looking)
    command = ["simulate", *TASK, "--clients", "10", *ASKED, "--output", str(run)]
    assert main(command) == 130
    assert seen == [[str(k) for k in range(CLIENTS)]]


@pytest.mark.parametrize(
    "wish",
    [
        ["--budget", "1e-300"],
        ["--budget", "1e9"],
        ["--loss-weight", "60", "--min-clients", "20"],
        ["--loss-weight", "60", "--mechanism", "fsbm-20"],
        ["--loss-weight", "60", "--mechanism", "csra"],
        ["--loss-weight", "60", "--max-selection-prob", "0.05"],
        ["--loss-weight", "60", "--delta", "0.01"],
    ],
)
def test_what_cannot_be_planned_is_refused_before_anybody_is_charged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wish: list[str]
) -> None:
    command = ["simulate", *TASK, "--clients", "10", *wish, "--heterogeneity", "histogram:0.5"]
    assert main([*command, "--output", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err.count("jsam: error:") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("stop", [KeyboardInterrupt, OSError("disk full")])
def test_whoever_is_stopped_after_the_charges_hears_how_nobody_is_charged_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, stop: Any
) -> None:
    from jsam.training import recorded_run

    def interrupted(*_: Any, **__: Any) -> None:
        raise stop

    command = ["simulate", *TASK, "--clients", "10", *ASKED, "--output", str(tmp_path / "run")]
    with monkeypatch.context() as before_the_run:
        before_the_run.setattr(recorded_run, "write_json", interrupted)
        assert main(command) != 0
    said = capsys.readouterr().err
    assert "jsam resume" not in said
    (line,) = [line for line in said.splitlines() if "every client is charged" in line]
    assert len(charges(tmp_path / "run")) == CLIENTS
    # The numbers that it names plan the same without a second charge.
    zeta = line.partition("--heterogeneity ")[2].split()[0]
    again = ["--loss-weight", "60", "--heterogeneity", zeta, "--output", str(tmp_path / "again")]
    assert main(["simulate", *TASK, "--clients", "10", *again]) == 0
    assert charges(tmp_path / "again") == []
    assert main(command) == 2
    assert "ledger.jsonl is there but no config.json beside it; choose another folder" in capsys.readouterr().err


def test_a_resumed_run_ends_with_the_same_bytes(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from jsam.cli.running import RoundProgress

    def stop(_: RoundProgress, record: dict[str, Any]) -> None:
        if record["round"] == 4:
            raise KeyboardInterrupt

    run = tmp_path / "run"
    with monkeypatch.context() as training:
        training.setattr(RoundProgress, "__call__", stop)
        options = [*TASK, "--clients", "10", *ASKED, "--noise-seed", "0"]
        assert main(["simulate", *options, "--output", str(run)]) == 130
    # Without the charges nothing goes on, though no checkpoint is there yet.
    ledger = (run / "ledger.jsonl").read_text().splitlines(keepends=True)
    (run / "ledger.jsonl").write_text("".join(ledger[:3] + ledger[4:]))
    capsys.readouterr()
    assert main(["resume", str(run)]) == 2
    assert "lacks the charge for the label counts of client 2" in capsys.readouterr().err
    (run / "ledger.jsonl").write_text("".join(ledger))
    assert main(["resume", str(run)]) == 0
    for path in finished.iterdir():
        if path.name != "report.html":
            assert (run / path.name).read_bytes() == path.read_bytes(), path.name


def ledger_with(change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / "ledger.jsonl"
        head, *lines = path.read_text().splitlines()
        records = change([json.loads(line) for line in lines])
        path.write_text("\n".join([head, *map(json.dumps, records), ""]))

    return apply


def config_with(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        change(config)
        (folder / "config.json").write_text(json.dumps(config))

    return apply


def uncharged(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [record for record in records if "query" not in record]


def louder(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**record, "noise_std": record["noise_std"] * 2} if "query" in record else record for record in records]


def quieter(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**record, "noise_std": record["noise_std"] / 2} if "query" in record else record for record in records]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (ledger_with(uncharged), "the ledger lacks the charge for the label counts of client 0"),
        (ledger_with(lambda records: records[1:]), "the ledger lacks the charge for the label counts of client 0"),
        (ledger_with(louder), "the ledger has noise std"),
        (ledger_with(quieter), "10 of 10 clients are OVER their contract"),
        (config_with(lambda config: config.pop("label_counts")), "which this run did not ask for"),
        (config_with(lambda config: config["label_counts"].update(epsilon=0.4)), "clients are OVER their contract"),
        (config_with(lambda config: config["label_counts"].update(heterogeneity=0.5)), "contract.json has ζ² ="),
        (config_with(lambda config: config["label_counts"].update(num_clients=9)), "label counts are of 9 clients"),
        (config_with(lambda config: config["label_counts"].update(price=0.1)), "config.json, contract.json or"),
        (config_with(lambda config: config.update(label_counts={"epsilon": "x"})), "config.json is damaged"),
    ],
)
def test_a_run_whose_charge_is_gone_or_changed_is_flagged(
    folder: Path, capsys: pytest.CaptureFixture[str], change: Callable[[Path], None], words: str
) -> None:
    change(folder)
    assert main(["report", str(folder)]) in (1, 2)
    assert words in capsys.readouterr().err


def test_a_run_from_which_charge_and_question_are_both_gone_is_flagged(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger_with(uncharged)(folder)
    config_with(lambda config: config.pop("label_counts"))(folder)
    assert main(["report", str(folder)]) == 1
    assert "config.json, contract.json or schedule.jsonl has changed since" in capsys.readouterr().err


def test_zeta_is_near_that_of_the_labels(tmp_path: Path) -> None:
    """Here a client has only 75 records, so ε is 2."""
    found = []
    for name in ("from-data", "histogram:2"):
        options = ["--clients", "20", "--loss-weight", "60", "--heterogeneity", name, "--noise-seed", "0"]
        run = tmp_path / name.replace(":", "-")
        assert main(["simulate", *TASK, *options, "--rounds", "1", "--output", str(run)]) == 0
        found.append(json.loads((run / "contract.json").read_text())["bias_weight"] ** 2)
    assert abs(math.log(found[1] / found[0])) < math.log(1.3)


def test_what_a_client_is_paid_does_not_depend_on_any_report(tmp_path: Path) -> None:
    paid = []
    for first in (0.2, 0.9):
        table = tmp_path / f"clients-{first}.csv"
        table.write_text("id,sensitivity\n" + "".join(f"c{k},{first if k == 0 else 0.5}\n" for k in range(10)))
        run = tmp_path / f"run-{first}"
        options = ["--clients", str(table), *ASKED, "--noise-seed", "1", "--rounds", "1", "--output", str(run)]
        assert main(["simulate", *TASK, *options]) == 0
        assert [record["client"] for record in charges(run)] == [f"c{k}" for k in range(10)]
        paid.append(json.loads((run / "config.json").read_text())["label_counts"])
    # Neither the price nor ζ² moves with a report.
    assert paid[0] == paid[1]


def test_a_prior_without_an_end_is_paid_by_a_high_quantile_and_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    options = ["--clients", "10", *ASKED, "--prior", "lognorm:s=0.5,scale=0.3", "--rounds", "1", "--output", str(run)]
    assert main(["simulate", *TASK, *options]) == 0
    assert "(one client in 1,000 is dearer)" in capsys.readouterr().err
    stored = json.loads((run / "config.json").read_text())["label_counts"]
    assert stored["price"] == pytest.approx(0.3 * math.exp(0.5 * 3.0902323), rel=1e-6)


def test_swapped_records_need_noise_by_the_root_of_two_more(tmp_path: Path, finished: Path) -> None:
    run = tmp_path / "run"
    options = ["--clients", "10", *ASKED, "--adjacency", "replace", "--rounds", "1", "--output", str(run)]
    assert main(["simulate", *TASK, *options]) == 0
    ratio = np.array([record["noise_std"] for record in charges(run)]) / charges(finished)[0]["noise_std"]
    np.testing.assert_allclose(ratio, math.sqrt(2), rtol=1e-12)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["simulate", *TASK, "--heterogeneity", "histogram:x"], "behind the colon must be an ε from 0.01 to 100"),
        (["simulate", *TASK, "--heterogeneity", "histogram:0"], "behind the colon must be an ε from 0.01 to 100"),
        (["simulate", *TASK, "--heterogeneity", "histogram:1e308"], "behind the colon must be an ε from 0.01 to 100"),
        (["simulate", *TASK, "--heterogeneity", "histogram:10"], "nobody sells more than 10 in all; take a smaller"),
        (["simulate", *TASK, *ASKED[2:], "--bias-weight", "2"], "give heterogeneity or --bias-weight, not both"),
        (["simulate", *TASK, *ASKED[2:], "--prior", "halves"], "prior halves is learned from them"),
        (["simulate", *TASK, *ASKED[2:], "--lot", "10"], "--lot counts noise and bias by lots"),
        (["plan", "CLIENTS", *ASKED[2:]], "so it needs data (jsam simulate)"),
        (["audit", "CLIENTS", *ASKED[2:]], "so it needs data (jsam simulate)"),
    ],
)
def test_it_is_refused_in_a_line_where_it_makes_no_sense(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str], words: str
) -> None:
    table = tmp_path / "clients.csv"
    table.write_text("sensitivity\n" + "0.5\n" * 6)
    given = [str(table) if word == "CLIENTS" else word for word in command]
    given += ["--loss-weight", "60", "--output", str(tmp_path / "run")]
    assert main([*given, *([] if "--prior" in given else ["--prior", "uniform:0,1"])]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_campaigns_say_that_they_do_not_have_it_yet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    require("flwr", extra="flower")
    assert main(["deploy-local", "--clients", "3", *ASKED[2:], "--output", str(tmp_path / "run")]) == 2
    assert "campaigns do not have it yet; give a number or a text" in capsys.readouterr().err
