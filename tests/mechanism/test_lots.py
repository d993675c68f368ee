"""Data and prices by lots of records: the best of its range, truthful, and splitting one's records does not pay."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats

import jsam
from jsam.errors import InputError
from jsam.mechanism._arrays import FloatArray, IntArray
from jsam.mechanism.bound import loss_bound
from jsam.mechanism.budget.budget_cache import BudgetCache
from jsam.mechanism.budget.loss_weight import BudgetPlan, loss_weight_for_budget
from jsam.mechanism.fairness import cap_prices
from jsam.mechanism.families import EvenJSAM
from jsam.mechanism.lots import ScaledPrior, priors_by_lots, scaled
from jsam.mechanism.rules import Rules
from jsam.mechanism.solver.counted import Sizes, even_range
from jsam.mechanism.weights import Weights
from tests.oracles import best_even

UNIFORM = scipy.stats.uniform(0, 1)
PRIORS = [UNIFORM, scipy.stats.beta(2, 5), scipy.stats.lognorm(0.6, scale=0.3)]
LOT = 60
EXACT = 1e-9
TANGENTS = 3e-4  # by which the tangents of a capped loss may miss its root


def market(prices: FloatArray, samples: list[int], prior: object = UNIFORM) -> jsam.Market:
    """The market of clients that ask these prices for an ε of one lot."""
    lots = np.array(samples) / LOT
    priors = priors_by_lots(prior, samples, LOT)  # type: ignore[arg-type]
    return jsam.Market(sensitivities=prices * lots, prior=priors, samples=samples)


def random_market(rng: np.random.Generator, clients: int, prior: object = UNIFORM) -> jsam.Market:
    prices = np.clip(prior.rvs(clients, random_state=rng), 1e-6, None)  # type: ignore[attr-defined]
    return market(prices, [LOT * int(m) for m in rng.integers(1, 4, clients)], prior)


def weights(rng: np.random.Generator) -> dict[str, float]:
    return {
        "loss_weight": float(10 ** rng.uniform(0, 2)),
        "noise_weight": float(10 ** rng.uniform(-1, 1)),
        "bias_weight": float(10 ** rng.uniform(-1, 0.3)),
    }


@pytest.mark.parametrize(("capped", "exact"), [(False, EXACT), (True, TANGENTS)])
def test_a_client_counts_as_the_clients_of_one_lot_that_it_would_make_and_all_subsets_are_no_better(
    capped: bool, exact: float
) -> None:
    """The slow twin knows no sizes: it draws single lots, and keeps all of a client's or none."""
    rng = np.random.default_rng(1)
    at_cap = 0
    for _ in range(12):
        some, chosen = random_market(rng, 4), weights(rng)
        if capped:
            chosen["max_epsilon"] = float(np.exp(rng.uniform(-1, 2)))
        contract = jsam.plan(some, EvenJSAM(**chosen, lot=LOT), payments=False)
        assert some.samples is not None
        at_cap += int((contract.epsilons == chosen.get("max_epsilon")).sum())
        lots = np.array(some.samples) // LOT
        owner = np.repeat(np.arange(4), lots)
        v = np.repeat(some.virtual_costs / lots, lots)
        p, eps = (contract.selection_probs / lots)[owner], contract.epsilons[owner]
        mine = EvenJSAM(**chosen).weights
        loss = loss_bound(
            p, eps, noise_weight=mine.noise_weight, bias_weight=mine.bias_weight, bias_rule=EvenJSAM.bias_rule
        )
        value = mine.loss_weight * loss + contract.expected_cost

        def together(p: FloatArray, owner: IntArray = owner) -> bool:
            return all(np.ptp(p[owner == k]) == 0 for k in range(4))

        shares = np.full(len(v), 1 / len(v))
        assert value == pytest.approx(best_even(v, shares, mine, together), rel=exact)
    assert (at_cap > 0) == capped


def test_equal_clients_of_one_lot_are_planned_as_without_lots() -> None:
    rng = np.random.default_rng(2)
    c = rng.random(20)
    plain = jsam.plan(jsam.Market(sensitivities=c, prior=UNIFORM), EvenJSAM(loss_weight=20.0))
    by_lots = jsam.plan(market(c, [LOT] * 20), EvenJSAM(loss_weight=20.0, lot=LOT))
    assert plain.payments is not None
    assert by_lots.payments == pytest.approx(plain.payments, rel=1e-9, abs=1e-15)
    assert by_lots.objective == pytest.approx(plain.objective, rel=1e-12)
    assert by_lots.weights == plain.weights


def test_the_optimum_is_the_same_for_clients_split_into_lots_of_which_all_or_none_are_kept() -> None:
    """Splitting everybody can only widen the choice; at most one owner is then kept in part."""
    rng = np.random.default_rng(3)
    prices, m = rng.random(12), rng.integers(1, 4, 12)
    mechanism = EvenJSAM(loss_weight=30.0, lot=LOT)
    whole = jsam.plan(market(prices, (LOT * m).tolist()), mechanism)
    split = jsam.plan(market(np.repeat(prices, m), [LOT] * int(m.sum())), mechanism)
    owner = np.repeat(np.arange(12), m)
    kept = np.bincount(owner, split.epsilons > 0)
    assert np.sum((kept > 0) & (kept < m)) <= 1
    # ε falls like the cube root of the price of a lot, whoever holds it.
    for contract, price in ((whole, prices), (split, np.repeat(prices, m))):
        sold = contract.epsilons > 0
        scale = contract.epsilons[sold] * np.cbrt(price[sold])
        assert np.ptp(scale) <= 1e-9 * scale.max()


def test_splitting_ones_records_pays_at_most_some_percent() -> None:
    """Where sizes are not known, the same owners gain more than their utility again. Reports are an id's true cost."""
    gains: dict[bool, list[float]] = {True: [], False: []}
    for seed in range(12):
        rng = np.random.default_rng(seed)
        others, price = rng.random(60), rng.uniform(0.02, 0.12)
        for by_lots, kept in gains.items():
            utility = []
            for ids in (1, 2):
                prices, samples = np.append([price] * ids, others), [LOT // ids] * ids + [LOT] * 60
                if by_lots:
                    contract = jsam.plan(market(prices, samples), EvenJSAM(loss_weight=50.0, lot=LOT))
                else:
                    reports = np.append([price / ids] * ids, others)
                    some = jsam.Market(sensitivities=reports, prior=UNIFORM)
                    contract = jsam.plan(some, EvenJSAM(loss_weight=50.0))
                assert contract.payments is not None
                paid, eps = float(contract.payments[:ids].sum()), contract.epsilons[:ids]
                utility.append(paid - price * float(eps.mean()))
            kept.append(utility[1] / utility[0] - 1)
    assert np.median(gains[True]) <= 0.02
    assert max(gains[True]) <= 0.05
    assert np.median(gains[False]) >= 1.0


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("cap", [None, 2.0])
def test_no_report_gains(prior: object, cap: float | None) -> None:
    """Whole plans for every lie."""
    rng = np.random.default_rng(5)
    some = random_market(rng, 5, prior)
    mechanism = EvenJSAM(**weights(rng), max_epsilon=cap, lot=LOT)
    truth = jsam.plan(some, mechanism)
    assert truth.payments is not None
    for client in range(3):
        c, top = some.sensitivities[client], some.cost_of(client).top
        utility = truth.payments[client] - c * truth.epsilons[client]
        for z in np.append(c * np.exp(rng.uniform(-2, 2, 4)), c * (1 + 1e-6)):
            if z >= top:
                continue
            lie = jsam.plan(some.with_report(client, float(z)), mechanism)
            assert lie.payments is not None
            most = max(truth.payments[client], lie.payments[client], 1e-9 * truth.payments.sum())
            assert lie.payments[client] - c * lie.epsilons[client] - utility <= 1e-6 * most


def test_the_audit_finds_nothing_to_object_to() -> None:
    some = random_market(np.random.default_rng(6), 8)
    report = jsam.audit(some, EvenJSAM(loss_weight=20.0, lot=LOT), grid=16)
    assert report.ok
    assert next(check for check in report.checks if check.name == "objective").status == "not claimed"


@pytest.mark.parametrize("cap", [None, 0.5])
def test_a_lot_ten_times_as_large_is_a_tenth_of_the_noise_and_of_the_squared_bias(cap: float | None) -> None:
    """Though clients then hold a small part of a lot, so that the cap on ε binds at smaller tangents."""
    rng = np.random.default_rng(11)
    samples = rng.integers(1, 3, 6).tolist()
    reports = rng.random(6) * np.array(samples) / LOT
    at_cap = []
    for loss_weight in (0.01, 0.03, 0.1, 0.3):
        contracts = []
        for factor in (1, 10):
            priors = priors_by_lots(scaled(UNIFORM, 1 / factor), samples, LOT // factor)
            mechanism = EvenJSAM(
                loss_weight=loss_weight,
                noise_weight=0.01 * factor,
                bias_weight=math.sqrt(0.01 * factor),
                lot=LOT // factor,
                max_epsilon=cap,
            )
            contracts.append(jsam.plan(jsam.Market(sensitivities=reports, prior=priors, samples=samples), mechanism))
        assert contracts[0].epsilons == pytest.approx(contracts[1].epsilons, rel=1e-9)
        assert contracts[0].payments == pytest.approx(contracts[1].payments, rel=1e-7)
        at_cap.append(int((contracts[0].epsilons == cap).sum()))
    assert (min(at_cap) < max(at_cap)) == (cap is not None)


def test_ids_smaller_than_a_rounded_unit_are_never_kept() -> None:
    """Rounding up would turn one record into a whole unit, and a hundred ids into a hundred units."""
    rng = np.random.default_rng(7)
    samples = [1] * 5 + rng.integers(2_000_000, 3_000_000, 20).tolist()
    some = jsam.Market(
        sensitivities=np.array(samples) * 1e-7 * rng.uniform(0.5, 1, 25),
        prior=priors_by_lots(UNIFORM, samples, 1_000_000),
        samples=samples,
    )
    contract = jsam.plan(some, EvenJSAM(loss_weight=50.0, lot=1_000_000))
    assert contract.epsilons[:5].max() == 0
    assert contract.num_selected > 1


@pytest.mark.parametrize("prior", [*PRIORS, jsam.parse_prior("uniform:0.5,2"), ScaledPrior(prior=UNIFORM, factor=2.0)])
def test_a_scaled_prior_is_the_prior_of_a_multiple(prior: object) -> None:
    larger = scaled(prior, 3.0)  # type: ignore[arg-type]
    q = np.array([0.1, 0.5, 0.9])
    x = prior.ppf(q)  # type: ignore[attr-defined]
    assert larger.ppf(q) == pytest.approx(3 * x)
    assert larger.isf(q) == pytest.approx(3 * prior.isf(q))  # type: ignore[attr-defined]
    assert larger.logcdf(3 * x) == pytest.approx(prior.logcdf(x))  # type: ignore[attr-defined]
    assert larger.logpdf(3 * x) == pytest.approx(prior.logpdf(x) - np.log(3))  # type: ignore[attr-defined]
    assert np.asarray(larger.support()) == pytest.approx(3 * np.asarray(prior.support()))  # type: ignore[attr-defined]


def test_rules_with_a_lot_need_sizes_and_a_mechanism_that_counts_by_them() -> None:
    rules = Rules(mechanism="jsam-even", prior="uniform:0,1", loss_weight=5.0, lot=LOT)
    assert Rules.from_dict(rules.as_dict()) == rules
    with pytest.raises(InputError, match="lot counts data by records"):
        rules.market([0.1, 0.2])
    with pytest.raises(InputError, match="jsam takes no lot"):
        replace(rules, mechanism="jsam").mechanism_at(1.0)
    with pytest.raises(InputError, match="give the number of samples"):
        jsam.plan(jsam.Market(sensitivities=np.array([0.1, 0.2]), prior=UNIFORM), rules.mechanism_at(1.0))
    with pytest.raises(InputError, match="lot is 0"):
        EvenJSAM(loss_weight=1.0, lot=0)


@pytest.mark.parametrize(
    ("asked", "may"),
    [({"min_clients": 4}, False), ({"min_clients": 3}, True), ({"max_selection_prob": 0.32}, False)],
)
def test_ids_smaller_than_a_unit_do_not_count_towards_floors_and_caps(asked: dict[str, float], may: bool) -> None:
    """All units together are then not all clients."""
    bounds = Weights(loss_weight=1.0, **asked)
    sizes = Sizes(samples=np.array([10, 40, 40, 40]), unit=20, weights=bounds, lot=20.0)
    assert even_range(sizes)[sizes.total] == may


def test_where_sizes_are_rounded_no_bound_is_claimed() -> None:
    rng = np.random.default_rng(8)
    samples = (LOT * rng.uniform(0.5, 1.5, 30) * 1e6).astype(int).tolist()
    lots = np.array(samples) / (LOT * 1e6)
    priors = priors_by_lots(UNIFORM, samples, LOT * 1e6)
    some = jsam.Market(sensitivities=rng.random(30) * lots, prior=priors, samples=samples)
    mechanism = EvenJSAM(loss_weight=20.0, lot=LOT * 1e6)
    assert Sizes.of(samples, mechanism.weights, mechanism.lot).rounded
    assert jsam.plan(some, mechanism, payments=False).rounding_bound is None


def test_caps_have_no_price_as_the_objective_of_the_contract_is_not_minimised() -> None:
    some = random_market(np.random.default_rng(9), 5)
    mechanism = EvenJSAM(loss_weight=20.0, lot=LOT, min_clients=4)
    with pytest.raises(InputError, match="caps have no price"):
        list(cap_prices(mechanism, some, jsam.plan(some, mechanism, payments=False)))


def test_a_market_of_the_rules_has_priors_by_lots() -> None:
    rules = Rules(mechanism="jsam-even", prior="uniform:0,1", loss_weight=5.0, lot=LOT)
    assert [prior.support()[1] for prior in rules.market([0.5, 1.5], samples=[LOT, 2 * LOT]).prior] == [1.0, 2.0]  # type: ignore[union-attr]


def test_a_probability_goes_by_whole_contracts() -> None:
    """Though all be of one size: a contract by rank would count the noise in another way."""
    samples, budget, mechanism = [2 * LOT] * 6, 2.0, EvenJSAM(loss_weight=1.0, lot=LOT)
    priors = priors_by_lots(UNIFORM, samples, LOT)

    def bought(mechanism: EvenJSAM) -> BudgetPlan:
        return loss_weight_for_budget(
            mechanism,
            budget,
            prior=priors,
            num_clients=6,
            probability=0.6,
            samples=samples,
            draws=100,
            cache=BudgetCache(None),
        )

    plan = bought(mechanism)
    assert 0.6 <= plan.probability_bound <= plan.probability_seen
    rng, totals = np.random.default_rng(10), []
    for _ in range(200):
        drawn = jsam.Market(sensitivities=2 * rng.random(6), prior=priors, samples=samples)
        total = jsam.plan(drawn, mechanism.with_loss_weight(plan.loss_weight)).total_payment
        assert total is not None
        totals.append(total)
    assert np.median(totals) == pytest.approx(plan.payment_quantiles[0.5], rel=0.1)
    assert np.mean(np.array(totals) <= budget) == pytest.approx(plan.probability_seen, abs=0.1)
    with pytest.raises(InputError, match="under a cap on ε"):
        bought(replace(mechanism, max_epsilon=1.0))


def test_a_budget_is_found_by_lots_too() -> None:
    samples = [LOT, 2 * LOT, 3 * LOT] * 5
    rules = Rules(mechanism="jsam-even", prior="uniform:0,1", budget=3.0, lot=LOT)
    priors = priors_by_lots(UNIFORM, samples, LOT)
    plan = rules.budget_plan(15, mechanism=rules.mechanism_at(1.0), prior=priors, samples=samples)
    assert plan is not None
    assert 2.5 < plan.expected_cost <= 3.0
