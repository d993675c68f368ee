"""`jsam audit`: exit code 1 exactly when a promise is broken, with the client named."""

from __future__ import annotations

import csv
import io
import json
import warnings

import numpy as np
import pytest

import jsam
from jsam.mechanism.audit import audit
from tests.cli.conftest import UNIFORM, Run, WriteClients

FIVE = "id,sensitivity\na,0.1\nb,0.25\nc,0.4\nd,0.6\ne,0.9\n"
REPORTS = np.array([0.1, 0.25, 0.4, 0.6, 0.9])


def test_a_truthful_mechanism_passes(run: Run, clients: WriteClients) -> None:
    result = run("audit", clients(FIVE), *UNIFORM)
    assert (result.code, result.err) == (0, "")
    assert "all promises hold" in result.out
    assert "5 clients were tried" in result.out


def test_json_is_the_report_of_the_python_api(run: Run, clients: WriteClients) -> None:
    result = run("audit", clients(FIVE), *UNIFORM, "--format", "json", "--grid", "16", "--seed", "3")
    market = jsam.Market(sensitivities=REPORTS, prior=jsam.parse_prior("uniform:0,1"), ids=list("abcde"))
    assert json.loads(result.out) == audit(market, jsam.EvenJSAM(loss_weight=5.0), grid=16, seed=3).as_dict()


def test_a_mechanism_that_claims_no_truthfulness_is_held_to_it_only_if_strict(run: Run, clients: WriteClients) -> None:
    arguments = ("audit", clients(FIVE), *UNIFORM, "--mechanism", "jsam-ci", "--format", "json")
    lenient, strict = run(*arguments), run(*arguments, "--strict")
    assert (lenient.code, strict.code) == (0, 1)
    assert json.loads(lenient.out)["violations"] == []
    report = json.loads(strict.out)
    assert report["ok"] is False
    assert report["violations"][0]["client"] == report["worst_client"]
    assert strict.err == ""


def test_the_table_names_the_worst_client(run: Run, clients: WriteClients) -> None:
    arguments = ("audit", clients(FIVE), *UNIFORM, "--mechanism", "jsam-ci", "--strict")
    worst = json.loads(run(*arguments, "--format", "json").out)["worst_client"]
    out = run(*arguments).out
    assert "violated: truthfulness" in out
    assert f"client '{worst}' gains" in " ".join(out.split())


def test_csv_is_one_row_a_check(run: Run, clients: WriteClients) -> None:
    rows = list(csv.DictReader(io.StringIO(run("audit", clients(FIVE), *UNIFORM, "--format", "csv").out)))
    assert {"truthfulness", "rationality", "monotonicity", "payments", "objective"} <= {row["name"] for row in rows}
    statuses = {row["name"]: row["status"] for row in rows}
    assert statuses.pop("budget") == "not claimed"
    assert set(statuses.values()) == {"passed"}


def test_a_mechanism_that_cheats_is_caught(run: Run, clients: WriteClients, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pay-as-bid that claims to be truthful: exit code 1."""

    class PayAsBid(jsam.JSAMCI):
        truthful = True

    monkeypatch.setattr("jsam.mechanism.rules.mechanism_named", lambda name, **options: PayAsBid(**options))
    result = run("audit", clients(FIVE), *UNIFORM)
    assert result.code == 1
    assert "violated: truthfulness" in result.out


@pytest.mark.parametrize(
    ("reports", "options"),
    [
        ((0.1, 0.2, 0.5, 0.7), "--prior uniform:0,1 --bias-weight 1e200"),
        ((1e-9, 0.99999999, 1.0), "--prior beta:2,0.5"),
    ],
)
def test_no_warning_of_python_is_shown(
    reports: tuple[float, ...], options: str, run: Run, clients: WriteClients
) -> None:
    """Whatever overflows inside: standard error is for lines that users can act on."""
    path = clients("id,sensitivity\n" + "".join(f"c{k},{c!r}\n" for k, c in enumerate(reports)))
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        result = run("audit", path, "--loss-weight", "5", *options.split())
    assert result.code in (0, 1, 2)
    assert result.err.count("\n") <= 1
    assert [str(warning.message) for warning in shown if warning.category is RuntimeWarning] == []


def test_a_report_too_small_for_floating_point_is_bad_input_not_a_violation(run: Run, clients: WriteClients) -> None:
    result = run("audit", clients("id,sensitivity\na,1e-320\nb,0.2\nc,0.5\n"), *UNIFORM)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert "9.99989e-321" in result.err


def test_under_a_budget(run: Run, clients: WriteClients) -> None:
    result = run("audit", clients(FIVE), "--prior", "uniform:0,1", "--budget", "2", "--mechanism", "fsbm-3")
    assert result.code == 0
    assert "fsbm-3: all promises hold" in result.out
