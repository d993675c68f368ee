"""From a budget to η, before any report is read.

Fitting η to the reports so that the cost meets the budget breaks truthfulness: a client could shift η, and with it
everybody's ε, by its own report (docs/theory.md, "Why η is not fitted to the reports"). So η comes from the prior and
the number of clients alone: the largest with E[Σ v ε] ≤ budget, or with P(Σ π ≤ budget) at least as stated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jsam.errors import InputError
from jsam.mechanism._arrays import FloatArray
from jsam.mechanism.allocation import CHUNK, Rule, SortedRows, minimise
from jsam.mechanism.budget_cache import BudgetCache, fingerprint
from jsam.mechanism.market import Market
from jsam.mechanism.mechanisms.base import RangeMechanism
from jsam.mechanism.priors import Prior

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
PAYMENT_TOLERANCE = 1e-4  # of a payment: a distribution over draws needs no more
COARSE, FINE = 1.25, 1.02  # steps of the scan over η: Σπ is not monotone in it, but its dips are a few per cent

# Another machine's rounding, and where the search stops, move costs and η by less (relative).
ALIKE = 1e-6

FractionDone = Callable[[float], None]


@dataclass(frozen=True, kw_only=True)
class BudgetPlan:
    """The η that a budget buys, and what may fall due under it."""

    budget: float
    probability: float | None  # None: the budget holds in expectation
    loss_weight: float
    expected_cost: float
    expected_cost_error: float  # standard error over the draws
    payment_quantiles: dict[float, float]  # of Σπ
    draws: int
    payment_draws: int  # of them, those whose payments were computed
    seed: int

    def as_dict(self) -> dict[str, Any]:
        quantiles = {f"{q:g}": amount for q, amount in self.payment_quantiles.items()}
        return {**self.__dict__, "payment_quantiles": quantiles}


def loss_weight_for_budget(
    mechanism: RangeMechanism,
    budget: float,
    *,
    prior: Prior | Sequence[Prior],
    num_clients: int,
    probability: float | None = None,
    losses: FloatArray | None = None,
    draws: int | None = None,
    seed: int = 0,
    cache: BudgetCache | None = None,
    progress: FractionDone | None = None,
) -> BudgetPlan:
    """The largest η under which `mechanism` (its own η is ignored) keeps to `budget` over markets drawn from the prior.

    With `probability` the total payment Σπ stays within the budget in at least that share of the draws; without, the
    expected cost does. The draws are the same for every η (common random numbers), so equal inputs give equal η.
    Results are kept in `cache` (default: the user's cache folder).

    >>> import scipy.stats
    >>> from jsam.mechanism.mechanisms.usbm import USBM
    >>> prior = scipy.stats.uniform(0, 1)
    >>> plan = loss_weight_for_budget(USBM(loss_weight=1.0), 5.0, prior=prior, num_clients=10, draws=500)
    >>> plan.expected_cost <= 5.0
    True
    """
    problem = _Problem.of(mechanism, budget, prior, num_clients, probability, losses, draws, seed)
    cache = BudgetCache.default() if cache is None else cache
    known = _restored(cache.get(problem.key))
    if known is not None:
        return known
    tell = progress or (lambda done: None)
    sample = problem.sample()
    eta = _expected(sample, budget, lambda done: tell(done * 0.4))
    if probability is not None:
        eta = _probable(sample, budget, probability, eta, lambda done: tell(0.4 + done * 0.4))
    costs = sample.costs(eta)
    totals = sample.payments(eta, lambda done: tell(0.8 + done * 0.2))
    plan = BudgetPlan(
        budget=float(budget),
        probability=probability,
        loss_weight=eta,
        expected_cost=float(costs.mean()),
        expected_cost_error=float(costs.std(ddof=1) / math.sqrt(len(costs))),
        payment_quantiles={q: float(np.quantile(totals, q)) for q in QUANTILES},
        draws=problem.draws,
        payment_draws=len(totals),
        seed=seed,
    )
    cache.put(problem.key, plan.__dict__)
    return plan


def loss_weight_fits_budget(
    mechanism: RangeMechanism,
    budget: float,
    loss_weight: float,
    *,
    prior: Prior,
    num_clients: int,
    probability: float | None = None,
    draws: int | None = None,
    seed: int = 0,
    cache: BudgetCache | None = None,
) -> bool:
    """Whether `loss_weight_for_budget` gives this η, to `ALIKE` in what it costs; quicker than finding it.

    The expected cost never falls as η rises, so one look at η settles it, or two beside it where the cost jumps over
    the budget. No payments are computed. With a `probability` there is no such shortcut, and the search is repeated.
    """
    problem = _Problem.of(mechanism, budget, prior, num_clients, probability, None, draws, seed)
    known = _restored((BudgetCache.default() if cache is None else cache).get(problem.key))
    if known is not None:
        return math.isclose(known.loss_weight, loss_weight, rel_tol=ALIKE)
    if not (math.isfinite(loss_weight) and loss_weight > 0):
        return False
    sample = problem.sample()
    if probability is not None:
        start = _expected(sample, budget, lambda done: None)
        found = _probable(sample, budget, probability, start, lambda done: None)
        return math.isclose(found, loss_weight, rel_tol=ALIKE)
    if math.isclose(float(sample.costs(loss_weight).mean()), budget, rel_tol=ALIKE):
        return True
    below, above = (float(sample.costs(loss_weight * (1 + step)).mean()) for step in (-ALIKE, ALIKE))
    return below <= budget < above


def check_budget(budget: float, probability: float | None = None) -> None:
    """Refuse an amount that cannot be spent, or a probability that is none."""
    if not (math.isfinite(budget) and budget > 0):
        raise InputError(f"budget is {budget!r}; it must be a positive number")
    if probability is not None and not 0 < probability < 1:
        raise InputError(f"the budget's probability is {probability!r}; it must lie strictly between 0 and 1")


@dataclass(frozen=True, kw_only=True)
class _Problem:
    """Everything on which η depends, checked."""

    mechanism: RangeMechanism
    template: Market
    rule: Rule
    draws: int
    payment_draws: int
    seed: int
    key: str | None

    @classmethod
    def of(
        cls,
        mechanism: RangeMechanism,
        budget: float,
        prior: Prior | Sequence[Prior],
        num_clients: int,
        probability: float | None,
        losses: FloatArray | None,
        draws: int | None,
        seed: int,
    ) -> _Problem:
        check_budget(budget, probability)
        template = _template(prior, num_clients, losses)
        rule = replace(mechanism, loss_weight=1.0).rule(len(mechanism.active(template)))
        draws = draws or _default_draws(num_clients, len(rule.profiles))
        payment_draws = int(min(draws, np.clip(40_000 // num_clients, 8, 400)))
        if probability is not None:
            # A share of 1 − P must be seen often enough to be told from none.
            payment_draws = max(payment_draws, math.ceil(10 / (1 - probability)))
        if draws < 2:
            raise InputError(f"draws is {draws}; at least 2 are needed")
        draws = max(draws, payment_draws)
        key = fingerprint(mechanism, template, budget=budget, probability=probability, draws=draws, seed=seed)
        return cls(
            mechanism=mechanism,
            template=template,
            rule=rule,
            draws=draws,
            payment_draws=payment_draws,
            seed=seed,
            key=key,
        )

    def sample(self) -> _Sample:
        return _Sample(self.mechanism, self.template, self.rule, self.draws, self.payment_draws, self.seed)


def _restored(stored: dict[str, Any] | None) -> BudgetPlan | None:
    """A plan from the cache; None if what is stored there is none."""
    try:
        plan = BudgetPlan(**(stored or {}))
    except TypeError:
        return None
    numbers: tuple[object, ...] = (
        plan.loss_weight,
        plan.expected_cost,
        plan.expected_cost_error,
        *plan.payment_quantiles.values(),
    )
    sound = all(isinstance(number, float) and math.isfinite(number) for number in numbers)
    return plan if sound and plan.loss_weight > 0 and tuple(plan.payment_quantiles) == QUANTILES else None


def _template(prior: Prior | Sequence[Prior], num_clients: int, losses: FloatArray | None) -> Market:
    """A market of typical reports: it carries priors and losses, none of the real reports."""
    if num_clients < 1:
        raise InputError(f"num_clients is {num_clients}; at least one is needed")
    if isinstance(prior, list | tuple):
        typical = [float(one.ppf(0.5)) for one in prior]
    else:
        typical = [float(prior.ppf(0.5))] * num_clients  # type: ignore[union-attr]
    return Market(sensitivities=np.array(typical), prior=prior, losses=losses)


def _default_draws(num_clients: int, num_profiles: int) -> int:
    """Fewer for large markets, whose cost varies little, and for wide ranges, which take long to search."""
    return int(np.clip(min(200_000 // num_clients, 1_000_000 // num_profiles), 16 if num_clients > 2000 else 200, 2000))


class _Sample:
    """Markets drawn once, on which every η is tried."""

    def __init__(
        self, mechanism: RangeMechanism, template: Market, rule: Rule, draws: int, payment_draws: int, seed: int
    ) -> None:
        self._mechanism, self._template, self._rule = mechanism, template, rule
        self.num_payments = payment_draws  # payments take longer than costs: fewer draws serve for their distribution
        rng = np.random.default_rng(np.random.SeedSequence([seed, 0xB0D6E7]))
        N = template.num_clients
        self._reports = np.empty((draws, N))
        v = np.empty((draws, N))
        for cost, members in template.cost_groups:
            reports = np.asarray(cost.prior.rvs(size=(draws, len(members)), random_state=rng), dtype=np.float64)
            # A draw at the very bottom has no price; the next double has.
            reports = np.clip(reports, max(cost.bottom, np.finfo(float).tiny * 1e10), cost.top)
            self._reports[:, members] = reports
            v[:, members] = mechanism.price(cost)(reports)
        rows = np.sort(v[:, mechanism.active(template)], axis=1)
        step = max(1, CHUNK // max(rows.shape[1], len(rule.profiles)))
        self._rows = [rows[start : start + step] for start in range(0, draws, step)]
        self._ranked = [SortedRows(part) for part in self._rows]

    def costs(self, eta: float) -> FloatArray:
        """Σ v ε of every draw."""
        rule = replace(self._rule, weights=replace(self._rule.weights, loss_weight=eta))
        parts = zip(self._ranked, self._rows, strict=True)
        return np.concatenate([minimise(rule, ranked, len(rows)).cost for ranked, rows in parts])

    def _total(self, mechanism: RangeMechanism, draw: int) -> float:
        market = replace(self._template, sensitivities=self._reports[draw])
        total = mechanism.plan(market).total_payment
        assert total is not None
        return total

    def _at(self, eta: float) -> RangeMechanism:
        return replace(self._mechanism, loss_weight=eta, tolerance=PAYMENT_TOLERANCE)

    def payments(self, eta: float, progress: FractionDone) -> FloatArray:
        """Σ π of the first draws."""
        mechanism, totals = self._at(eta), []
        for draw in range(self.num_payments):
            totals.append(self._total(mechanism, draw))
            progress((draw + 1) / self.num_payments)
        return np.array(totals)

    def affordable(self, eta: float, budget: float, probability: float) -> bool:
        """Whether Σπ ≤ budget in at least that share of the draws; stops as soon as too many are over."""
        mechanism, over = self._at(eta), 0
        allowed = math.floor((1 - probability) * self.num_payments + 1e-9)
        for draw in range(self.num_payments):
            over += self._total(mechanism, draw) > budget
            if over > allowed:
                return False
        return True


def _expected(sample: _Sample, budget: float, progress: FractionDone) -> float:
    """The largest η whose mean cost keeps to the budget, to a relative 1e-7 of the cost or 1e-9 of η.

    The cost of every draw never falls as η rises, so neither does their mean: a bracketed secant on logarithms, with a
    halving now and then for the steps that the mean makes where draws change profile.
    """

    def excess(log_eta: float) -> float:
        mean = float(sample.costs(math.exp(log_eta)).mean())
        return math.log(mean / budget) if mean > 0 else -math.inf

    low = high = math.log(budget)
    below = above = excess(low)
    while below > 0:
        high, above = low, below
        low -= 2.0
        below = excess(low)
    while above <= 0:
        low, below = high, above
        high += 2.0
        above = excess(high)
        if high > 600:
            raise InputError(
                f"budget {budget:g} is never spent at any loss weight that can be computed: lower it, or lift the caps"
                " if there are any"
            )
    for step in range(200):
        if below > -1e-7 or high - low < 1e-9:
            break
        progress(1 - 0.8 ** (step + 1))
        secant = low + (high - low) * below / (below - above) if math.isfinite(below) else low
        middle = (low + high) / 2 if step % 3 == 2 or not low < secant < high else secant
        value = excess(middle)
        if value <= 0:
            low, below = middle, value
        else:
            high, above = middle, value
    return math.exp(low)


def _probable(sample: _Sample, budget: float, probability: float, start: float, progress: FractionDone) -> float:
    """Scan η downwards in coarse, then in fine steps: Σπ may dip as η rises, so halving could miss the largest."""
    above = start
    while sample.affordable(above, budget, probability):
        above *= COARSE
    for step in range(400):
        progress(1 - 0.9 ** (step + 1))
        below = above / COARSE
        if sample.affordable(below, budget, probability):
            break
        above = below
    else:
        raise InputError(f"no loss weight keeps the payments within {budget:g} with probability {probability:g}")
    eta = above / FINE
    while eta > below * (1 + 1e-12) and not sample.affordable(eta, budget, probability):
        eta /= FINE
    return max(eta, below)
