"""Several ids of one owner: the bound that is proved holds, and the stored figures keep to the bar that is stated."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.several_ids import ALONE, BAR, SETTINGS, WAYS, Rule, Way, owner_who_sells, rules
from jsam.mechanism.priors import parse_prior
from tests.docs.blocks import ROOT

STORED = ROOT / "results" / "benchmarks" / "several-ids.json"
SPLIT = [way for way in WAYS if way.share < 1]


def by_lots(setting: str) -> Rule:
    prior, weights = SETTINGS[setting]
    return next(rule for rule in rules(parse_prior(prior), weights) if rule.sizes == "by lots")


@pytest.mark.parametrize("way", SPLIT, ids=lambda way: way.name)
def test_no_split_is_worth_more_than_the_bound(way: Way) -> None:
    rule = by_lots("U(0, 1), η = 5, Q = 1, ζ = 1")
    for seed in range(6):
        owner, _, _ = owner_who_sells(rule, np.random.default_rng(seed))
        worth = owner.utility(rule, way, [owner.price * way.share] * way.ids)
        assert worth <= owner.bound(rule, way) * (1 + 1e-9) + 1e-15


def test_for_one_id_the_bound_is_its_utility_or_more() -> None:
    rule = by_lots("U(0, 1), η = 100, Q = 8, ζ² = 0.4")
    owner, alone, _ = owner_who_sells(rule, np.random.default_rng(3))
    assert alone <= owner.bound(rule, ALONE) * (1 + 1e-9)


def test_in_the_stored_results_splitting_keeps_to_the_bar_where_sizes_are_known_to_jsam_even() -> None:
    rows = [
        row
        for row in json.loads(STORED.read_text(encoding="utf-8"))["rows"]
        if row["rule"] == "jsam-even" and row["sizes"] != "none" and "split" in row["way"]
    ]
    assert len(rows) == 2 * len(SETTINGS) * len(SPLIT)
    for row in rows:
        assert row["best_median"] <= BAR, row
        assert row["pair_median"] is None or row["pair_median"] <= BAR, row
        assert row["bound_median"] is None or row["bound_median"] <= BAR, row
