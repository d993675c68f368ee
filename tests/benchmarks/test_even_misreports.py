"""False reports under even shares: both judges see a rule that is not truthful, and the stored figures meet the bar."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np

from benchmarks.even_misreports import KINDS, SIZES, best_gain, judged, setting
from benchmarks.misreports import GAIN_BAR
from tests.docs.blocks import ROOT
from tests.mechanism.broken import Underpays

STORED = ROOT / "results" / "benchmarks" / "even-misreports.json"


def test_each_kind_of_market_has_its_turn_and_its_bounds_are_possible() -> None:
    """Infeasible caps would be refused, so that nothing would be judged."""
    cases = [setting(number, 1) for number in range(len(KINDS))]
    assert len({(each.kind, str(each.prior.dist.name)) for each in cases}) == len(KINDS) == 60
    for case in cases:
        if not case.halves:
            assert case.planned(case.reports).num_selected >= (case.mechanism.min_clients or 1)


def test_no_lie_pays_by_either_judge() -> None:
    for number in (0, 7, 25):
        verdict = judged(setting(number, 1), np.random.default_rng(number))
        assert verdict.lies > 10
        assert verdict.audit <= GAIN_BAR
        assert verdict.whole_plans <= GAIN_BAR


def test_both_judges_see_a_rule_that_keeps_a_tenth_of_the_rent() -> None:
    seen = []
    for number in (0, 1):
        case = setting(number, 1)
        verdict = judged(replace(case, mechanism=Underpays(honest=case.mechanism)), np.random.default_rng(0))  # type: ignore[arg-type]
        seen.append((verdict.audit > GAIN_BAR, verdict.whole_plans > GAIN_BAR))
    assert (True, True) in seen


def test_by_halves_a_lie_is_planned_with_priors_that_are_learned_anew() -> None:
    case = next(
        case for case in (setting(number, 2) for number in range(3, 60)) if case.halves and len(case.reports) < 30
    )
    truth = case.planned(case.reports)
    changed = case.reports.copy()
    changed[0] *= 1.5
    assert np.count_nonzero(case.planned(changed).virtual_costs != truth.virtual_costs) > 1
    gain, lies = best_gain(case, truth, 0, np.random.default_rng(0))
    assert lies > 5
    assert gain <= GAIN_BAR


def test_the_stored_run_keeps_to_the_bar_that_the_page_names() -> None:
    stored = json.loads(STORED.read_text(encoding="utf-8"))
    assert stored["markets"] >= 200
    for judge in ("audit", "whole plans"):
        every, *kinds = stored["results"][judge]
        assert every["numbers"]["markets"] == stored["markets"]
        assert every["numbers"]["clients"] == list(SIZES)
        assert len(kinds) == 20
        assert all(row["numbers"]["largest_gain"] <= GAIN_BAR for row in [every, *kinds])
