"""Priors with stretches too narrow to be seen: lying must not pay, and the audit must see where it would."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import scipy.stats

import jsam
from benchmarks.misreports import GAIN_BAR, Found, SpikedMixture, random_case, search
from jsam.errors import InputError
from jsam.mechanism._arrays import FloatArray
from jsam.mechanism.pricing.histogram import histogram_cost
from jsam.mechanism.pricing.virtual_cost import VirtualCost

START, WIDTH, MASS = 0.261, 1e-7, 1e-4


def spike() -> Any:
    masses = np.array([(1 - MASS) * START, MASS, (1 - MASS) * (1 - START - WIDTH)])
    return scipy.stats.rv_histogram((masses, np.array([0, START, START + WIDTH, 1.0])), density=False)


def hidden_spike() -> Any:
    """The same as a mixture that offers functions alone."""
    return SpikedMixture([scipy.stats.uniform(0, 1), scipy.stats.uniform(START, WIDTH)], np.array([1 - MASS, MASS]))


def samples(bins: int) -> Any:
    return scipy.stats.rv_histogram(np.histogram(np.random.default_rng(0).beta(2, 5, 20_000), bins=bins))


PRIORS: dict[str, Any] = {"spike": spike(), "hidden spike": hidden_spike(), "200 bins": samples(200)}


def market(prior: Any) -> jsam.Market:
    return jsam.Market(sensitivities=np.array([0.132, 0.627, 0.0937, 0.534, 0.623]), prior=prior)


@dataclass(frozen=True, kw_only=True, eq=False)
class Unironed(jsam.JSAM):
    """Broken: it takes c + F/f at its word, wherever that falls."""

    def price(self, cost: VirtualCost) -> VirtualCost:
        return replace(cost, pieces=None, flats=())


@pytest.mark.parametrize("name", ["spike", "hidden spike"])
def test_a_report_inside_a_narrow_spike_brings_nothing(name: str) -> None:
    """The market in which client 0 earned half of a payment by reporting the middle of the spike, planned anew."""
    asked, mechanism = market(PRIORS[name]), jsam.JSAM(loss_weight=0.0694)
    truth = jsam.plan(asked, mechanism)
    assert truth.payments is not None
    honest = truth.payments[0] - 0.132 * truth.epsilons[0]
    for lie in (START, START + WIDTH / 2, START + WIDTH, START * (1 + 1e-12), 0.2559, 0.256, 0.26):
        told = jsam.plan(asked.with_report(0, lie), mechanism)
        assert told.payments is not None
        assert told.payments[0] - 0.132 * told.epsilons[0] <= honest + 1e-12
    assert truth.ironed
    assert jsam.audit(asked, mechanism).ok


@pytest.mark.parametrize("name", ["spike", "hidden spike"])
def test_the_audit_finds_a_mechanism_that_does_not_iron_the_spike(name: str) -> None:
    report = jsam.audit(market(PRIORS[name]), Unironed(loss_weight=0.0694))
    assert not report.ok
    assert report.worst_relative_gain > 0.1


@pytest.mark.parametrize("name", PRIORS)
def test_the_virtual_cost_never_falls(name: str) -> None:
    """To the last digit: at random, and in steps of one unit in the last place around everything that is narrow."""
    cost = VirtualCost.of(PRIORS[name])
    rng = np.random.default_rng(1)
    assert cost.pieces is not None
    edges = cost.pieces.edges[rng.integers(len(cost.pieces.edges), size=300)]
    ulps = edges[:, None] + np.spacing(edges)[:, None] * np.arange(-3, 4)
    z = np.concatenate([rng.uniform(0, 1, 20_000), START + WIDTH * rng.uniform(-1, 2, 2000), ulps.ravel()])
    z = np.unique(z[(z >= cost.bottom) & (z <= cost.top)])
    v = cost(z)
    assert np.all(v[1:] >= v[:-1])
    assert np.all(v >= z)


def test_a_histogram_is_ironed_exactly() -> None:
    """Bins over six decades, many of them empty, against an isotonic regression on a fine grid of quantiles."""
    rng = np.random.default_rng(2)
    for _ in range(25):
        n = int(rng.integers(1, 12))
        edges = np.concatenate([[rng.choice([0.0, 0.3])], 1 + np.cumsum(10.0 ** rng.uniform(-6, 0, n))])
        masses = 10.0 ** rng.uniform(-3, 0, n) * (rng.random(n) > 0.25)
        masses[rng.integers(n)] = 1.0
        masses /= masses.sum()
        pieces, _ = histogram_cost(edges, masses)
        q, z, mean = chords(edges, masses)
        found = pieces(z)
        weights = np.diff(q)
        assert float((np.abs(found / mean - 1) * weights).sum()) < 2e-3
    assert pieces.ends[-1] > 0


def chords(edges: FloatArray, masses: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Levels, reports in the middle between them, and the slopes of the chords of H made to rise."""
    levels = np.concatenate([[0.0], np.cumsum(masses)])
    levels /= levels[-1]
    q = np.unique(np.concatenate([np.linspace(levels[i], levels[i + 1], 400) for i in range(len(masses))]))
    z = np.interp(q, levels, edges)
    for i in np.flatnonzero(masses == 0):  # the quantile function jumps there; H counts its lower end
        z[q == levels[i]] = edges[i] if levels[i] > 0 else edges[i + 1]
    some = np.diff(q) > 1e-12
    steps = (np.diff(q * z) / np.where(np.diff(q) > 0, np.diff(q), 1))[some]
    mean = scipy.optimize.isotonic_regression(steps, weights=np.diff(q)[some]).x
    return np.append(0.0, np.cumsum(np.diff(q)[some])), ((z[1:] + z[:-1]) / 2)[some], np.asarray(mean)


def test_no_lie_pays_and_no_payment_is_off_by_more_than_stated() -> None:
    """A seeded sample of the search that `python -m benchmarks.misreports` makes at length."""
    found = Found()
    for number in range(14):
        rng = np.random.default_rng([5, number])
        search(random_case(rng, caps=False), rng, found, integrate=number % 5 == 0)
    assert found.markets > 10
    assert found.lies_judged > 40
    assert found.over_bar == 0, found.largest_gain_at
    assert found.over_bound == 0, found.largest_bound_ratio_at


def test_the_search_finds_a_mechanism_that_does_not_iron() -> None:
    """The same search over spikes, with c + F/f taken as it is: some lie pays, by far more than the bar."""
    found = Found()
    for number in range(6):
        rng = np.random.default_rng([6, number])
        case = random_case(rng, caps=False)
        if case.kind == "spiky" and isinstance(case.mechanism, jsam.JSAM):
            settings = {"loss_weight": case.mechanism.loss_weight, "noise_weight": case.mechanism.noise_weight}
            search(replace(case, mechanism=Unironed(**settings)), rng, found, integrate=False)
    case = random_case(np.random.default_rng(0), caps=False)
    asked = replace(case, market=market(spike()), places=[np.array([START, START + WIDTH / 2])] * 5)
    search(replace(asked, mechanism=Unironed(loss_weight=0.0694)), np.random.default_rng(3), found, integrate=False)
    assert found.largest_gain > 1e3 * GAIN_BAR


@pytest.mark.parametrize("c", [[0.1, 0.2, 1, 1], [1, 0.5, 1], [0.1, 1, 1, 1]])
def test_clients_of_infinite_virtual_cost_raise_no_false_alarm(c: list[float]) -> None:
    """At the top of beta(2, 5) v is infinite; what one such client is asked leaves the others' costs infinite."""
    asked = jsam.Market(sensitivities=np.array(c), prior=scipy.stats.beta(2, 5))
    mechanism = jsam.JSAM(loss_weight=3.0)
    with np.errstate(all="raise"):
        try:
            report = jsam.audit(asked, mechanism)
        except InputError:
            pytest.fail("nothing is wrong with this market")
    assert report.ok
    answer = mechanism.respond(asked, c.index(1), np.array([0.3, 0.99, 1.0]), payments=False)
    assert np.all(np.isfinite(answer.epsilons))
    assert math.isinf(asked.virtual_costs[c.index(1)])
