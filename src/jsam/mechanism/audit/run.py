"""The audit itself: which clients to look at and what to ask them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from jsam.errors import InputError
from jsam.mechanism.audit.accounts import check_accounts, check_feasibility, check_rationality
from jsam.mechanism.audit.area import Area, myerson_payment
from jsam.mechanism.audit.misreports import Probe, ask, prior_of, probe, refined
from jsam.mechanism.audit.report import AuditReport
from jsam.mechanism.audit.verdicts import (
    PAYMENT,
    check_consistency,
    check_monotonicity,
    check_objective,
    check_payments,
    check_truthfulness,
    with_answers,
)
from jsam.mechanism.contract import Contract
from jsam.mechanism.market import Market
from jsam.mechanism.mechanisms.base import Mechanism

ALL_CLIENTS_UP_TO = 128
FEWEST, MOST = 6, 32  # clients of a larger market, which cost more the larger it is
CLIENTS_TIMES_MARKET = 20_000
WORST = 3  # clients whose lies are refined further and planned as whole markets


def audit(
    market: Market,
    mechanism: Mechanism,
    *,
    clients: Sequence[int] | None = None,
    grid: int = 64,
    strict: bool = False,
    progress: Callable[[int], None] | None = None,
    seed: int = 0,
) -> AuditReport:
    """Check everything that a mechanism promises about one market, whose reports are taken as the truth.

    Large markets are sampled: the cheapest, the dearest kept, the cheapest dropped, the best paid, and some at random;
    `clients` asks for others. `progress` is called with the number of clients just finished. A mechanism that does not
    claim truthfulness is held to it only if `strict`.

    >>> import scipy.stats
    >>> from jsam.mechanism.mechanisms import JSAM
    >>> market = Market(sensitivities=[0.1, 0.4, 0.8], prior=scipy.stats.uniform(0, 1))
    >>> audit(market, JSAM(loss_weight=20.0)).ok
    True
    """
    if grid < 2:
        raise InputError(f"grid is {grid}; at least 2 reports a client must be tried")
    contract = mechanism.plan(market)
    if contract.payments is None:
        raise InputError(f"mechanism {mechanism.name!r} plans no payments: there is nothing to audit")
    rng = np.random.default_rng(seed)
    probes: list[Probe] = []
    areas: list[Area] = []
    for client in audited_clients(market, contract, clients, rng):
        found = probe(market, mechanism, contract, client, grid=grid, rng=rng)
        probes.append(found)
        if mechanism.truthful:
            areas.append(_area(market, mechanism, found))
        if progress is not None:
            progress(1)
    payments = check_payments(market, probes, areas, claimed=mechanism.truthful)
    probes = _refined_where_worst(market, mechanism, probes)
    rational, lowest = check_rationality(contract)
    worst, held = probes[0], mechanism.truthful or strict
    return AuditReport(
        mechanism=mechanism.name,
        claims_truthful=mechanism.truthful,
        strict=strict,
        num_clients=market.num_clients,
        num_audited=len(probes),
        worst_client=market.name_of(worst.client),
        worst_report=worst.worst_report,
        worst_gain=worst.gain,
        worst_relative_gain=worst.relative_gain,
        lowest_utility=lowest,
        checks=(
            check_truthfulness(market, probes, held=held),
            rational,
            check_monotonicity(market, probes, held=held),
            payments,
            with_answers(check_feasibility(contract), market, probes),
            check_accounts(market, contract),
            check_objective(contract, seed=seed),
            check_consistency(market, mechanism, probes[:WORST], probes, rng),
        ),
    )


def audited_clients(
    market: Market, contract: Contract, clients: Sequence[int] | None, rng: np.random.Generator
) -> list[int]:
    """The positions asked for, or all, or of a large market those where trouble is likeliest and some at random."""
    N = market.num_clients
    if clients is not None:
        chosen = list(dict.fromkeys(int(k) for k in clients))
        if not chosen:
            raise InputError("clients is empty; at least one must be audited")
        for k in chosen:
            if not 0 <= k < N:
                raise InputError(f"clients holds {k}; positions 0 to {N - 1} are possible")
        return chosen
    if N <= ALL_CLIENTS_UP_TO:
        return list(range(N))
    assert contract.payments is not None
    order = np.argsort(contract.virtual_costs, kind="stable")
    kept = order[contract.epsilons[order] > 0]
    dropped = order[contract.epsilons[order] == 0]
    best_paid = int(np.argmax(contract.payments))
    telling = [order[0], kept[-1], *dropped[:1], order[1], best_paid, order[-1], *kept[-2:], *dropped[1:2]]
    count = max(FEWEST, min(MOST, CLIENTS_TIMES_MARKET // N))
    return list(dict.fromkeys(int(k) for k in [*telling, *rng.permutation(N)]))[:count]


def _area(market: Market, mechanism: Mechanism, found: Probe) -> Area:
    """The client's payment by the auditor's own quadrature of its ε."""
    return myerson_payment(
        lambda z: ask(mechanism, market, found.client, z, payments=False)[0],
        found.truth,
        prior_of(market, found.client),
        claimed=found.payment,
        tolerance=PAYMENT * max(found.payment, found.scale),
    )


def _refined_where_worst(market: Market, mechanism: Mechanism, probes: list[Probe]) -> list[Probe]:
    """Probes by falling gain, the first few zoomed into twice more."""

    def gain(found: Probe) -> float:
        return -found.relative_gain

    ordered = sorted(probes, key=gain)
    for i in range(min(WORST, len(ordered))):
        for _ in range(2):
            ordered[i] = refined(ordered[i], market, mechanism)
    return sorted(ordered, key=gain)
