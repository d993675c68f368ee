"""From a budget to η, before any report is read.

Fitting η to the reports so that the cost meets the budget breaks truthfulness: a client could shift η, and with it
everybody's ε, by its own report (docs/theory.md, "Why η is not fitted to the reports"). So η comes from the prior and
the number of clients alone. The markets drawn from the prior are a sample, so η is the largest at which the *bound* on
E[Σ v ε], or on P(Σ π ≤ budget), keeps to what was asked for. The bound is wrong with probability 1 − CONFIDENCE at
most (docs/theory.md, "On the safe side").
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from jsam.errors import InputError, UnequalDataError
from jsam.mechanism._arrays import FloatArray
from jsam.mechanism.budget.binomial import least_draws, lower_bound
from jsam.mechanism.budget.budget_cache import BudgetCache, fingerprint
from jsam.mechanism.budget.drawn_markets import CONFIDENCE, CostSample, Tables
from jsam.mechanism.budget.drawn_payments import DrawnPayments
from jsam.mechanism.budget.drawn_sizes import SizedCosts, SizedPayments
from jsam.mechanism.budget.expected_payments import PaymentSample
from jsam.mechanism.budget.loss_weight_search import FractionDone, largest_expected, largest_probable
from jsam.mechanism.families.base import RangeMechanism
from jsam.mechanism.market import Market
from jsam.mechanism.priors import Prior
from jsam.mechanism.solver.allocation import Rule

SIZED_DRAWS = 400  # at most, of clients with different amounts of data, for a probability: each is a whole plan
FOR_QUANTILES = 256  # payments of so many markets describe what may fall due
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99)

# Another machine's rounding, and where the search stops, move costs and η by less (relative).
ALIKE = 1e-6


@dataclass(frozen=True, kw_only=True)
class BudgetPlan:
    """The η that a budget buys, what may fall due under it, and how sure that is."""

    budget: float
    probability: float | None  # None: the budget holds in expectation
    loss_weight: float
    expected_cost: float
    expected_cost_error: float  # standard error over the draws
    expected_cost_bound: float  # what the expected cost is at most, with the confidence below
    confidence: float  # of each bound, over the markets that were drawn
    probability_seen: float  # share of drawn markets whose payments stay within the budget
    probability_bound: float  # what their probability is at least, with the confidence above
    payment_quantiles: dict[float, float]  # of Σπ
    draws: int
    payment_draws: int  # other draws, those whose payments were computed
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
    samples: Sequence[int] | None = None,
    draws: int | None = None,
    seed: int = 0,
    cache: BudgetCache | None = None,
    progress: FractionDone | None = None,
) -> BudgetPlan:
    """The largest η under which `mechanism` (its own η is ignored) keeps to `budget` over markets drawn from the prior.

    With `probability` the total payment Σπ stays within the budget at least that often; without, the expected cost
    stays within it. Either holds with `CONFIDENCE` over the markets that are drawn to find η. They are the same for
    every η and follow from `seed`, so equal inputs give equal η. Results are kept in `cache` (default: the user's cache
    folder).

    >>> import scipy.stats
    >>> from jsam.mechanism.families.usbm import USBM
    >>> prior = scipy.stats.uniform(0, 1)
    >>> plan = loss_weight_for_budget(USBM(loss_weight=1.0), 5.0, prior=prior, num_clients=10, draws=500)
    >>> plan.expected_cost < plan.expected_cost_bound <= 5.0
    True
    """
    problem = _problem(mechanism, budget, prior, num_clients, probability, losses, draws, seed, samples)
    cache = BudgetCache.default() if cache is None else cache
    known = _restored(cache.get(problem.key))
    if known is not None:
        return known
    plan = problem.solved(progress or (lambda done: None))
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
    samples: Sequence[int] | None = None,
    draws: int | None = None,
    seed: int = 0,
    cache: BudgetCache | None = None,
) -> bool:
    """Whether `loss_weight_for_budget` gives this η, to `ALIKE` in what it costs; quicker than finding it.

    One look at the bound on the expected cost settles it, or two beside it where the cost jumps over the budget. No
    payments are computed. With a `probability` there is no such shortcut, and the search is repeated.
    """
    problem = _problem(mechanism, budget, prior, num_clients, probability, None, draws, seed, samples)
    known = _restored((BudgetCache.default() if cache is None else cache).get(problem.key))
    if known is not None:
        return math.isclose(known.loss_weight, loss_weight, rel_tol=ALIKE)
    if not (math.isfinite(loss_weight) and loss_weight > 0):
        return False
    tables = Tables(problem.mechanism, problem.template)
    sample = problem.cost_sample(tables)
    if probability is not None:
        start = largest_expected(sample, budget)
        largest = largest_probable(problem.payments(tables), budget, probability, start)
        return math.isclose(largest, loss_weight, rel_tol=ALIKE)
    if math.isclose(sample.expected_cost(loss_weight).bound, budget, rel_tol=ALIKE):
        return True
    below, above = (sample.expected_cost(loss_weight * (1 + step)).bound for step in (-ALIKE, ALIKE))
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
    budget: float
    probability: float | None
    draws: int
    payment_draws: int
    seed: int

    @property
    def key(self) -> str | None:
        """What the answer is kept under."""
        inputs = {name: getattr(self, name) for name in ("budget", "probability", "draws", "payment_draws", "seed")}
        return fingerprint(self.mechanism, self.template, **inputs)

    def cost_sample(self, tables: Tables) -> CostSample | PaymentSample:
        if self.mechanism.counts_sizes(self.template):
            return SizedCosts(self.mechanism, self.template, tables, self._random(0))
        if self.mechanism.efficient:
            return PaymentSample(self.payments(tables))
        active = self.mechanism.active(self.template)
        return CostSample(self.rule, tables, active, self.template.num_clients, self.draws, self._random(0))

    def payments(self, tables: Tables) -> DrawnPayments:
        return DrawnPayments(self.mechanism, self.template, self.rule, tables, self.payment_draws, self._random(1))

    def _sized_payments(self, tables: Tables) -> SizedPayments:
        return SizedPayments(self.mechanism, self.template, tables, self._random(1))

    def _random(self, purpose: int) -> np.random.Generator:
        return np.random.default_rng(np.random.SeedSequence([self.seed, 0xB0D6E7, purpose]))

    def solved(self, tell: FractionDone) -> BudgetPlan:
        tables = Tables(self.mechanism, self.template)
        sample = self.cost_sample(tables)
        certified = self.probability is not None or not self.mechanism.counts_sizes(self.template)
        payments = self.payments(tables) if certified else self._sized_payments(tables)
        eta = largest_expected(sample, self.budget, lambda done: tell(done * 0.5))
        if self.probability is not None:
            assert isinstance(payments, DrawnPayments)
            eta = largest_probable(payments, self.budget, self.probability, eta, lambda done: tell(0.5 + done * 0.4))
        cost, totals = sample.expected_cost(eta), payments.totals(eta)
        tell(1.0)
        within = int((totals.most <= self.budget).sum())
        return BudgetPlan(
            budget=float(self.budget),
            probability=self.probability,
            loss_weight=eta,
            expected_cost=cost.mean,
            expected_cost_error=cost.error,
            expected_cost_bound=cost.bound,
            confidence=CONFIDENCE,
            probability_seen=within / payments.draws,
            probability_bound=lower_bound(within, payments.draws, CONFIDENCE),
            payment_quantiles={q: float(np.quantile(totals.amounts, q)) for q in QUANTILES},
            draws=sample.draws,
            payment_draws=payments.draws,
            seed=self.seed,
        )


def _problem(
    mechanism: RangeMechanism,
    budget: float,
    prior: Prior | Sequence[Prior],
    num_clients: int,
    probability: float | None,
    losses: FloatArray | None,
    draws: int | None,
    seed: int,
    samples: Sequence[int] | None = None,
) -> _Problem:
    check_budget(budget, probability)
    if draws is not None and draws < 2:
        raise InputError(f"draws is {draws}; at least 2 are needed")
    template = _template(prior, num_clients, losses, samples)
    if probability is not None and mechanism.counts_sizes(template) and mechanism.max_epsilon is not None:
        raise UnequalDataError(
            "a budget with a probability is not there for clients with different numbers of samples under a cap on ε;"
            " give the budget alone, which then holds in expectation, or no max_epsilon"
        )
    rule = replace(mechanism, loss_weight=1.0).rule(len(mechanism.active(template)))
    costs, payments = _default_draws(num_clients, rule, probability)
    if draws is not None:
        costs, payments = draws, min(draws, payments)
    if probability is not None:
        if mechanism.counts_sizes(template):
            payments = min(payments, SIZED_DRAWS)
        payments = max(payments, least_draws(probability, CONFIDENCE))
    return _Problem(
        mechanism=mechanism,
        template=template,
        rule=rule,
        budget=budget,
        probability=probability,
        draws=costs,
        payment_draws=payments,
        seed=seed,
    )


def _restored(stored: dict[str, Any] | None) -> BudgetPlan | None:
    """A plan from the cache; None if what is stored there is none."""
    try:
        plan = BudgetPlan(**(stored or {}))
    except TypeError:
        return None
    stated = [getattr(plan, field.name) for field in fields(plan) if field.type == "float"]
    numbers: list[object] = [*stated, *plan.payment_quantiles.values()]
    sound = all(isinstance(number, float) and math.isfinite(number) for number in numbers)
    return plan if sound and plan.loss_weight > 0 and tuple(plan.payment_quantiles) == QUANTILES else None


def _template(
    prior: Prior | Sequence[Prior],
    num_clients: int,
    losses: FloatArray | None = None,
    samples: Sequence[int] | None = None,
) -> Market:
    """A market of typical reports: it carries priors, losses and sizes, none of the real reports."""
    if num_clients < 1:
        raise InputError(f"num_clients is {num_clients}; at least one is needed")
    if isinstance(prior, list | tuple):
        typical = [float(own.ppf(0.5)) for own in prior]
    else:
        typical = [float(prior.ppf(0.5))] * num_clients  # type: ignore[union-attr]
    if samples is not None and losses is None and not isinstance(prior, list | tuple):
        # Clients who are alike in all but their sizes: then no order of theirs moves what a budget buys.
        samples = sorted(samples)
    return Market(sensitivities=np.array(typical), prior=prior, losses=losses, samples=samples)


def _default_draws(num_clients: int, rule: Rule, probability: float | None) -> tuple[int, int]:
    """For costs and for payments; fewer for large markets, which vary little, and where each takes long."""
    capped = rule.profiles.floors is not None or rule.weights.max_epsilon is not None
    certified = int(rule.profiles.num_selected.min()) == rule.profiles.num_clients
    costs = min(200_000 // num_clients, 1_000_000 // len(rule.profiles)) // (10 if capped else 1)
    payments = 20_000 // num_clients // (8 if capped or certified else 1)
    if probability is None:
        payments = min(payments, FOR_QUANTILES // (2 if certified else 1))
    return int(np.clip(costs, 32 if num_clients > 2000 else 256, 65_536)), int(np.clip(payments, 16, 4_096))
