"""Whether a stated budget is kept, on markets that the auditor draws from the prior."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from jsam.mechanism.audit.contract_checks import ROUNDING, total_cost
from jsam.mechanism.audit.misreports import by_prior
from jsam.mechanism.audit.report import Check, judged
from jsam.mechanism.contract import Contract
from jsam.mechanism.families.base import Mechanism
from jsam.mechanism.market import SMALLEST, Market

FEWEST, MOST = 16, 400  # markets drawn; they cost more the larger the market is
MARKETS_TIMES_CLIENTS = 100_000
# Standard errors by which the markets must be over the budget: chance alone gets there once in 30,000 audits.
CERTAIN = 4.0


def check_budget(
    market: Market,
    mechanism: Mechanism,
    contract: Contract,
    budget: float | None,
    probability: float | None,
    rng: np.random.Generator,
) -> Check:
    """The mean of Σ v ε over drawn markets against the budget; with a probability, how often Σ π keeps within it.

    A mechanism that spends a given budget must keep what is due within it in every market.
    """
    budget = contract.budget if budget is None else budget
    if budget is None:
        return Check(name="budget", status="not claimed", message="no budget is stated")
    count = max(FEWEST, min(MOST, MARKETS_TIMES_CLIENTS // market.num_clients))
    always = getattr(mechanism, "spends_budget", False)
    values = np.array([_outlay(market, mechanism, always or probability is not None, rng) for _ in range(count)])
    if always:
        over, allowed = float(values.max()) / budget - 1, ROUNDING
        seen = f"what is due is at most {values.max():.6g} in {count} drawn markets, on average {values.mean():.6g}"
        wanted = f"the budget is {budget:g} whatever the reports"
        broken = f"{seen}; {wanted}: {over:.3g} beyond, above {allowed:g} relative"
    elif probability is None:
        mean, error = float(values.mean()), float(values.std(ddof=1)) / math.sqrt(count)
        over, allowed = mean / budget - 1, CERTAIN * error / budget
        seen = f"the expected cost is {mean:.6g} on average over {count} drawn markets (standard error {error:.2g})"
        wanted = f"the budget is {budget:g}"
        broken = f"{seen}; {wanted}: {over:.3g} beyond, above {allowed:.3g}, which is four standard errors"
    else:
        kept = float((values <= budget).mean())
        # The normal approximation would be no bound where nearly all or nearly none keep to the budget.
        allowed = CERTAIN * math.sqrt(max(probability * (1 - probability), 1 / count) / count)
        over = probability - kept
        seen = f"what is due stays within the budget {budget:g} in {kept:.1%} of {count} drawn markets"
        wanted = f"{probability:.1%} are stated"
        broken = f"{seen}; {wanted}: {over:.3g} beyond, above {allowed:.3g}, which is four standard errors"
    return judged("budget", over, allowed, fine=f"{seen}; {wanted}", broken=broken)


def _outlay(market: Market, mechanism: Mechanism, payments: bool, rng: np.random.Generator) -> float:
    """What one market drawn from the prior costs: Σ π if payments are asked for, else Σ v ε."""
    drawn = np.empty(market.num_clients)
    for prior, clients in by_prior(market):
        bottom, top = (float(x) for x in prior.support())
        reports = np.asarray(prior.rvs(size=len(clients), random_state=rng), dtype=np.float64)
        # A sensitivity of 0 is no report, nor is one where the density vanishes at the very end of the support.
        inside = math.nextafter(max(bottom, SMALLEST), math.inf), math.nextafter(top, 0.0)
        drawn[clients] = np.clip(reports, *inside)
    contract = mechanism.plan(replace(market, sensitivities=drawn), payments=payments)
    if payments:
        assert contract.payments is not None
        return math.fsum(contract.payments.tolist())
    return total_cost(contract.virtual_costs, contract.epsilons)
