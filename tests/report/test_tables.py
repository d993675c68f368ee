"""Tables say in words what the numbers mean."""

from __future__ import annotations

import dataclasses
import io

import numpy as np
from rich.console import Console, RenderableType

import jsam
from jsam.report.tables import clients_table, compare_table, plan_headline


def shown(part: RenderableType) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(part)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def contract_of(count: int, mechanism: str = "jsam", **options: float) -> jsam.Contract:
    reports = (np.arange(count) + 0.5) / count
    market = jsam.Market(sensitivities=reports, prior=jsam.parse_prior("uniform:0,1"))
    return jsam.plan(market, jsam.mechanism_named(mechanism, loss_weight=5.0, **options))


def test_forty_clients_are_all_shown_and_more_are_counted() -> None:
    assert "more" not in shown(clients_table(contract_of(40)))
    assert "and 21 more" in shown(clients_table(contract_of(41)))


def test_clients_stand_in_the_order_of_their_virtual_cost() -> None:
    market = jsam.Market(
        sensitivities=np.array([0.9, 0.1, 0.5]), ids=list("cab"), prior=jsam.parse_prior("uniform:0,1")
    )
    rows = shown(clients_table(jsam.plan(market, jsam.JSAM(loss_weight=5.0)))).splitlines()
    assert [line.split()[1] for line in rows if line.split() and line.split()[0] in "123"] == ["a", "b", "c"]


def test_the_headline_names_claim_and_caps() -> None:
    plain = shown(plan_headline(contract_of(10), prior="uniform:0,1"))
    assert "no client gains by misreporting" in plain
    assert "runner-up" in plain
    assert "caps" not in plain
    informed = shown(plan_headline(contract_of(10, "jsam-ci", max_epsilon=3.0), prior="uniform:0,1"))
    assert "truthfulness is not claimed" in informed
    assert "ε ≤ 3" in informed


def test_a_row_with_an_error_keeps_its_place_and_says_why() -> None:
    row = {
        "mechanism": "usbm", "num_selected": None, "loss_weight": None, "expected_cost": None,
        "total_payment": None, "loss_bound": None, "objective": None, "error": "payments diverge",
    }  # fmt: skip
    out = shown(compare_table([row], ["a note"]))
    assert "usbm: payments diverge" in out
    assert "a note" in out


def test_the_headline_says_what_rounding_of_sizes_loses() -> None:
    rounded = dataclasses.replace(contract_of(10), rounding_bound=contract_of(10).objective / 4000)
    words = " ".join(shown(plan_headline(rounded, prior="uniform:0,1")).replace("│", " ").split())
    assert "at most 0.025% above the best without" in words
