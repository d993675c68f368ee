"""Even shares against brute force: its judges agree with slower ones, see a worse plan, and stored figures are met."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest

import jsam
from benchmarks.even_objective import EXACT, GAP, TANGENTS, drawn, judged
from jsam.mechanism.families import EvenJSAM
from jsam.mechanism.solver.payments import Progress
from jsam.mechanism.weights import Weights
from tests.docs.blocks import ROOT
from tests.oracles import best_even, best_even_by_tangents, least_over_simplex
from tests.oracles.simplex import value

STORED = ROOT / "results" / "benchmarks" / "even-objective.json"


@dataclass(frozen=True, kw_only=True, eq=False)
class OneTooMany(EvenJSAM):
    """Even shares that keep one client more than is best."""

    def plan(self, market: jsam.Market, *, payments: bool = True, progress: Progress | None = None) -> jsam.Contract:
        best = super().plan(market, payments=False).num_selected
        more = EvenJSAM(**vars(replace(self.weights, min_clients=min(best + 1, market.num_clients))))
        return more.plan(market, payments=payments)


def test_every_kind_of_market_is_planned_as_well_as_its_range_allows() -> None:
    rng = np.random.default_rng(0)
    results = [judged(drawn(number, 1), rng) for number in range(20)]
    assert len({each.kind for each in results}) == 10
    assert max(each.difference for each in results) <= EXACT
    assert all(each.gap >= -EXACT for each in results if each.gap is not None)


def test_one_client_too_many_is_seen() -> None:
    rng = np.random.default_rng(0)
    cases = [case for case in (drawn(number, 1) for number in range(0, 40, 10)) if case.market.num_clients > 2]
    worse = [replace(case, mechanism=OneTooMany(**vars(case.mechanism.weights))) for case in cases]
    assert max(judged(case, rng).difference for case in worse) > 1e-4


@pytest.mark.parametrize("max_epsilon", [None, 0.5])
def test_the_search_over_the_simplex_is_as_good_as_a_grid(max_epsilon: float | None) -> None:
    rng = np.random.default_rng(2)
    shares = np.linspace(0, 1, 4001)
    for _ in range(4):
        v = rng.uniform(0.1, 2, 2)
        weights = Weights(loss_weight=5.0, noise_weight=2.0, bias_weight=0.3, max_epsilon=max_epsilon)
        grid = min(value(np.array([p, 1 - p]), v, weights) for p in shares)
        assert least_over_simplex(v, weights, np.array([0.5, 0.5]), rng) <= grid * (1 + EXACT)


def test_the_objective_of_the_simplex_is_that_of_even_shares() -> None:
    v, shares = np.array([0.2, 0.5, 0.9]), np.full(3, 1 / 3)
    weights = Weights(loss_weight=5.0, noise_weight=2.0, bias_weight=0.3, max_epsilon=2.0)
    for m in (1, 2, 3):
        p = np.where(np.arange(3) < m, 1 / m, 0.0)
        least = best_even(v, shares, weights, lambda other, p=p: np.array_equal(other, p))  # type: ignore[misc]
        assert value(p, v, weights) == pytest.approx(least, rel=EXACT)


def test_tangents_close_to_each_other_stand_for_the_root() -> None:
    rng = np.random.default_rng(3)
    v, shares = rng.uniform(0.1, 2, 3), np.array([0.2, 0.3, 0.5])
    weights = Weights(loss_weight=5.0, noise_weight=2.0, bias_weight=0.3, max_epsilon=1.0)
    least = best_even(v, shares, weights, lambda p: True)
    assert best_even_by_tangents(v, shares, weights, lambda p: True, 1.0005) == pytest.approx(least, rel=1e-7)
    coarse = best_even_by_tangents(v, shares, weights, lambda p: True, 1.05)
    assert least * (1 - EXACT) <= coarse <= least * (1 + TANGENTS)


def test_the_stored_run_keeps_to_the_bars_that_the_page_names() -> None:
    stored = json.loads(STORED.read_text(encoding="utf-8"))
    every, *kinds, tangents = stored["results"]["differences"]
    assert stored["markets"] == every["numbers"]["markets"] >= 1000
    assert len(kinds) == 10
    assert all(row["numbers"]["largest"] <= EXACT for row in [every, *kinds])
    assert tangents["numbers"]["largest"] <= TANGENTS
    gaps = {row["what"]: row["numbers"] for row in stored["results"]["gaps"]}
    for bound in ("no bound", "cap on ε"):
        assert gaps[f"equal data, {bound}: above the whole simplex"]["mean"] <= GAP
