"""From what clients could get to what is promised: one verdict a promise."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from jsam.mechanism._arrays import FloatArray
from jsam.mechanism.audit.contract_checks import bound_of, is_sound, shares_of, total_cost
from jsam.mechanism.audit.misreports import Probe, round_numbers
from jsam.mechanism.audit.payment_integral import Area
from jsam.mechanism.audit.report import Check, Violation, beyond, judged, passed_or_violated
from jsam.mechanism.audit.search import (
    ALL_SUBSETS_UP_TO,
    Problem,
    least_even_objective,
    least_objective,
    least_simple_objective,
)
from jsam.mechanism.contract import Contract
from jsam.mechanism.families.base import Mechanism
from jsam.mechanism.market import Market

GAIN = 1e-6
RISE = 1e-7
PAYMENT = 1e-6
RESOLVED = 1e-8  # of a payment: what the auditor's own sum can tell apart
CONSISTENCY = 1e-6
OBJECTIVE = 1e-9
OBJECTIVE_ON_CURVE = 1e-6  # max_selection_prob declares points of a curve, which miss the optimum by less
OBJECTIVE_ROUNDED = 1e-3  # the sizes of many clients are rounded, and a cap on ε is planned with tangents
OBJECTIVE_IN_RANGE = 5e-3  # max_epsilon declares a range, seen to miss the optimum by 1.1e-3 for a few clients
SEARCH_UP_TO = 6
TINY = float(np.finfo(np.float64).tiny)
ROUND, ROUND_TIMES_MARKET = 16, 2_000  # round reports planned as whole markets; fewer the larger the market is


def check_truthfulness(market: Market, probes: list[Probe], *, held: bool) -> Check:
    """Whether some lie pays; `probes` come by falling gain."""
    worst = probes[0]
    name, gain = market.name_of(worst.client), worst.relative_gain
    lie = (
        f"client {name!r} gains {worst.gain:.6g} by reporting {worst.worst_report:.6g} instead of its true"
        f" {worst.truth:.6g}: {gain:.3g} of the larger payment"
    )
    if not held:
        message = f"not claimed: {lie}" if gain > GAIN else "not claimed, though no lie was found that pays"
        return Check(
            name="truthfulness", status="not claimed", value=gain, tolerance=GAIN, client=name, message=message
        )
    liars = sum(probe.relative_gain > GAIN for probe in probes)
    return judged(
        "truthfulness",
        gain,
        GAIN,
        client=name,
        fine=f"no lie pays: the best, by client {name!r}, changes its utility by {gain:.3g} of the larger payment",
        broken=f"{lie}, above {GAIN:g}; {liars} of {len(probes)} audited clients gain by lying",
    )


def check_monotonicity(market: Market, probes: list[Probe], *, held: bool) -> Check:
    """Whether anybody would sell more privacy at a higher price of its own."""
    worst = max(probes, key=lambda probe: probe.rise[0])
    (rise, low, high), name = worst.rise, market.name_of(worst.client)
    text = f"client {name!r} would sell {rise:.3g} more ε, relatively, by reporting {high:.9g} instead of {low:.9g}"
    check = judged(
        "monotonicity",
        rise,
        RISE,
        client=name,
        fine=f"nobody's ε rises with its own report at any of {sum(len(x.scan) for x in probes)} reports tried",
        broken=f"{text}: its ε must not rise with its report by more than {RISE:g}",
    )
    if held or check.status == "passed":
        return check
    return replace(check, status="not claimed", message=f"not claimed: {text}", violations=())


def check_payments(
    market: Market, contract: Contract, probes: list[Probe], areas: list[Area], *, claimed: bool
) -> Check:
    """Payments against the auditor's own integral of ε, and against the error that the contract states for them."""
    if not claimed:
        message = "not claimed: the mechanism does not pay what truthfulness would ask for"
        return Check(name="payments", status="not claimed", tolerance=PAYMENT, message=message)
    errors = [_payment_error(probe, area) for probe, area in zip(probes, areas, strict=True)]
    i = int(np.argmax(errors))
    probe, area, error = probes[i], areas[i], errors[i]
    name = market.name_of(probe.client)
    broken = (
        f"client {name!r} is paid {probe.payment:.9g}, but c ε plus the area under its ε is {area.payment:.9g}:"
        f" {error:.3g} apart, above {PAYMENT:g} relative"
        if area.settled
        else f"client {name!r} has an ε that jumps too often to integrate: the area is known only within"
        f" {area.error:.3g}, above {PAYMENT:g} of its payment {probe.payment:.9g}"
    )
    fine = f"payments equal c ε plus the area under ε within {error:.3g} relative"
    check = judged("payments", error, PAYMENT, client=name, fine=fine, broken=broken)
    violations = [*check.violations, *_false_bound(market, contract, probes, areas)]
    return passed_or_violated("payments", violations, fine, value=error, tolerance=PAYMENT, client=name)


def _false_bound(market: Market, contract: Contract, probes: list[Probe], areas: list[Area]) -> list[Violation]:
    """Where a payment is further from its area than the contract's own error bound and the auditor's error allow."""
    stated = contract.payment_error_bound
    if stated is None:
        return []
    if not 0 <= stated < math.inf:
        message = f"the contract states a payment error bound of {stated:g}; it must be a finite number of 0 or more"
        return [Violation(check="payments", client=None, value=float(stated), tolerance=0.0, message=message)]
    violations: list[Violation] = []
    for probe, area in zip(probes, areas, strict=True):
        allowed = stated + 2 * area.error + RESOLVED * max(probe.payment, probe.scale)
        off = abs(area.payment - probe.payment)
        if area.settled and probe.senseless is None:
            name = market.name_of(probe.client)
            message = (
                f"client {name!r} is paid {probe.payment:.12g}, {off:.3g} from c ε plus the area under its ε, above"
                f" {allowed:g}: the error of {stated:.3g} that the contract states and the auditor's own"
            )
            violations += beyond("payments", name, off, allowed, message)
    return violations[:1]


def _payment_error(probe: Probe, area: Area) -> float:
    if probe.senseless is not None:
        return 0.0  # nothing to compare; the feasibility check says why
    return abs(area.payment - probe.payment) / max(probe.payment, probe.scale) if area.settled else math.inf


def with_answers(feasible: Check, market: Market, probes: list[Probe]) -> Check:
    """The feasibility check, extended to what clients are answered when they lie."""
    for probe in probes:
        if probe.senseless is not None:
            name = market.name_of(probe.client)
            message = (
                f"client {name!r} is answered with an ε or payment that is no finite number of 0 or more when it"
                f" reports {probe.senseless:.9g}"
            )
            bad = beyond("feasibility", name, math.inf, 0.0, message)
            return replace(
                passed_or_violated("feasibility", [*feasible.violations, *bad], ""), tolerance=feasible.tolerance
            )
    return feasible


def check_objective(
    market: Market, contract: Contract, *, claimed: bool, seed: int, another_loss: bool = False
) -> Check:
    """For a handful of clients: is there a better contract?

    A contract whose bias is that of a sample claims to be the best among even shares, others the best of all. A
    mechanism that minimises `another_loss` claims neither.
    """
    N, v, even = contract.num_clients, contract.virtual_costs, contract.bias_rule == "sample"
    if another_loss or not (claimed or even):
        message = f"{contract.mechanism} does not claim the least objective of all"
        return Check(name="objective", status="not claimed", message=message)
    if not np.isfinite(v).all() or not is_sound(contract):
        message = "only markets with all numbers finite are searched for a better p"
        return Check(name="objective", status="not checked", message=message)
    tolerance = OBJECTIVE if contract.max_selection_prob is None else OBJECTIVE_ON_CURVE
    shares = shares_of(market)
    unequal = float(np.ptp(shares)) > 0
    if contract.max_epsilon is not None:
        tolerance = OBJECTIVE_IN_RANGE if not even else OBJECTIVE_ROUNDED if unequal else OBJECTIVE
    elif unequal and N > ALL_SUBSETS_UP_TO:
        tolerance = OBJECTIVE_ROUNDED
    if unequal and not even and contract.max_selection_prob is not None:
        message = "clients with different data under a cap on p are searched by nobody but the planner"
        return Check(name="objective", status="not checked", message=message)
    problem = Problem(virtual_costs=v, data_shares=shares, weights=contract.weights, sample=even)
    thorough = N <= SEARCH_UP_TO
    if even:
        least, p = least_even_objective(problem)
        searched = f"a search over {'all' if N <= ALL_SUBSETS_UP_TO else 'some'} even shares"
    else:
        least, p = least_objective(problem, seed=seed) if thorough else least_simple_objective(problem)
        searched = "a search over all of p" if thorough else "a search over simple selections alone"
    value = contract.loss_weight * bound_of(contract, shares) + total_cost(v, contract.epsilons)
    excess = value / least - 1
    return judged(
        "objective",
        excess,
        tolerance,
        fine=f"{searched} finds nothing better than {value:.9g}: its best is {least:.9g}",
        broken=f"the contract's objective {value:.12g} is not the least: selection probabilities {_listed(p)} reach"
        f" {least:.12g}, better by {excess:.3g}, above {tolerance:g} relative",
    )


def check_consistency(
    market: Market,
    mechanism: Mechanism,
    worst: list[Probe],
    probes: list[Probe],
    rng: np.random.Generator,
) -> Check:
    """Whether `respond` tells what `plan` does: at every truth, and at some lies of the worst clients."""
    gaps = [(_gap_at_truth(probe), probe, probe.truth) for probe in probes]
    for probe in [probe for probe in worst if probe.senseless is None]:
        sold = probe.reports[(probe.epsilons > 0) & (probe.reports != probe.truth)]
        round_ones = round_numbers(probe.scan[0], probe.scan[-1])
        some = min(len(round_ones), ROUND, max(2, ROUND_TIMES_MARKET // market.num_clients))
        lies = [
            probe.worst_report,
            *rng.choice(sold, size=min(2, len(sold)), replace=False).tolist(),
            *rng.choice(round_ones, size=some, replace=False).tolist(),
        ]
        gaps += [(_gap_at_lie(market, mechanism, probe, z), probe, z) for z in lies]
    gap, probe, z = max(gaps, key=lambda item: item[0])
    name = market.name_of(probe.client)
    return judged(
        "consistency",
        gap,
        CONSISTENCY,
        client=name,
        fine=f"`respond` and `plan` agree within {gap:.3g} relative at {len(gaps)} reports",
        broken=f"client {name!r} would be answer by `respond` something else than a whole plan gives it when it reports"
        f" {z:.9g}: {gap:.3g} apart, above {CONSISTENCY:g} relative",
    )


def _gap_at_truth(probe: Probe) -> float:
    at = np.flatnonzero(probe.reports == probe.truth)
    if len(at) == 0 or probe.senseless is not None:
        return 0.0
    return max(
        _outside(probe.epsilon, probe.epsilons[at[:1]], TINY),
        _outside(probe.payment, probe.payments[at[:1]], probe.scale),
    )


def _gap_at_lie(market: Market, mechanism: Mechanism, probe: Probe, report: float) -> float:
    """How far a whole plan's answer is from what `respond` tells at the report and just beside it.

    At a jump the two may round to different sides, so whatever lies between its two sides agrees.
    """
    beside = np.clip(report * np.array([1 - 1e-9, 1.0, 1 + 1e-9]), probe.scan[0], probe.scan[-1])
    answer = mechanism.respond(market, probe.client, beside)
    planned = mechanism.plan(market.with_report(probe.client, float(report)))
    paid = math.nan if planned.payments is None else float(planned.payments[probe.client])
    eps = float(planned.epsilons[probe.client])
    return max(_outside(eps, answer.epsilons, TINY), _outside(paid, answer.payments, probe.scale))


def _outside(value: float, allowed: FloatArray, scale: float) -> float:
    """How far a value is from a range, relatively to the larger of both."""
    low, high = float(np.min(allowed)), float(np.max(allowed))
    return max(low - value, value - high, 0.0) / max(value, high, scale)


def _listed(p: FloatArray) -> str:
    if len(p) > SEARCH_UP_TO:
        kept = p[p > 0]
        return f"from {kept.min():.4g} to {kept.max():.4g} for {len(kept)} clients"
    return "(" + ", ".join(f"{x:.4g}" for x in p) + ")"
