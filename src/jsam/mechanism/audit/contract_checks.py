"""Whether a contract is what it says: feasible, individually rational, and right in its own sums."""

from __future__ import annotations

import math

import numpy as np

from jsam.mechanism._arrays import FloatArray
from jsam.mechanism.audit.misreports import prior_of
from jsam.mechanism.audit.report import Check, Violation, judged, passed_or_violated
from jsam.mechanism.audit.virtual_costs import bracket, cdf
from jsam.mechanism.contract import Contract
from jsam.mechanism.market import Market

ROUNDING = 1e-9  # relative, for sums that are done twice
VIRTUAL_COST = 1e-6  # relative; scipy's cdf and logcdf may take different roads, and lines between values come near
IRONED = 2e-3  # relative, for the slopes of the convex minorant, which is looked at in some hundred points
BRACKETED = 32  # clients whose virtual costs are compared with those slopes
RATIONALITY = 1e-9


def check_feasibility(contract: Contract) -> Check:
    """p on the simplex and under its cap, ε and payments of 0 or more, ε under its cap, and nothing for nothing."""
    violations: list[Violation] = []
    p, eps, paid, ids = contract.selection_probs, contract.epsilons, contract.payments, contract.ids
    zero = np.zeros(len(ids))
    paid = zero if paid is None else paid

    def forbid(bad: FloatArray, what: str, values: FloatArray, allowed: str, tolerance: float = 0.0) -> None:
        """`bad` says by how much each client is out of bounds."""
        k = int(np.argmax(np.where(np.isnan(bad), math.inf, bad)))
        if not bad[k] <= tolerance:
            message = f"client {ids[k]!r} has {what} {values[k]:.6g}; it must be {allowed}"
            violations.append(_violation("feasibility", ids[k], float(bad[k]), tolerance, message))

    for name, values in (("selection probability", p), ("ε", eps), ("payment", paid)):
        forbid(np.where(np.isfinite(values), -values, math.inf), name, values, "a finite number of 0 or more")
    total = float(p.sum())
    if not abs(total - 1) <= ROUNDING:
        message = f"the selection probabilities sum to {total:.12g}; they must sum to 1 within {ROUNDING:g}"
        violations.append(_violation("feasibility", None, abs(total - 1), ROUNDING, message))
    if contract.max_selection_prob is not None:
        cap = contract.max_selection_prob
        forbid(p / cap - 1, "selection probability", p, f"at most max_selection_prob {cap:g}", ROUNDING)
    if contract.max_epsilon is not None:
        forbid(eps / contract.max_epsilon - 1, "ε", eps, f"at most max_epsilon {contract.max_epsilon:g}", ROUNDING)
    forbid(np.where(p > 0, zero, eps), "selection probability 0 and ε", eps, "0 for whoever is never selected")
    forbid(np.where(p > 0, zero, paid), "selection probability 0 and payment", paid, "0 for whoever is never selected")
    starved = np.where((p > 0) & (eps == 0), p, zero)
    forbid(starved, "ε 0 and selection probability", p, "0 for whoever sells no privacy, else the noise is infinite")
    return passed_or_violated(
        "feasibility",
        violations,
        "selection probabilities, ε and payments are all within their bounds",
        tolerance=ROUNDING,
    )


def check_rationality(contract: Contract) -> tuple[Check, float]:
    """No client who tells the truth may lose: π ≥ c ε. Also the lowest utility."""
    assert contract.payments is not None
    cost = contract.sensitivities * contract.epsilons
    utility = contract.payments - cost
    utility = np.where(np.isnan(utility), math.inf, utility)  # no number is no loss; feasibility has it
    scale = np.maximum(np.maximum(np.abs(contract.payments), cost), 1e-9 * float(contract.payments.sum()))
    loss = np.where(utility < 0, -utility / np.maximum(scale, np.finfo(np.float64).tiny), 0.0)
    k, lowest = int(np.argmax(loss)), int(np.argmin(utility))
    name, lowest_name = contract.ids[k], contract.ids[lowest]
    check = judged(
        "rationality",
        float(loss[k]),
        RATIONALITY,
        client=name,
        at=lowest_name,
        fine=f"no client loses by telling the truth; the lowest utility is {utility[lowest]:.6g} ({lowest_name!r})",
        broken=f"client {name!r} loses {-utility[k]:.6g} by taking part truthfully: it is paid"
        f" {contract.payments[k]:.6g} for a cost of {cost[k]:.6g}, a loss of {loss[k]:.3g} of the larger, above"
        f" {RATIONALITY:g}",
    )
    return check, float(utility[lowest])


def check_accounts(market: Market, contract: Contract, *, weighs_updates: bool = False) -> Check:
    """Virtual costs, expected cost, loss bound and objective, each from its definition.

    A mechanism that `weighs_updates` may weigh them as it likes if p times the weights sum to 1.
    """
    if not is_sound(contract):
        return Check(name="accounts", status="not checked", message="some of the contract's numbers are not finite")
    violations = _virtual_costs(market, contract)
    p, eps, N = contract.selection_probs, contract.epsilons, len(contract.ids)
    weights = contract.update_weights
    if weights is not None and weighs_updates:
        total = math.fsum((p * weights).tolist())
        if not (abs(total - 1) <= ROUNDING and weights.min() >= 0):
            message = f"selection probabilities times update weights sum to {total:.12g}; they must sum to 1"
            violations.append(_violation("accounts", None, abs(total - 1), ROUNDING, message))
    elif weights is not None:
        k = int(np.argmax(np.abs(N * p * weights - 1)))
        off = abs(N * p[k] * weights[k] - 1)
        if not off <= ROUNDING:
            message = (
                f"client {contract.ids[k]!r} has update weight {weights[k]:.6g}; it must be 1/(N p) ="
                f" {1 / (N * p[k]):.6g} within {ROUNDING:g} relative"
            )
            violations.append(_violation("accounts", contract.ids[k], float(off), ROUNDING, message))
    cost = total_cost(contract.virtual_costs, eps)
    bound = loss_bound(p if weights is None else p * weights, eps, contract.noise_weight, contract.bias_weight)
    objective = contract.loss_weight * bound + cost
    for name, said, derived in (
        ("expected cost", contract.expected_cost, cost),
        ("loss bound", contract.loss_bound, bound),
        ("objective", contract.objective, objective),
    ):
        off = 0.0 if said == derived else abs(said - derived) / max(abs(said), abs(derived))
        if not off <= ROUNDING:
            message = (
                f"the contract's {name} is stated as {said:.12g}, but its own numbers give {derived:.12g}: {off:.3g}"
                f" apart, above {ROUNDING:g} relative"
            )
            violations.append(_violation("accounts", None, off, ROUNDING, message))
    fine = "virtual costs, expected cost, loss bound and objective agree with their definitions"
    return passed_or_violated("accounts", violations, fine, tolerance=ROUNDING)


def is_sound(contract: Contract) -> bool:
    """Whether there are numbers to reckon with; where not, the feasibility check says so."""
    return bool(np.isfinite(contract.selection_probs).all() and np.isfinite(contract.epsilons).all())


def total_cost(virtual_costs: FloatArray, eps: FloatArray) -> float:
    """Σ v ε, summed exactly; a virtual cost may be infinite where nothing is bought."""
    return math.fsum(v * e for v, e in zip(virtual_costs.tolist(), eps.tolist(), strict=True) if e != 0)


def loss_bound(p: FloatArray, eps: FloatArray, noise_weight: float, bias_weight: float) -> float:
    """d + sqrt(d² + Q Σ p²/ε²), d = ζ Σ|p − 1/N|, summed exactly."""
    share = 1 / len(p)
    d = bias_weight * math.fsum(abs(x - share) for x in p.tolist())
    noise = 0.0
    for x, e in zip(p.tolist(), eps.tolist(), strict=True):
        if x > 0:
            noise += math.inf if e <= 0 else (x / e) ** 2
    return d + math.sqrt(d * d + noise_weight * noise)


def _virtual_costs(market: Market, contract: Contract) -> list[Violation]:
    c, v, ids = contract.sensitivities, contract.virtual_costs, contract.ids
    if not contract.truthful and (np.array_equal(v, c) or np.ptp(v) == 0):
        return []  # the server counts the reports themselves, as under complete information, or one price for all
    if contract.ironed:
        return _ironed_costs(market, contract)
    expected = np.array([_definition(market, k) for k in range(len(c))])
    with np.errstate(invalid="ignore"):
        off = np.where(v == expected, 0.0, np.abs(v - expected) / np.maximum(np.abs(expected), np.abs(v)))
    # A planner may take straight lines between nearby values; far out in a tail they are long.
    for other in np.flatnonzero(off > VIRTUAL_COST):
        if off[other] <= IRONED and not _is_central(market, int(other)):
            off[other] = 0.0
    k = int(np.argmax(np.where(np.isnan(off), math.inf, off)))
    if off[k] <= VIRTUAL_COST:
        return _outside_brackets(market, contract)
    message = (
        f"client {ids[k]!r} has virtual cost {v[k]:.9g}, but c + F(c)/f(c) is {expected[k]:.9g}: {off[k]:.3g} apart,"
        f" above {VIRTUAL_COST:g} relative"
    )
    return [_violation("accounts", ids[k], float(off[k]), VIRTUAL_COST, message)]


def _is_central(market: Market, client: int) -> bool:
    below = float(cdf(prior_of(market, client), market.sensitivities[client]))
    return 1e-4 <= below <= 1 - 1e-4


def _outside_brackets(market: Market, contract: Contract) -> list[Violation]:
    """Some clients' virtual costs against the slopes of the convex minorant, which needs no density."""
    c, v, ids = contract.sensitivities, contract.virtual_costs, contract.ids
    violations = []
    for k in np.unique(np.linspace(0, len(c) - 1, min(len(c), BRACKETED)).astype(int)).tolist():
        if not (_is_central(market, k) and math.isfinite(v[k])):
            continue
        low, high = bracket(prior_of(market, k), float(c[k]))
        off = max(low / v[k] - 1, v[k] / high - 1)
        if not off <= IRONED:
            message = (
                f"client {ids[k]!r} has virtual cost {v[k]:.9g}, but the convex minorant of q · ppf(q) has slopes from"
                f" {low:.9g} to {high:.9g} there: {off:.3g} off, above {IRONED:g} relative"
            )
            violations.append(_violation("accounts", ids[k], off, IRONED, message))
    return violations[:1]


def _definition(market: Market, client: int) -> float:
    prior, c = prior_of(market, client), float(market.sensitivities[client])
    if hasattr(prior, "pdf") and hasattr(prior, "cdf"):
        below, density = float(prior.cdf(c)), float(prior.pdf(c))
        # Far out both underflow while their ratio does not.
        if below > 1e-200 and density > 1e-200:
            return c + below / density
    below, density = float(prior.logcdf(c)), float(prior.logpdf(c))
    if math.isinf(below):
        return c
    return math.inf if math.isinf(density) else c + math.exp(below - density)


def _ironed_costs(market: Market, contract: Contract) -> list[Violation]:
    """Ironing replaces v by something that still rises with c and never lies below it."""
    c, v, ids = contract.sensitivities, contract.virtual_costs, contract.ids
    groups: dict[int, list[int]] = {}
    for k in range(len(c)):
        groups.setdefault(id(prior_of(market, k)), []).append(k)
    violations = []
    for members in groups.values():
        order = np.array(sorted(members, key=lambda k: (c[k], v[k])))
        rising = np.maximum.accumulate(v[order])
        with np.errstate(invalid="ignore"):
            fall = np.where(rising == v[order], 0.0, rising / v[order] - 1)
        worst = int(np.argmax(fall))
        if not fall[worst] <= VIRTUAL_COST:
            name = ids[int(order[worst])]
            message = (
                f"client {name!r} has a lower virtual cost than a less sensitive client with the same prior, by"
                f" {fall[worst]:.3g}, above {VIRTUAL_COST:g} relative; ironing must make it rise"
            )
            violations.append(_violation("accounts", name, float(fall[worst]), VIRTUAL_COST, message))
    short = 1 - v / c
    k = int(np.argmax(short))
    if not short[k] <= VIRTUAL_COST:
        message = f"client {ids[k]!r} has virtual cost {v[k]:.9g}, below its sensitivity {c[k]:.9g}"
        violations.append(_violation("accounts", ids[k], float(short[k]), VIRTUAL_COST, message))
    return violations or _outside_brackets(market, contract)


def _violation(check: str, client: str | None, value: float, tolerance: float, message: str) -> Violation:
    return Violation(check=check, client=client, value=float(value), tolerance=tolerance, message=message)
