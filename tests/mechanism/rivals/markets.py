"""Random markets for the rivals, and what a lie brings there: a brute force over whole plans, without the audit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import scipy.stats

import jsam
from jsam.mechanism.families import Mechanism, RangeMechanism
from jsam.mechanism.registry import mechanism_named

PRIORS = {"uniform": scipy.stats.uniform(0, 1), "beta": scipy.stats.beta(2, 5)}


def market_of(sensitivities: Sequence[float], prior: Any = PRIORS["uniform"], **options: Any) -> jsam.Market:
    return jsam.Market(sensitivities=np.array(sensitivities), prior=prior, **options)


def random_market(prior: str, seed: int, most: int = 50) -> tuple[jsam.Market, np.random.Generator]:
    """From 5 to `most` clients, and the generator for whatever else is random."""
    rng = np.random.default_rng([seed, list(PRIORS).index(prior)])
    N = round(5 * (most / 5) ** float(rng.random()))
    ids = [f"client-{k}" for k in range(N)] if seed % 2 else None
    return jsam.Market(sensitivities=PRIORS[prior].rvs(size=N, random_state=rng), prior=PRIORS[prior], ids=ids), rng


def auctions(name: str, prior: str, count: int, most: int = 50) -> Iterator[tuple[jsam.Market, RangeMechanism]]:
    """Markets in which an auction buys from somebody; every third time each client has a whole ε of its own."""
    seed = 0
    while count:
        market, rng = random_market(prior, seed, most)
        N, options = market.num_clients, {}
        budget = N * 10 ** float(rng.uniform(-1.5, 0))
        if name != "fairquery":
            size = N if seed % 3 == 2 else None
            options["whole_epsilon"] = 10 ** rng.uniform(-1, 1, size)
        mechanism = mechanism_named(name, budget=budget, **options)
        seed += 1
        if mechanism.plan(market).num_selected:
            count -= 1
            yield market, mechanism


def lies(market: jsam.Market, client: int, rng: np.random.Generator, count: int) -> list[float]:
    """Just beside the others' reports, near both ends, and anywhere."""
    others = np.delete(market.sensitivities, client)
    some = rng.choice(others, size=min(len(others), count), replace=False)
    top = 0.999  # at 1 itself the density of some priors vanishes
    near = np.concatenate([some * (1 - 1e-9), some * (1 + 1e-9), [1e-9, top], rng.uniform(0, top, count)])
    return [float(z) for z in near if 0 < z <= top]


def largest_gain(
    market: jsam.Market, mechanism: Mechanism, *, clients: int = 4, count: int = 8, seed: int = 0
) -> float:
    """The best that a lie brings some of the clients, relatively to the larger of both payments."""
    rng = np.random.default_rng(seed)
    truth = mechanism.plan(market)
    best = -np.inf
    for k in rng.permutation(market.num_clients)[:clients].tolist():
        eps, paid = _sold(truth, k)
        for z in lies(market, k, rng, count):
            other_eps, other_paid = _sold(mechanism.plan(market.with_report(k, z)), k)
            c = float(market.sensitivities[k])
            gain = (other_paid - c * other_eps) - (paid - c * eps)
            best = max(best, gain / max(paid, other_paid, 1e-9 * _total(truth)))
    return best


def _sold(contract: Any, client: int) -> tuple[float, float]:
    return float(contract.epsilons[client]), float(contract.payments[client])


def _total(contract: Any) -> float:
    return float(contract.payments.sum())
