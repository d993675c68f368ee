"""`jsam plan`: the same numbers as the Python API, in every format, to a file or to standard output."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jsam
from jsam.mechanism.budget.loss_weight import loss_weight_for_budget
from jsam.mechanism.fairness import Fairness
from tests.cli.conftest import EXAMPLE, UNIFORM, Run, WriteClients
from tests.conftest import require


def example_market() -> jsam.Market:
    with EXAMPLE.open() as file:
        rows = list(csv.DictReader(file))
    return jsam.Market(
        sensitivities=np.array([float(row["sensitivity"]) for row in rows]),
        prior=jsam.parse_prior("uniform:0,1"),
        ids=[row["id"] for row in rows],
    )


def planned_json(run: Run, *arguments: str | Path) -> dict[str, Any]:
    result = run("plan", *arguments, "--format", "json")
    assert (result.code, result.err) == (0, "")
    content: dict[str, Any] = json.loads(result.out)
    return content


def test_json_has_the_names_that_users_rely_on(run: Run) -> None:
    content = planned_json(run, EXAMPLE, *UNIFORM)
    promised = {
        "mechanism", "num_clients", "num_selected", "loss_weight", "noise_weight", "bias_weight", "budget", "ironed",
        "objective", "loss_bound", "expected_cost", "total_payment", "runner_up", "clients",
    }  # fmt: skip
    assert promised <= set(content)
    assert set(content["runner_up"]) == {"num_selected", "objective"}
    names = ["id", "sensitivity", "virtual_cost", "selection_prob", "epsilon", "payment"]
    assert all(list(client) == names for client in content["clients"])
    assert [client["id"] for client in content["clients"][:2]] == ["client-001", "client-002"]


def test_json_holds_the_numbers_of_the_python_api(run: Run) -> None:
    options = {"noise_weight": 2.0, "bias_weight": 0.5, "max_selection_prob": 0.05}
    flags = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    expected = jsam.plan(example_market(), jsam.EvenJSAM(loss_weight=5.0, **options))
    found = planned_json(run, EXAMPLE, *UNIFORM, *flags)
    assert found.pop("fairness") == Fairness.of(expected).as_dict()
    assert found == expected.as_dict()


def test_prices_of_caps_are_told_if_asked_for(run: Run) -> None:
    caps = ("--mechanism", "jsam-even", "--min-clients", "30", "--max-epsilon", "3", "--cap-prices")
    content = planned_json(run, EXAMPLE, *UNIFORM, *caps)
    assert [entry["without"] for entry in content["cap_prices"]] == [
        "max_epsilon",
        "min_clients",
        "max_epsilon min_clients",
    ]
    free = planned_json(run, EXAMPLE, *UNIFORM, "--mechanism", "jsam-even", "--max-epsilon", "3")
    assert content["cap_prices"][1]["price"] == content["objective"] - free["objective"] > 0
    assert "what a cap or floor adds to the objective" in run("plan", EXAMPLE, *UNIFORM, *caps).out
    assert "nothing that they cost" in run("plan", EXAMPLE, *UNIFORM, "--cap-prices").out
    # Under a budget the loss weight is the one that the budget buys.
    under = planned_json(run, EXAMPLE, "--prior", "uniform:0,1", "--budget", "3", *caps)
    same = ("--prior", "uniform:0,1", "--loss-weight", str(under["loss_weight"]), *caps)
    assert planned_json(run, EXAMPLE, *same)["cap_prices"] == under["cap_prices"]


@pytest.mark.parametrize("mechanism", ["jsam", "jsam-ci", "usbm", "fsbm-50"])
def test_csv_is_one_row_a_client_with_the_same_numbers(mechanism: str, run: Run) -> None:
    contract = jsam.plan(example_market(), jsam.mechanism_named(mechanism, loss_weight=5.0))
    rows = list(
        csv.DictReader(io.StringIO(run("plan", EXAMPLE, *UNIFORM, "--mechanism", mechanism, "--format", "csv").out))
    )
    assert contract.payments is not None
    assert [row["id"] for row in rows] == list(contract.ids)
    assert [float(row["payment"]) for row in rows] == contract.payments.tolist()
    assert [float(row["epsilon"]) for row in rows] == contract.epsilons.tolist()


def test_payments_can_be_left_out(run: Run) -> None:
    content = planned_json(run, EXAMPLE, *UNIFORM, "--no-payments")
    assert content["total_payment"] is None
    assert {client["payment"] for client in content["clients"]} == {None}
    assert "left out" in run("plan", EXAMPLE, *UNIFORM, "--no-payments").out


def test_a_budget_becomes_the_loss_weight_of_the_api(run: Run) -> None:
    content = planned_json(run, EXAMPLE, "--prior", "uniform:0,1", "--budget", "5", "--seed", "7")
    market = example_market()
    expected = loss_weight_for_budget(jsam.EvenJSAM(loss_weight=1.0), 5.0, prior=market.prior, num_clients=100, seed=7)
    assert content["budget"] == 5.0
    assert content["loss_weight"] == expected.loss_weight
    assert content["budget_plan"] == expected.as_dict()
    assert content["objective"] == jsam.plan(market, jsam.EvenJSAM(loss_weight=expected.loss_weight)).objective


def test_a_budget_with_a_probability_shows_what_may_fall_due(run: Run, clients: WriteClients) -> None:
    path = clients("id,sensitivity\na,0.2\nb,0.5\nc,0.9\n")
    options = ("--prior", "uniform:0,1", "--budget", "2")
    likely = planned_json(run, path, *options, "--budget-probability", "0.95")
    expected = planned_json(run, path, *options)
    assert likely["loss_weight"] < expected["loss_weight"]
    assert likely["budget_plan"]["probability"] == 0.95
    assert likely["budget_plan"]["payment_quantiles"]["0.95"] <= 2.0
    table = run("plan", path, *options, "--budget-probability", "0.95").out
    assert "with probability 0.95" in table
    assert "may fall due" in table


def test_importance_compensation_takes_its_probabilities_from_the_file(run: Run, clients: WriteClients) -> None:
    path = clients("id,sensitivity,selection_prob\na,0.2,0.5\nb,0.5,0.3\nc,0.9,0.2\n")
    content = planned_json(run, path, *UNIFORM, "--mechanism", "usbm-compensated")
    plain = planned_json(run, path, *UNIFORM, "--mechanism", "usbm")
    assert content["mechanism"] == "usbm-compensated"
    np.testing.assert_allclose([client["selection_prob"] for client in content["clients"]], [0.5, 0.3, 0.2])
    np.testing.assert_allclose(
        [client["update_weight"] for client in content["clients"]], 1 / (3 * np.array([0.5, 0.3, 0.2]))
    )
    assert [c["payment"] for c in content["clients"]] == [c["payment"] for c in plain["clients"]]


def test_the_table_says_what_was_decided(run: Run) -> None:
    out = run("plan", EXAMPLE, *UNIFORM).out
    contract = jsam.plan(example_market(), jsam.EvenJSAM(loss_weight=5.0))
    assert "jsam-even, the default" in out
    assert "jsam, as --mechanism says" in run("plan", EXAMPLE, *UNIFORM, "--mechanism", "jsam").out
    assert f"{contract.num_selected} of 100" in out
    assert f"{contract.expected_cost:.5g}" in out
    assert f"{contract.total_payment:.5g}" in out
    assert "regular" in out
    assert "and 80 more" in out


def test_the_table_says_that_a_prior_was_ironed(run: Run, clients: WriteClients) -> None:
    path = clients("id,sensitivity\na,0.1\nb,0.2\nc,0.9\n")
    # Mass at both ends makes c + F/f fall on the way up.
    assert "ironed from" in run("plan", path, "--prior", "beta:0.2,0.2", "--loss-weight", "5").out
    assert planned_json(run, path, "--prior", "beta:0.2,0.2", "--loss-weight", "5")["ironed"] is True


def test_ids_are_shown_as_they_are(run: Run, clients: WriteClients) -> None:
    """Square brackets are markup to rich: an id that looks like it must neither vanish nor break the table."""
    path = clients("id,sensitivity\n[bold]x[/bold],0.2\n[/oops],0.5\n")
    result = run("plan", path, *UNIFORM)
    assert result.code == 0
    assert "[bold]x[/bold]" in result.out
    assert "[/oops]" in result.out


def test_infinite_virtual_costs_are_null_in_json(run: Run, clients: WriteClients) -> None:
    """At the top of beta's support the density vanishes: such a client costs infinitely much and is left out."""
    path = clients("id,sensitivity\na,0.2\nb,1.0\n")
    content = planned_json(run, path, "--prior", "beta:2,5", "--loss-weight", "5")
    assert content["clients"][1]["virtual_cost"] is None
    assert content["clients"][1]["payment"] == 0.0
    assert content["expected_cost"] > 0


@pytest.mark.parametrize(("name", "begins"), [("r.json", "{"), ("r.csv", "id,sensitivity,"), ("r.txt", "╭")])
def test_the_name_of_the_output_says_its_format(name: str, begins: str, run: Run, tmp_path: Path) -> None:
    target = tmp_path / "new" / "folder" / name
    result = run("plan", EXAMPLE, *UNIFORM, "--output", target)
    assert (result.code, result.out) == (0, "")
    assert target.read_text().startswith(begins)
    assert "\x1b" not in target.read_text()
    assert [path.name for path in target.parent.iterdir()] == [name]


def test_a_picture_is_drawn(run: Run, tmp_path: Path) -> None:
    require("matplotlib", extra="plot")
    result = run("plan", EXAMPLE, *UNIFORM, "--plot", tmp_path / "new" / "plan.png")
    assert result.code == 0
    picture = (tmp_path / "new" / "plan.png").read_bytes()
    assert picture.startswith(b"\x89PNG\r\n")
    assert len(picture) > 50_000


def test_an_interruption_while_writing_leaves_no_file(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(source: str, target: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", interrupted)
    result = run("plan", EXAMPLE, *UNIFORM, "--output", tmp_path / "out" / "result.json")
    assert (result.code, result.out, result.err) == (130, "", "jsam: stopped\n")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_bug_is_not_taken_for_a_violation(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object, **options: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("jsam.cli.inputs.Inputs.contract", broken)
    result = run("plan", EXAMPLE, *UNIFORM)
    assert result.code == 70
    assert "ZeroDivisionError: a bug" in result.err


def test_past_reports_are_headed_like_clients_in_any_case(run: Run, tmp_path: Path) -> None:
    lower, upper = tmp_path / "lower.csv", tmp_path / "upper.csv"
    lower.write_text("id,sensitivity\na,0.1\nb,0.2\nc,0.4\nd,0.7\ne,0.9\n")
    upper.write_text(lower.read_text().replace("id,sensitivity", "ID, Sensitivity"))
    contents = [
        planned_json(run, EXAMPLE, "--prior", f"empirical:{past}", "--loss-weight", "5", "--no-payments")
        for past in (lower, upper)
    ]
    assert contents[0] == contents[1]


def test_what_it_costs_to_round_sizes_is_said(run: Run, clients: WriteClients) -> None:
    rows = "".join(f"k{i},{(i + 0.5) / 30},{1_000_003 + 77_777 * i}\n" for i in range(30))
    path = clients(f"id,sensitivity,samples\n{rows}")
    options = (*UNIFORM, "--mechanism", "jsam-even")
    content = planned_json(run, path, *options)
    assert 0 <= content["rounding_bound"] < 0.01 * content["objective"]
    assert "rounded" in run("plan", path, *options).out
    assert "rounding_bound" not in planned_json(run, EXAMPLE, *options)


def test_lots_count_prices_and_data_by_records(run: Run, clients: WriteClients) -> None:
    """A client of two lots may ask twice what the prior says of one, and is planned as two clients of one lot."""
    lots = clients("id,sensitivity,samples\na,1.2,1200\nb,0.3,600\nc,0.9,600\nd,0.5,600\n")
    arguments = (lots, *UNIFORM, "--mechanism", "jsam-even", "--lot", "600")
    by_id = {client["id"]: client for client in planned_json(run, *arguments)["clients"]}
    assert by_id["a"]["virtual_cost"] == pytest.approx(2.4)
    assert by_id["a"]["data_share"] == pytest.approx(0.4)
    alike = clients("id,sensitivity\na,0.2\nb,0.3\n")
    refused = run("plan", alike, *UNIFORM, "--mechanism", "jsam-even", "--lot", "600")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "no column 'samples'" in refused.err
    train = ("--dataset", "digits", "--clients", "4", "--output", "nowhere", "--lot", "600")
    refused = run("simulate", *train, *UNIFORM, "--mechanism", "jsam-even")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "give --noise-weight and --bias-weight" in refused.err


def test_the_command_line_plans_by_halves_and_refuses_what_has_no_reports(run: Run) -> None:
    options = ("--prior", "halves", "--loss-weight", "5", "--mechanism", "jsam-even")
    planned = run("plan", EXAMPLE, *options, "--format", "json")
    assert (planned.code, planned.err) == (0, "")
    content = json.loads(planned.out)
    assert content["mechanism"] == "jsam-even by halves"
    assert content["truthful"]
    refused = run("simulate", "--dataset", "digits", "--clients", "10", "--output", "nowhere", *options)
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "learned from the reports" in refused.err
