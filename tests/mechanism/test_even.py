"""Even shares: the best of its range, exactly, and nobody gains by a false report, with equal and with unequal data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats

import jsam
from jsam.errors import InputError, NotSupportedError
from jsam.mechanism._arrays import FloatArray
from jsam.mechanism.families import BBM, FSBM, JSAM, USBM, EvenJSAM
from jsam.mechanism.families.base import RangeMechanism
from jsam.mechanism.solver.counted import TANGENT_STEP
from tests.oracles import best_even, best_receiver

UNIFORM = scipy.stats.uniform(0, 1)
PRIORS = [UNIFORM, scipy.stats.beta(2, 5), scipy.stats.lognorm(0.6, scale=0.3)]
EXACT = 1e-9
# The tangents that stand for the root in the loss miss it by this much of it.
TANGENTS = (np.log(TANGENT_STEP) / 2) ** 2 / 2


def market(rng: np.random.Generator, clients: int, *, equal: bool, prior: object = UNIFORM) -> jsam.Market:
    c = np.clip(prior.rvs(clients, random_state=rng), 1e-6, None)  # type: ignore[attr-defined]
    samples = [40] * clients if equal else rng.integers(3, 60, clients).tolist()
    return jsam.Market(sensitivities=c, prior=prior, samples=samples)  # type: ignore[arg-type]


def weights(rng: np.random.Generator) -> dict[str, float]:
    return {
        "loss_weight": float(10 ** rng.uniform(-1, 2)),
        "noise_weight": float(10 ** rng.uniform(-1, 1.5)),
        "bias_weight": float(10 ** rng.uniform(-1.5, 0.5)),
    }


def shares_of(of: jsam.Market) -> FloatArray:
    return np.full(of.num_clients, 1 / of.num_clients) if of.data_shares is None else of.data_shares


def anything(p: FloatArray) -> bool:
    return True


@pytest.mark.parametrize("equal", [True, False])
def test_even_shares_are_the_best_of_all_subsets(equal: bool) -> None:
    rng = np.random.default_rng(1)
    for _ in range(25):
        some, chosen = market(rng, int(rng.integers(2, 7)), equal=equal), weights(rng)
        contract = jsam.plan(some, EvenJSAM(**chosen), payments=False)
        least = best_even(some.virtual_costs, shares_of(some), contract.weights, anything)
        assert contract.objective == pytest.approx(least, rel=EXACT)


def test_with_a_cap_on_epsilon_equal_data_are_exact_and_unequal_data_within_the_tangents() -> None:
    rng = np.random.default_rng(2)
    for i in range(16):
        some = market(rng, int(rng.integers(2, 6)), equal=i % 2 == 0)
        capped = EvenJSAM(**weights(rng), max_epsilon=float(np.exp(rng.uniform(-2, 2))))
        contract = jsam.plan(some, capped, payments=False)
        least = best_even(some.virtual_costs, shares_of(some), contract.weights, anything)
        allowed = EXACT if i % 2 == 0 else TANGENTS
        assert least * (1 - EXACT) <= contract.objective <= least * (1 + allowed)


def test_the_papers_loss_with_unequal_data_is_the_best_with_one_receiver() -> None:
    rng = np.random.default_rng(3)
    for i in range(16):
        some, chosen = market(rng, int(rng.integers(2, 6)), equal=False), weights(rng)
        cap = float(rng.uniform(shares_of(some).max(), 1)) if i % 2 else None
        contract = jsam.plan(some, JSAM(**chosen, max_selection_prob=cap), payments=False)

        def keeps(p: FloatArray, most: float = 1.0 if cap is None else cap) -> bool:
            return bool(p.max() <= most * (1 + 1e-12))

        least = best_receiver(some.virtual_costs, shares_of(some), contract.weights, keeps)
        assert contract.objective == pytest.approx(least, rel=EXACT)


@pytest.mark.parametrize("equal", [True, False])
def test_caps_and_floors_hold_and_the_best_within_them_is_taken(equal: bool) -> None:
    rng = np.random.default_rng(4)
    for _ in range(12):
        some, chosen = market(rng, 6, equal=equal), weights(rng)
        u = shares_of(some)
        choices: list[dict[str, float]] = [
            {"max_selection_prob": float(rng.uniform(u.max(), 1))},
            {"min_clients": int(rng.integers(2, 7))},
            {"min_selection_prob": float(rng.uniform(u.min() / 2, u.min()))},
        ]
        bounds = choices[rng.integers(3)]
        contract = jsam.plan(some, EvenJSAM(**chosen, **bounds), payments=False)
        p = contract.selection_probs
        assert p.max() <= bounds.get("max_selection_prob", 1.0) * (1 + 1e-12)
        assert contract.num_selected >= bounds.get("min_clients", 1)
        assert p[p > 0].min() >= bounds.get("min_selection_prob", 0.0) * (1 - 1e-12)
        if equal:

            def keeps(p: FloatArray, bounds: dict[str, float] = bounds) -> bool:
                kept = p[p > 0]
                return bool(
                    p.max() <= bounds.get("max_selection_prob", 1.0) * (1 + 1e-12)
                    and len(kept) >= bounds.get("min_clients", 1)
                    and kept.min() >= bounds.get("min_selection_prob", 0.0) * (1 - 1e-12)
                )

            least = best_even(some.virtual_costs, u, contract.weights, keeps)
            assert contract.objective == pytest.approx(least, rel=EXACT)


MECHANISMS: list[Callable[..., RangeMechanism]] = [
    EvenJSAM,
    lambda **chosen: EvenJSAM(**chosen, max_epsilon=1.5),
    lambda **chosen: EvenJSAM(**chosen, min_clients=3),
    JSAM,
    USBM,
    lambda **chosen: FSBM(num_selected=3, **chosen),
]


@pytest.mark.parametrize("make", MECHANISMS)
@pytest.mark.parametrize("prior", PRIORS)
def test_no_report_gains_whatever_clients_hold(make: Callable[..., RangeMechanism], prior: object) -> None:
    """Whole plans for every lie, with payments against the trapezoid of ε over whole plans; nothing is shared."""
    rng = np.random.default_rng(5)
    some = market(rng, 5, equal=False, prior=prior)
    mechanism = make(**weights(rng))
    truth = jsam.plan(some, mechanism)
    assert truth.payments is not None
    for client in range(3):
        c = some.sensitivities[client]
        utility = truth.payments[client] - c * truth.epsilons[client]
        for z in np.append(c * np.exp(rng.uniform(-2, 2, 6)), c * (1 + 1e-6)):
            if z >= prior.support()[1]:  # type: ignore[attr-defined]
                continue
            lie = jsam.plan(some.with_report(client, float(z)), mechanism)
            assert lie.payments is not None
            most = max(truth.payments[client], lie.payments[client], 1e-9 * truth.payments.sum())
            assert lie.payments[client] - c * lie.epsilons[client] - utility <= 1e-6 * most


@pytest.mark.parametrize("make", MECHANISMS)
def test_respond_says_what_a_whole_plan_does(make: Callable[..., RangeMechanism]) -> None:
    rng = np.random.default_rng(6)
    some, mechanism = market(rng, 5, equal=False), make(**weights(rng))
    reports = rng.uniform(0.01, 0.99, 6)
    for client in range(2):
        answers = mechanism.respond(some, client, reports)
        for z, eps, paid in zip(reports, answers.epsilons, answers.payments, strict=True):
            whole = jsam.plan(some.with_report(client, float(z)), mechanism)
            assert whole.payments is not None
            assert eps == pytest.approx(whole.epsilons[client], rel=1e-9, abs=1e-12)
            assert paid == pytest.approx(whole.payments[client], rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("make", [EvenJSAM, lambda **chosen: EvenJSAM(**chosen, max_epsilon=1.5), JSAM])
@pytest.mark.parametrize("ids", [None, ["b", "a", "c", "d", "e"]])
def test_clients_that_tie_on_an_ironed_stretch_are_paid_for_what_they_sell_there(
    make: Callable[..., RangeMechanism], ids: list[str] | None
) -> None:
    """Of two clients with equal data and one virtual cost the same one is kept by plans, replies and payments."""
    prior = scipy.stats.rv_histogram((np.array([0.5, 0.1, 0.4]), np.array([0, 0.3, 0.6, 1.0])), density=False)
    rng = np.random.default_rng(9)
    sold = 0
    for _ in range(4):
        c = prior.rvs(size=5, random_state=rng)
        some = jsam.Market(sensitivities=c, prior=prior, samples=[40, 40, 30, 20, 20], ids=ids)
        (flat,) = some.cost_of(0).flats
        c[:2] = 0.95 * flat.low, flat.low + 0.5 * (flat.high - flat.low)
        some = replace(some, sensitivities=c)
        for client, mechanism in ((0, make(**weights(rng))), (1, make(**weights(rng)))):
            honest = some.with_report(1 - client, c[1]).with_report(client, c[0])
            truth = jsam.plan(honest, mechanism)
            lies = flat.low + np.array([0.1, 0.5, 0.9]) * (flat.high - flat.low)
            answers = mechanism.respond(honest, client, lies)
            assert truth.payments is not None
            for z, eps, paid in zip(lies, answers.epsilons, answers.payments, strict=True):
                lie = jsam.plan(honest.with_report(client, float(z)), mechanism)
                assert lie.payments is not None
                assert eps == pytest.approx(lie.epsilons[client], rel=1e-7, abs=1e-12)
                assert paid == pytest.approx(lie.payments[client], rel=1e-6, abs=1e-12)
                gain = (
                    lie.payments[client]
                    - truth.payments[client]
                    - c[0] * (lie.epsilons[client] - truth.epsilons[client])
                )
                assert gain <= 1e-6 * max(truth.payments[client], lie.payments[client])
                sold += int(lie.epsilons[client] > 0)
    assert sold > 0


def test_unequal_numbers_that_are_equal_change_nothing() -> None:
    c = np.random.default_rng(7).random(20)
    alike = jsam.Market(sensitivities=c, prior=UNIFORM, samples=[600] * 20)
    plain = jsam.Market(sensitivities=c, prior=UNIFORM)
    for mechanism in (EvenJSAM(loss_weight=5.0), JSAM(loss_weight=5.0), USBM(loss_weight=5.0)):
        assert np.array_equal(jsam.plan(alike, mechanism).epsilons, jsam.plan(plain, mechanism).epsilons)


def test_more_data_are_kept_at_higher_prices() -> None:
    """Of two clients with the same price, the one with more data earns at least as much."""
    rng = np.random.default_rng(8)
    c = rng.random(12)
    c[1] = c[0] = 0.4
    samples = rng.integers(50, 150, 12)
    samples[0], samples[1] = 300, 100
    some = jsam.Market(sensitivities=c, prior=UNIFORM, samples=samples.tolist())
    for loss_weight in (0.3, 1.0, 3.0, 10.0):
        paid = jsam.plan(some, EvenJSAM(loss_weight=loss_weight, bias_weight=0.5)).payments
        assert paid is not None
        assert paid[0] >= paid[1] * (1 - 1e-12)


def test_fixed_selections_draw_by_shares_of_the_data() -> None:
    some = jsam.Market(
        sensitivities=np.array([0.1, 0.2, 0.3, 0.4]), prior=UNIFORM, samples=[10, 30, 20, 40], losses=np.arange(4.0)
    )
    assert jsam.plan(some, USBM(loss_weight=1.0)).selection_probs == pytest.approx([0.1, 0.3, 0.2, 0.4])
    assert jsam.plan(some, FSBM(num_selected=2, loss_weight=1.0)).selection_probs == pytest.approx([0.25, 0.75, 0, 0])
    assert jsam.plan(some, BBM(num_selected=2, loss_weight=1.0)).selection_probs == pytest.approx([0, 0, 1 / 3, 2 / 3])


def test_what_cannot_be_is_refused_in_one_line() -> None:
    some = jsam.Market(sensitivities=np.array([0.1, 0.2, 0.3]), prior=UNIFORM, samples=[10, 30, 20])
    with pytest.raises(NotSupportedError, match="no cap on ε for clients with different numbers of samples"):
        jsam.plan(some, JSAM(loss_weight=1.0, max_epsilon=2.0))
    with pytest.raises(InputError, match="no selection of 3 clients that keeps min_clients 4"):
        jsam.plan(replace(some, samples=None), EvenJSAM(loss_weight=1.0, min_clients=4))
