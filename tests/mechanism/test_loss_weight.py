"""A budget becomes η from the prior and N alone, keeps to its promise, and is remembered."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from numpy.typing import NDArray

import jsam
from jsam.errors import InputError, UnequalDataError
from jsam.mechanism.budget.budget_cache import BudgetCache
from jsam.mechanism.budget.loss_weight import loss_weight_fits_budget, loss_weight_for_budget
from jsam.mechanism.families import EvenJSAM, RangeMechanism
from jsam.mechanism.rules import Rules

NOTHING_KEPT = BudgetCache(None)
UNIFORM = scipy.stats.uniform(0, 1)
MECHANISMS: list[RangeMechanism] = [
    jsam.JSAM(loss_weight=1.0),
    jsam.JSAM(loss_weight=1.0, max_selection_prob=0.2),
    jsam.JSAM(loss_weight=1.0, max_epsilon=2.0),
    jsam.JSAMCI(loss_weight=1.0),
    jsam.USBM(loss_weight=1.0),
    jsam.FSBM(loss_weight=1.0, num_selected=7),
    jsam.BBM(loss_weight=1.0, num_selected=7),
]


def fresh_costs(mechanism: RangeMechanism, *, markets: int, clients: int, seed: int) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    losses = np.arange(clients, dtype=np.float64)
    costs = [
        jsam.plan(
            jsam.Market(sensitivities=rng.random(clients), prior=UNIFORM, losses=losses), mechanism, payments=False
        ).expected_cost
        for _ in range(markets)
    ]
    return np.array(costs)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: f"{m.name}-{m.max_selection_prob}-{m.max_epsilon}")
def test_the_expected_cost_is_the_budget_on_markets_that_were_not_drawn_for_it(mechanism: RangeMechanism) -> None:
    losses = np.arange(12, dtype=np.float64)
    plan = loss_weight_for_budget(
        mechanism, 3.0, prior=UNIFORM, num_clients=12, losses=losses, draws=4000, cache=NOTHING_KEPT
    )
    assert plan.expected_cost <= 3.0
    assert plan.expected_cost > 3.0 * (1 - 1e-2)
    costs = fresh_costs(mechanism.with_loss_weight(plan.loss_weight), markets=600, clients=12, seed=5)
    error = np.hypot(costs.std(ddof=1) / np.sqrt(len(costs)), plan.expected_cost_error)
    assert abs(costs.mean() - 3.0) < 4 * error


def test_a_slightly_larger_loss_weight_would_overspend() -> None:
    mechanism = jsam.USBM(loss_weight=1.0)
    tight = loss_weight_for_budget(mechanism, 3.0, prior=UNIFORM, num_clients=10, draws=500, cache=NOTHING_KEPT)
    more = loss_weight_for_budget(mechanism, 3.0 * 1.001, prior=UNIFORM, num_clients=10, draws=500, cache=NOTHING_KEPT)
    # USBM's cost goes with the root of η, on the very same draws.
    assert more.loss_weight / tight.loss_weight == pytest.approx(1.001**2, rel=1e-5)


def test_with_a_probability_the_payments_stay_within_the_budget_that_often() -> None:
    mechanism = jsam.JSAM(loss_weight=1.0)
    plan = loss_weight_for_budget(
        mechanism, 4.0, prior=UNIFORM, num_clients=10, probability=0.9, draws=400, cache=NOTHING_KEPT
    )
    expected = loss_weight_for_budget(mechanism, 4.0, prior=UNIFORM, num_clients=10, draws=400, cache=NOTHING_KEPT)
    assert plan.loss_weight < expected.loss_weight
    rng = np.random.default_rng(11)
    chosen = mechanism.with_loss_weight(plan.loss_weight)
    totals = [
        jsam.plan(jsam.Market(sensitivities=rng.random(10), prior=UNIFORM), chosen).total_payment for _ in range(600)
    ]
    share = float(np.mean(np.array(totals) <= 4.0))
    # 0.9 up to the sampling error of both samples, and not wastefully more.
    assert 0.9 - 3 * np.sqrt(0.09 * (1 / 400 + 1 / 600)) < share < 0.97


def test_quantiles_rise_and_surround_the_expected_cost() -> None:
    plan = loss_weight_for_budget(
        jsam.JSAM(loss_weight=1.0), 4.0, prior=scipy.stats.beta(2, 5), num_clients=15, draws=200, cache=NOTHING_KEPT
    )
    amounts = list(plan.payment_quantiles.values())
    assert amounts == sorted(amounts)
    assert amounts[0] < plan.expected_cost < amounts[-1]


def test_one_prior_a_client_is_drawn_from_client_by_client() -> None:
    cheap, dear = scipy.stats.uniform(0.1, 0.1), scipy.stats.uniform(1.0, 1.0)
    plan = loss_weight_for_budget(
        jsam.USBM(loss_weight=1.0), 3.0, prior=[cheap] * 3 + [dear] * 3, num_clients=6, draws=300, cache=NOTHING_KEPT
    )
    both = [
        loss_weight_for_budget(
            jsam.USBM(loss_weight=1.0), 3.0, prior=prior, num_clients=6, draws=300, cache=NOTHING_KEPT
        ).loss_weight
        for prior in (cheap, dear)
    ]
    assert both[1] < plan.loss_weight < both[0]


@pytest.mark.parametrize("mechanism", MECHANISMS[:3], ids=["free", "p-capped", "ε-capped"])
def test_the_cost_of_a_market_never_falls_as_the_loss_weight_rises(mechanism: RangeMechanism) -> None:
    rng = np.random.default_rng(2)
    for _ in range(20):
        market = jsam.Market(sensitivities=rng.random(9), prior=UNIFORM)
        costs = [
            jsam.plan(market, mechanism.with_loss_weight(eta), payments=False).expected_cost
            for eta in np.geomspace(0.01, 1000, 60)
        ]
        assert np.all(np.diff(costs) >= -1e-12 * np.array(costs[1:]))


def test_equal_inputs_give_equal_weights_and_the_second_answer_comes_from_the_cache(tmp_path: Path) -> None:
    cache = BudgetCache(tmp_path / "budgets")
    mechanism = jsam.JSAM(loss_weight=1.0)

    def ask(**changes: object) -> float:
        options: dict[str, object] = {"prior": UNIFORM, "num_clients": 8, "draws": 200, "cache": cache, **changes}
        return loss_weight_for_budget(mechanism, 2.0, **options).loss_weight  # type: ignore[arg-type]

    first = ask()
    files = list((tmp_path / "budgets").iterdir())
    assert len(files) == 1
    # A stored answer is used: change it and see it come back.
    stored = json.loads(files[0].read_text())
    files[0].write_text(json.dumps({**stored, "loss_weight": 123.0}))
    assert ask() == 123.0
    # What cannot be read is computed again.
    files[0].write_text("{ half")
    assert ask() == first
    for damage in ('{"payment_quantiles": {}}', json.dumps({**stored, "loss_weight": "x"}), "[1]"):
        files[0].write_text(damage)
        assert ask() == first
    # Anything that matters makes another entry.
    assert ask(num_clients=9) != first
    assert ask(seed=1) != first
    assert ask(prior=scipy.stats.uniform(0, 1.5)) != first


def test_an_unwritable_cache_is_no_error(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    plan = loss_weight_for_budget(
        jsam.USBM(loss_weight=1.0), 2.0, prior=UNIFORM, num_clients=5, draws=50, cache=BudgetCache(blocked / "budgets")
    )
    assert plan.loss_weight > 0


def test_progress_runs_from_nothing_to_all() -> None:
    seen: list[float] = []
    loss_weight_for_budget(
        jsam.JSAM(loss_weight=1.0), 2.0, prior=UNIFORM, num_clients=8, draws=100, cache=NOTHING_KEPT,
        progress=seen.append,
    )  # fmt: skip
    assert seen == sorted(seen)
    assert 0 < seen[0] < 0.5
    assert seen[-1] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"budget": 0.0}, "budget is 0.0"),
        ({"budget": float("nan")}, "budget is nan"),
        ({"probability": 1.0}, "probability is 1.0"),
        ({"num_clients": 0}, "num_clients is 0"),
        ({"draws": 1}, "draws is 1"),
    ],
)
def test_bad_budgets_are_named(changes: dict[str, float], message: str) -> None:
    options: dict[str, object] = {
        "budget": 1.0, "prior": UNIFORM, "num_clients": 4, "draws": 50, "cache": NOTHING_KEPT, **changes
    }  # fmt: skip
    budget = options.pop("budget")
    with pytest.raises(InputError, match=message):
        loss_weight_for_budget(jsam.JSAM(loss_weight=1.0), budget, **options)  # type: ignore[arg-type]


def test_a_budget_that_capped_budgets_cannot_use_up_is_refused() -> None:
    capped = replace(MECHANISMS[4], max_epsilon=0.1)
    with pytest.raises(InputError, match="never spent"):
        loss_weight_for_budget(capped, 50.0, prior=UNIFORM, num_clients=5, draws=50, cache=NOTHING_KEPT)


@pytest.mark.parametrize("draws", [2, 300])
@pytest.mark.parametrize("mechanism", MECHANISMS[:5], ids=lambda m: f"{m.name}-{m.max_selection_prob}-{m.max_epsilon}")
def test_the_loss_weight_of_a_budget_is_recognised_and_its_neighbours_are_not(
    mechanism: RangeMechanism, draws: int
) -> None:
    """Also where two draws alone make the cost jump over the budget."""
    for budget in (0.5, 3.7):
        found = loss_weight_for_budget(
            mechanism, budget, prior=UNIFORM, num_clients=12, draws=draws, cache=NOTHING_KEPT
        ).loss_weight
        verdicts = [
            loss_weight_fits_budget(
                mechanism, budget, found * factor, prior=UNIFORM, num_clients=12, draws=draws, cache=NOTHING_KEPT
            )
            for factor in (0.999, 1.0, 1.001)
        ]
        assert verdicts == [False, True, False]


def test_a_loss_weight_at_which_the_cost_jumps_over_the_budget_is_recognised() -> None:
    """With two draws there are budgets that no η meets."""
    options: dict[str, Any] = {"prior": UNIFORM, "num_clients": 12, "draws": 2, "cache": NOTHING_KEPT}
    rule, jumps = MECHANISMS[2], 0
    for budget in np.linspace(0.5, 9.0, 60):
        plan = loss_weight_for_budget(rule, float(budget), **options)
        jumps += plan.expected_cost < budget * (1 - 1e-5)
        assert loss_weight_fits_budget(rule, float(budget), plan.loss_weight, **options)
    assert jumps > 0


def test_with_a_probability_the_search_is_repeated() -> None:
    options: dict[str, Any] = {"prior": UNIFORM, "num_clients": 3, "probability": 0.9, "draws": 50}
    rule = MECHANISMS[4]
    found = loss_weight_for_budget(rule, 2.0, **options, cache=NOTHING_KEPT).loss_weight
    for factor, verdict in ((1.0, True), (1.02, False), (1 / 1.02, False)):
        assert loss_weight_fits_budget(rule, 2.0, found * factor, **options, cache=NOTHING_KEPT) is verdict


def test_a_loss_weight_that_is_remembered_needs_no_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"prior": UNIFORM, "num_clients": 3, "draws": 50, "cache": BudgetCache(tmp_path)}
    found = loss_weight_for_budget(MECHANISMS[4], 2.0, **options).loss_weight
    monkeypatch.setattr("jsam.mechanism.budget.loss_weight.CostSample", lambda *_: pytest.fail("computed"))
    for factor in (1.0, 1.001):
        assert loss_weight_fits_budget(MECHANISMS[4], 2.0, found * factor, **options) is (factor == 1.0)


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_what_is_no_loss_weight_fits_no_budget(weight: float) -> None:
    assert not loss_weight_fits_budget(
        MECHANISMS[4], 2.0, weight, prior=UNIFORM, num_clients=3, draws=5, cache=NOTHING_KEPT
    )


def test_with_a_probability_unequal_data_are_counted_too() -> None:
    """Each drawn market is a whole plan there, so few are drawn, and the true share is above what was asked for."""
    samples, mechanism = [30, 500, 90, 200], jsam.EvenJSAM(loss_weight=1.0, bias_weight=0.4)
    plan = loss_weight_for_budget(
        mechanism, 2.0, prior=UNIFORM, num_clients=4, samples=samples, probability=0.8, cache=NOTHING_KEPT
    )
    assert plan.probability_bound >= 0.8
    rng, chosen = np.random.default_rng(12), mechanism.with_loss_weight(plan.loss_weight)
    markets = [jsam.Market(sensitivities=rng.random(4), prior=UNIFORM, samples=samples) for _ in range(400)]
    share = float(np.mean([float(jsam.plan(market, chosen).total_payment or 0) <= 2.0 for market in markets]))
    assert 0.8 - 3 * np.sqrt(0.16 / 400) < share < 0.93
    # At an η that is larger by three tenths, fewer of the same markets would keep to it.
    dearer = mechanism.with_loss_weight(plan.loss_weight * 1.3)
    assert np.mean([float(jsam.plan(market, dearer).total_payment or 0) <= 2.0 for market in markets]) < share - 0.02


def test_a_probability_under_a_cap_on_epsilon_is_refused_for_unequal_data() -> None:
    with pytest.raises(UnequalDataError, match="under a cap on ε"):
        loss_weight_for_budget(
            jsam.EvenJSAM(loss_weight=1.0, max_epsilon=2.0),
            2.0,
            prior=UNIFORM,
            num_clients=3,
            samples=[1, 2, 3],
            probability=0.9,
            cache=NOTHING_KEPT,
        )


def test_the_order_of_clients_alike_in_all_but_their_sizes_moves_nothing() -> None:
    plans = [
        loss_weight_for_budget(
            jsam.EvenJSAM(loss_weight=1.0), 2.0, prior=UNIFORM, num_clients=3, samples=samples, cache=NOTHING_KEPT
        )
        for samples in ([30, 500, 90], [500, 90, 30])
    ]
    assert plans[0] == plans[1]


def test_a_budget_is_known_again_however_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules in words, as commands have them, and objects of scipy share what was found."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    rules = Rules(mechanism="jsam-even", prior="beta:2,5", budget=10, max_epsilon=5)
    first = rules.budget_plan(8)
    kept = list(tmp_path.rglob("*.json"))
    assert len(kept) == 1
    for prior in (scipy.stats.beta(2, 5), scipy.stats.beta(a=2.0, b=5), scipy.stats.beta(2, 5, 0, 1)):
        mechanism = EvenJSAM(loss_weight=3.0, max_epsilon=5)
        assert loss_weight_for_budget(mechanism, 10, prior=prior, num_clients=8) == first
    assert list(tmp_path.rglob("*.json")) == kept
