"""What tables and lines say about fairness is what the report has, and what is not known is a dash."""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy.stats

import jsam
from jsam.mechanism.fairness import Fairness, cap_prices
from jsam.report.fairness import HEADER, cap_price_table, cells, fairness_table, fairness_text
from tests.report.test_tables import contract_of, shown


def test_two_lines_say_who_is_drawn_and_what_is_paid() -> None:
    fairness = dataclasses.replace(Fairness.of(contract_of(10)), gini_all=0.123456, rent_share=0.5)
    said = fairness_text(fairness).plain
    assert "Gini 0.123 among all clients" in said
    assert "50% of the money is rent" in said
    assert "per record" not in said
    assert len(said.splitlines()) == 2


def test_where_data_are_unequal_draws_per_record_are_said() -> None:
    market = jsam.Market(sensitivities=np.array([0.2, 0.3, 0.4]), prior=scipy.stats.uniform(0, 1), samples=[10, 20, 70])
    fairness = Fairness.of(jsam.plan(market, jsam.JSAM(loss_weight=5.0)))
    assert f"per record {fairness.draws_ratio_per_record:.3g}" in fairness_text(fairness).plain


def test_without_payments_there_are_dashes() -> None:
    market = jsam.Market(sensitivities=np.array([0.2, 0.3]), prior=scipy.stats.uniform(0, 1))
    fairness = Fairness.of(jsam.plan(market, jsam.USBM(loss_weight=5.0), payments=False))
    assert cells("usbm", fairness)[-2:] == ["–", "–"]
    assert "rent" not in fairness_text(fairness).plain


def test_the_table_has_a_row_for_each_mechanism() -> None:
    rows = [
        {"mechanism": name, **Fairness.of(contract_of(10, name)).as_dict()} for name in ("jsam", "jsam-even", "usbm")
    ]
    out = shown(fairness_table(rows))
    assert [line.split()[0] for line in out.splitlines() if line.split()][2:] == ["jsam", "jsam-even", "usbm"]
    assert len(cells("jsam", Fairness.of(contract_of(10)))) == len(HEADER)


def test_prices_of_caps_stand_below_the_plan() -> None:
    market = jsam.Market(sensitivities=(np.arange(10) + 0.5) / 10, prior=scipy.stats.uniform(0, 1))
    mechanism = jsam.EvenJSAM(loss_weight=5.0, min_clients=8, max_epsilon=0.5)
    contract = jsam.plan(market, mechanism)
    out = shown(cap_price_table(contract, list(cap_prices(mechanism, market, contract))))
    rows = [line for line in out.splitlines() if "min_clients" in line or "max_epsilon" in line]
    assert len(rows) == 3
    assert "– (as planned)" in out
