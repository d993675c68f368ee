"""The audit passes what is honest and catches, by the right check and the right client, what is not."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
import scipy.stats

import jsam
from jsam.errors import InputError
from jsam.mechanism.audit import AuditReport, audit
from jsam.mechanism.audit.choice import audited_clients
from jsam.mechanism.families import Mechanism
from tests.mechanism import broken

REPORTS = [0.15, 0.3, 0.42, 0.55, 0.9]
NAMES = ["ann", "bob", "cid", "dot", "eve"]
HONEST = jsam.JSAM(loss_weight=3.0)


def market(reports: list[float] | None = None, prior: Any = None) -> jsam.Market:
    reports = REPORTS if reports is None else reports
    prior = scipy.stats.uniform(0, 1) if prior is None else prior
    losses = np.arange(len(reports), dtype=np.float64)
    return jsam.Market(sensitivities=np.array(reports), prior=prior, ids=NAMES[: len(reports)], losses=losses)


def bimodal() -> Any:
    """Three bins, the middle one nearly empty: F/f falls at the end of each, so it must be ironed."""
    return scipy.stats.rv_histogram((np.array([4.0, 0.2, 3.0]), np.array([0.1, 0.4, 0.7, 1.0])), density=False)


def learned() -> jsam.EmpiricalPrior:
    rng = np.random.default_rng(5)
    past = np.concatenate([rng.lognormal(-1.5, 0.2, 13), rng.lognormal(0.0, 0.2, 3)])
    return jsam.EmpiricalPrior(reports=past)


def mixed() -> list[Any]:
    families = scipy.stats
    return [families.uniform(0, 1), families.beta(2, 5), families.lognorm(s=0.5, scale=0.3), bimodal(), learned()]


PRIORS = {
    "uniform": lambda: scipy.stats.uniform(0, 1),
    "beta": lambda: scipy.stats.beta(2, 5),
    "lognormal": lambda: scipy.stats.lognorm(s=0.5, scale=0.3),
    "bimodal, ironed": bimodal,
    "learned, ironed": learned,
    "one each": mixed,
}
MECHANISMS: dict[str, Mechanism] = {
    "jsam": HONEST,
    "jsam, p capped": jsam.JSAM(loss_weight=3.0, max_selection_prob=0.45),
    "jsam, ε capped": jsam.JSAM(loss_weight=3.0, max_epsilon=1.5),
    "usbm": jsam.USBM(loss_weight=3.0),
    "usbm, ε capped": jsam.USBM(loss_weight=3.0, max_epsilon=1.5),
    "usbm, compensated": jsam.USBM(loss_weight=3.0, selection_probs=[0.1, 0.1, 0.2, 0.3, 0.3]),
    "fsbm": jsam.FSBM(loss_weight=3.0, num_selected=3),
    "bbm": jsam.BBM(loss_weight=3.0, num_selected=3),
}
# The plain ones are quick enough on every prior; the rest is tried on two.
PLAIN = {"jsam", "usbm", "fsbm", "bbm"}
PAIRS = [(m, p) for m in MECHANISMS for p in PRIORS if m in PLAIN or p in ("uniform", "beta")]


def caught(mechanism: Mechanism, **options: Any) -> dict[str, str]:
    """Violated checks with their first messages."""
    report = audit(market(), mechanism, **{"grid": 16, **options})
    return {check.name: check.violations[0].message for check in report.checks if check.violations}


@pytest.mark.parametrize(("mechanism", "prior"), PAIRS)
def test_honest_mechanisms_pass(mechanism: str, prior: str) -> None:
    clients = None if prior == "uniform" else [3] if "capped" in mechanism else [0, 3]
    report = audit(market(prior=PRIORS[prior]()), MECHANISMS[mechanism], grid=12, clients=clients)
    assert report.ok, report.violations
    assert report.claims_truthful
    assert report.lowest_utility >= 0
    assert [check.status for check in report.checks if check.name == "payments"] == ["passed"]


def test_ironed_priors_of_these_tests_are_irregular() -> None:
    assert market(prior=bimodal()).ironed
    assert market(prior=learned()).ironed


def test_ties_pass() -> None:
    """Equal reports are told apart by a rule that looks at the ids alone, by `plan` and `respond` alike."""
    for mechanism in (HONEST, jsam.FSBM(loss_weight=3.0, num_selected=2)):
        report = audit(market([0.3, 0.3, 0.3, 0.6, 0.6]), mechanism, grid=16)
        assert report.ok, report.violations


def test_one_client_alone_passes() -> None:
    assert audit(market([0.4]), HONEST, grid=16).ok


def test_a_kept_client_of_no_density_above_is_audited_up_to_the_end_of_its_support() -> None:
    """USBM under beta(2, 5): nobody is ever dropped and v grows without bound towards 1."""
    report = audit(market(prior=scipy.stats.beta(2, 5)), jsam.USBM(loss_weight=3.0), grid=16)
    assert report.ok, report.violations


def test_a_never_dropped_client_with_an_open_top_is_audited_into_the_tail() -> None:
    """Exponential tails overflow v; Pareto tails do not, and their area needs many decades."""
    for prior in (scipy.stats.expon(), scipy.stats.pareto(2.5, loc=-0.9)):
        report = audit(market(prior=prior), jsam.USBM(loss_weight=3.0), grid=16, clients=[0, 4])
        assert report.ok, report.violations


def test_complete_information_is_reported_but_not_condemned() -> None:
    lenient = audit(market(), jsam.JSAMCI(loss_weight=3.0), grid=16)
    assert lenient.ok
    assert not lenient.claims_truthful
    assert lenient.check("truthfulness").status == "not claimed"
    assert lenient.check("payments").status == "not claimed"
    assert lenient.worst_relative_gain > 0.1
    assert lenient.check("objective").status == "passed"
    strict = audit(market(), jsam.JSAMCI(loss_weight=3.0), grid=16, strict=True)
    assert [violation.check for violation in strict.violations] == ["truthfulness"]
    assert strict.worst_client == lenient.worst_client


def test_pay_as_bid_is_caught() -> None:
    found = caught(broken.PayAsBid(honest=HONEST))
    assert found.keys() == {"truthfulness", "payments"}
    assert re.fullmatch(
        r"client '\w+' gains [\d.]+ by reporting [\d.]+ instead of its true [\d.]+: 0\.\d+ of the larger payment,"
        r" above 1e-06; \d of 5 audited clients gain by lying",
        found["truthfulness"],
    )


def test_pay_as_bid_names_the_client_who_gains_most() -> None:
    """Checked by hand: a client paid z ε(z) gains (z − c) ε(z), and the worst one has the most to gain relatively."""
    spoiled = broken.PayAsBid(honest=HONEST)
    report = audit(market(), spoiled, grid=32)
    best = {}
    for k, name in enumerate(NAMES):
        z = np.linspace(1e-3, 1, 4000)
        told = HONEST.respond(market(), k, z)
        gain = (z - REPORTS[k]) * told.epsilons
        truthful = REPORTS[k] * HONEST.respond(market(), k, np.array([REPORTS[k]])).epsilons[0]
        paid = z * told.epsilons
        best[name] = float((gain / np.maximum(np.maximum(paid, truthful), 1e-12)).max())
    assert report.worst_client == max(best, key=lambda name: best[name])
    assert report.worst_relative_gain == pytest.approx(max(best.values()), rel=1e-3)


def test_a_budget_fitted_to_the_reports_is_caught() -> None:
    found = caught(broken.BudgetFittedToReports(budget=1.0), clients=[1], grid=8)
    assert "truthfulness" in found
    assert "payments" in found


def test_with_a_budget_fitted_to_the_reports_epsilon_rises() -> None:
    """So no payments at all could make it truthful: a client sells more after asking for a higher price."""
    reports = np.random.default_rng(1).uniform(0, 1, 6)
    rising = jsam.Market(sensitivities=reports, prior=scipy.stats.uniform(0, 1))
    check = audit(rising, broken.BudgetFittedToReports(budget=0.3), grid=16, clients=[1]).check("monotonicity")
    assert check.status == "violated"
    assert "client '1' would sell" in check.message


@pytest.mark.parametrize(
    ("mechanism", "checks"),
    [
        (broken.Underpays, {"truthfulness", "payments"}),
        (broken.PaysUnderCost, {"truthfulness", "rationality", "payments"}),
        (broken.BuysMoreFromTheDearer, {"monotonicity", "payments", "objective", "truthfulness"}),
        (broken.NotANumber, {"feasibility"}),
        (broken.AlmostBest, {"objective"}),
        (broken.PaysTheDropped, {"feasibility", "payments"}),
        (broken.ForgetsSomebody, {"feasibility"}),
        (broken.IgnoresTheCaps, {"feasibility"}),
        (broken.PricesWithoutRent, {"accounts"}),
        (broken.StatesAWrongObjective, {"accounts"}),
        (broken.HidesItsLies, {"consistency", "payments"}),
    ],
)
def test_broken_promises_are_caught_by_the_right_check(mechanism: Any, checks: set[str]) -> None:
    found = caught(mechanism(honest=jsam.JSAM(loss_weight=1.0)), clients=[0, 3, 4], grid=6)
    assert checks <= found.keys(), found


def test_the_search_finds_what_the_solver_finds_and_nothing_better() -> None:
    """With and without a cap on p, whose optimum may lie between corners; else the objective check means little."""
    rng = np.random.default_rng(8)
    for _ in range(3):
        reports = rng.uniform(0.02, 1.0, 5).tolist()
        for cap in (None, 0.5):
            mechanism = jsam.JSAM(loss_weight=float(10 ** rng.uniform(-1, 2)), max_selection_prob=cap)
            check = audit(market(reports), mechanism, grid=4, clients=[0]).check("objective")
            assert check.status == "passed", check.message
            assert check.value is not None
            assert abs(check.value) < 1e-9


def test_messages_are_single_sentences_that_name_client_and_tolerance() -> None:
    honest = jsam.JSAM(loss_weight=1.0)
    for kind in (broken.PayAsBid, broken.PaysUnderCost, broken.BuysMoreFromTheDearer, broken.HidesItsLies):
        report = audit(market(), kind(honest=honest), grid=4, clients=[3])
        for violation in report.violations:
            assert "\n" not in violation.message
            assert not violation.message.endswith(".")
            assert violation.client is None or f"'{violation.client}'" in violation.message
            assert f"{violation.tolerance:g}" in violation.message


def test_report_is_plain_data() -> None:
    report: AuditReport = audit(market(), broken.NotANumber(honest=HONEST), grid=8, clients=[0])
    data = json.loads(json.dumps(report.as_dict(), allow_nan=False))
    assert data["ok"] is False
    assert data["worst_client"] == "ann"
    assert {check["name"] for check in data["checks"]} == {
        "truthfulness",
        "rationality",
        "monotonicity",
        "payments",
        "feasibility",
        "accounts",
        "objective",
        "consistency",
        "budget",
    }
    assert [violation["check"] for violation in data["violations"]] == ["feasibility", "feasibility"]


def test_large_markets_are_sampled_where_trouble_is_likeliest() -> None:
    rng = np.random.default_rng(2)
    c = rng.uniform(0, 1, 300)
    big = jsam.Market(sensitivities=c, prior=scipy.stats.uniform(0, 1))
    seen: list[int] = []
    report = audit(big, jsam.JSAM(loss_weight=2.0), grid=8, progress=seen.append)
    assert report.ok, report.violations
    assert report.num_clients == 300
    assert report.num_audited == sum(seen) == 32
    contract = jsam.plan(big, jsam.JSAM(loss_weight=2.0))
    assert contract.payments is not None
    chosen = audited_clients(big, contract, None, rng)
    assert {int(c.argmin()), int(np.argmax(contract.payments))} <= set(chosen)
    kept, dropped = c[contract.epsilons > 0], c[contract.epsilons == 0]
    assert {float(kept.max()), float(dropped.min())} <= set(c[chosen].tolist())
    named = audit(big, jsam.JSAM(loss_weight=2.0), grid=8, clients=[7])
    assert (named.num_audited, named.worst_client) == (1, "7")


def test_the_same_seed_gives_the_same_report() -> None:
    assert audit(market(), HONEST, grid=8, seed=3).as_dict() == audit(market(), HONEST, grid=8, seed=3).as_dict()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clients": []}, "clients is empty"),
        ({"clients": [5]}, "clients holds 5; positions 0 to 4 are possible"),
        ({"grid": 1}, "grid is 1"),
    ],
)
def test_bad_requests_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        audit(market(), HONEST, **options)
