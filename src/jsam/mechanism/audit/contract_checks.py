"""Whether a contract is what it says: feasible, individually rational, and right in its own sums."""

from __future__ import annotations

import math

import numpy as np

from jsam.mechanism._arrays import FloatArray
from jsam.mechanism.audit.misreports import by_prior, prior_of
from jsam.mechanism.audit.report import Check, Violation, beyond, judged, passed_or_violated
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
        message = f"client {ids[k]!r} has {what} {values[k]:.6g}; it must be {allowed}"
        violations.extend(beyond("feasibility", ids[k], bad[k], tolerance, message))

    for name, values in (("selection probability", p), ("ε", eps), ("payment", paid)):
        forbid(np.where(np.isfinite(values), -values, math.inf), name, values, "a finite number of 0 or more")
    total = float(p.sum())
    message = f"the selection probabilities sum to {total:.12g}; they must sum to 1 within {ROUNDING:g}"
    violations += beyond("feasibility", None, abs(total - 1), ROUNDING, message)
    if contract.max_selection_prob is not None:
        cap = contract.max_selection_prob
        forbid(p / cap - 1, "selection probability", p, f"at most max_selection_prob {cap:g}", ROUNDING)
    if contract.max_epsilon is not None:
        forbid(eps / contract.max_epsilon - 1, "ε", eps, f"at most max_epsilon {contract.max_epsilon:g}", ROUNDING)
    weights = contract.weights
    if weights.min_selection_prob:
        floor = weights.min_selection_prob
        below = np.where(p > 0, 1 - p / floor, zero)
        forbid(below, "selection probability", p, f"0, or at least min_selection_prob {floor:g}", ROUNDING)
    kept = int((p > 0).sum())
    if weights.min_clients is not None and kept < weights.min_clients:
        message = f"{kept} clients are kept; min_clients asks for {weights.min_clients}"
        violations += beyond("feasibility", None, float(weights.min_clients - kept), 0.0, message)
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
    violations = [*_virtual_costs(market, contract), *_shares(market, contract)]
    p, eps, u = contract.selection_probs, contract.epsilons, shares_of(market)
    weights = contract.update_weights
    if weights is not None and weighs_updates:
        total = math.fsum((p * weights).tolist())
        message = f"selection probabilities times update weights sum to {total:.12g}; they must sum to 1"
        off = abs(total - 1) if weights.min() >= 0 else math.inf
        violations += beyond("accounts", None, off, ROUNDING, message)
    elif weights is not None:
        k = int(np.argmax(np.abs(p * weights / u - 1)))
        with np.errstate(divide="ignore"):
            message = (
                f"client {contract.ids[k]!r} has update weight {weights[k]:.6g}; it must be its share over p,"
                f" {u[k] / p[k]:.6g}, within {ROUNDING:g} relative"
            )
        violations += beyond("accounts", contract.ids[k], abs(p[k] * weights[k] / u[k] - 1), ROUNDING, message)
    cost = total_cost(contract.virtual_costs, eps)
    bound = bound_of(contract, u)
    objective = contract.loss_weight * bound + cost
    for name, said, derived in (
        ("expected cost", contract.expected_cost, cost),
        ("loss bound", contract.loss_bound, bound),
        ("objective", contract.objective, objective),
    ):
        off = 0.0 if said == derived else abs(said - derived) / max(abs(said), abs(derived))
        message = (
            f"the contract's {name} is stated as {said:.12g}, but its own numbers give {derived:.12g}: {off:.3g}"
            f" apart, above {ROUNDING:g} relative"
        )
        violations += beyond("accounts", None, off, ROUNDING, message)
    fine = "virtual costs, expected cost, loss bound and objective agree with their definitions"
    return passed_or_violated("accounts", violations, fine, tolerance=ROUNDING)


def is_sound(contract: Contract) -> bool:
    """Whether there are numbers to reckon with; where not, the feasibility check says so."""
    return bool(np.isfinite(contract.selection_probs).all() and np.isfinite(contract.epsilons).all())


def total_cost(virtual_costs: FloatArray, eps: FloatArray) -> float:
    """Σ v ε, summed exactly; a virtual cost may be infinite where nothing is bought."""
    return math.fsum(v * e for v, e in zip(virtual_costs.tolist(), eps.tolist(), strict=True) if e != 0)


def shares_of(market: Market) -> FloatArray:
    """Each client's share of all data."""
    N = market.num_clients
    return np.full(N, 1 / N) if market.samples is None else np.array(market.samples) / math.fsum(market.samples)


def bound_of(contract: Contract, shares: FloatArray) -> float:
    """The loss bound of a contract by its own rule for the bias."""
    p = contract.selection_probs
    p = p if contract.update_weights is None else p * contract.update_weights
    sample = contract.bias_rule == "sample"
    return loss_bound(p, contract.epsilons, contract.noise_weight, contract.bias_weight, shares, sample=sample)


def loss_bound(
    p: FloatArray,
    eps: FloatArray,
    noise_weight: float,
    bias_weight: float,
    shares: FloatArray | None = None,
    *,
    sample: bool = False,
) -> float:
    """d + sqrt(d² + Q Σ (p/(N u ε))²), summed exactly; shares are equal if they are left out.

    d is ζ Σ|p − u|. By a random sample it is ζ sqrt(Σu² (1/U − 1)) if p = u/U on those kept, else ζ sqrt(Σ(p − u)²).
    """
    N = len(p)
    pairs = list(zip(p.tolist(), [1 / N] * N if shares is None else shares.tolist(), strict=True))
    if not sample:
        distance = math.fsum(abs(x - u) for x, u in pairs)
    else:
        U = math.fsum(u for x, u in pairs if x > 0)
        if all(abs(x * U - u) <= ROUNDING * u for x, u in pairs if x > 0):
            distance = math.sqrt(math.fsum(u * u for _, u in pairs) * max(1 / U - 1, 0.0))
        else:
            distance = math.sqrt(math.fsum((x - u) ** 2 for x, u in pairs))
    noise = 0.0
    for (x, u), e in zip(pairs, eps.tolist(), strict=True):
        if x > 0:
            noise += math.inf if e <= 0 else (x / (N * u * e)) ** 2
    d = bias_weight * distance
    return d + math.sqrt(d * d + noise_weight * noise)


def _shares(market: Market, contract: Contract) -> list[Violation]:
    """Whether the contract counts each client's data as the market says."""
    stated, true = contract.data_shares, shares_of(market)
    off = np.abs((1 / len(true) if stated is None else stated) / true - 1)
    k = int(np.argmax(off))
    message = f"client {contract.ids[k]!r} holds the share {true[k]:.9g} of all data; the contract counts another"
    return beyond("accounts", contract.ids[k], float(off[k]), ROUNDING, message)


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
    return beyond("accounts", ids[k], off[k], VIRTUAL_COST, message)


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
        message = (
            f"client {ids[k]!r} has virtual cost {v[k]:.9g}, but the convex minorant of q · ppf(q) has slopes from"
            f" {low:.9g} to {high:.9g} there: {off:.3g} off, above {IRONED:g} relative"
        )
        violations += beyond("accounts", ids[k], off, IRONED, message)
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
    violations: list[Violation] = []
    for _, members in by_prior(market):
        order = np.array(sorted(members, key=lambda k: (c[k], v[k])))
        rising = np.maximum.accumulate(v[order])
        with np.errstate(invalid="ignore"):
            fall = np.where(rising == v[order], 0.0, rising / v[order] - 1)
        worst = int(np.argmax(fall))
        name = ids[int(order[worst])]
        message = (
            f"client {name!r} has a lower virtual cost than a less sensitive client with the same prior, by"
            f" {fall[worst]:.3g}, above {VIRTUAL_COST:g} relative; ironing must make it rise"
        )
        violations += beyond("accounts", name, fall[worst], VIRTUAL_COST, message)
    short = 1 - v / c
    k = int(np.argmax(short))
    message = f"client {ids[k]!r} has virtual cost {v[k]:.9g}, below its sensitivity {c[k]:.9g}"
    violations += beyond("accounts", ids[k], short[k], VIRTUAL_COST, message)
    return violations or _outside_brackets(market, contract)
