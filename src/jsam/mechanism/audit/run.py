"""The audit itself: which clients to look at and what to ask them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from jsam.errors import InputError
from jsam.mechanism._arrays import FloatArray
from jsam.mechanism.audit.budget import check_budget
from jsam.mechanism.audit.choice import audited_clients
from jsam.mechanism.audit.contract_checks import check_accounts, check_feasibility, check_rationality
from jsam.mechanism.audit.misreports import Probe, ask, prior_of, probe, refined
from jsam.mechanism.audit.payment_integral import CLOSER_SHARE, Area, myerson_payment
from jsam.mechanism.audit.report import AuditReport
from jsam.mechanism.audit.verdicts import (
    PAYMENT,
    RESOLVED,
    check_consistency,
    check_monotonicity,
    check_objective,
    check_payments,
    check_truthfulness,
    with_answers,
)
from jsam.mechanism.contract import Contract
from jsam.mechanism.families.base import Mechanism
from jsam.mechanism.market import Market
from jsam.mechanism.registry import find_description

DENSE = 8192  # reports at which ε alone is asked for, over all audited clients and a grid of 64
DENSE_TIMES_MARKET = 500_000  # reports of one client times the size of the market: what an answer costs grows with it
WORST = 3  # clients whose lies are refined further and planned as whole markets


def audit(
    market: Market,
    mechanism: Mechanism,
    *,
    clients: Sequence[int] | None = None,
    grid: int = 64,
    strict: bool = False,
    budget: float | None = None,
    budget_probability: float | None = None,
    progress: Callable[[int], None] | None = None,
    seed: int = 0,
) -> AuditReport:
    """Check everything that a mechanism promises about one market, whose reports are taken as the truth.

    Large markets are sampled: the cheapest, the dearest kept, the cheapest dropped, the best paid, those who stand out
    among their neighbours, and some at random; `clients` asks for others. `progress` is called with the number of
    clients just finished. A mechanism that does not claim truthfulness is held to it only if `strict`. `budget` is held
    against markets drawn from the prior, with `budget_probability` against what is paid there; without it the budget
    that the contract states is.

    >>> import scipy.stats
    >>> from jsam.mechanism.families import JSAM
    >>> market = Market(sensitivities=[0.1, 0.4, 0.8], prior=scipy.stats.uniform(0, 1))
    >>> audit(market, JSAM(loss_weight=20.0)).ok
    True
    """
    if grid < 2:
        raise InputError(f"grid is {grid}; at least 2 reports a client must be tried")
    contract = mechanism.plan(market)
    if contract.payments is None:
        raise InputError(f"mechanism {mechanism.name!r} plans no payments: there is nothing to audit")
    if not (contract.selection_probs.any() or contract.epsilons.any() or contract.payments.any()):
        raise InputError(f"mechanism {mechanism.name!r} buys from nobody: there is nothing to audit")
    rng = np.random.default_rng(seed)
    probes: list[Probe] = []
    areas: list[Area] = []
    chosen = audited_clients(market, contract, clients, rng)
    dense = _dense(market.num_clients, len(chosen), grid)
    for client in chosen:
        tried = probe(market, mechanism, contract, client, grid=grid, dense=dense, rng=rng)
        probes.append(tried)
        if mechanism.truthful:
            areas.append(_area(market, mechanism, tried))
        if progress is not None:
            progress(1)
    payments = check_payments(market, contract, probes, areas, claimed=mechanism.truthful)
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
            check_accounts(market, contract, weighs_updates=getattr(mechanism, "weighs_updates", False)),
            check_objective(
                market,
                contract,
                claimed=_claims_optimum(mechanism, contract),
                seed=seed,
                another_loss=getattr(mechanism, "minimises_another_loss", False),
            ),
            check_consistency(market, mechanism, probes[:WORST], probes, rng),
            check_budget(market, mechanism, contract, budget, budget_probability, rng),
        ),
    )


def _claims_optimum(mechanism: Mechanism, contract: Contract) -> bool:
    """Whether the mechanism claims the least objective of all, or its contract bears the name of one that does."""
    named = find_description(contract.mechanism)
    return getattr(mechanism, "optimal", False) or (named is not None and named.optimal)


def _dense(num_clients: int, num_audited: int, grid: int) -> int:
    """Reports of each client at which ε alone is asked for: together they leave gaps of about 1e-4 of the support."""
    each = min(max(DENSE // num_audited, DENSE // 16), DENSE // 4)
    return min(each, max(DENSE_TIMES_MARKET // num_clients, 16)) * grid // 64


def _area(market: Market, mechanism: Mechanism, tried: Probe) -> Area:
    """The client's payment by the auditor's own quadrature of its ε.

    A small jump can lie so that the rules of a panel agree by chance, and no error is seen. So before an area speaks
    against a payment it is computed again, ten thousand times as strictly.
    """

    def curve(z: FloatArray) -> FloatArray:
        return ask(mechanism, market, tried.client, z, payments=False)[0]

    size = max(tried.payment, tried.scale)
    look = partial(
        myerson_payment,
        curve,
        tried.truth,
        prior_of(market, tried.client),
        claimed=tried.payment,
        tolerance=PAYMENT * size,
    )
    area = look()
    if not area.settled or abs(area.payment - tried.payment) <= RESOLVED * size:
        return area
    closer = look(share=CLOSER_SHARE)
    return closer if closer.settled else area


def _refined_where_worst(market: Market, mechanism: Mechanism, probes: list[Probe]) -> list[Probe]:
    """Probes by falling gain, the first few zoomed into twice more."""

    def gain(tried: Probe) -> float:
        return -tried.relative_gain

    ordered = sorted(probes, key=gain)
    for i in range(min(WORST, len(ordered))):
        for _ in range(2):
            ordered[i] = refined(ordered[i], market, mechanism)
    return sorted(ordered, key=gain)
