"""A prior that nobody has to know beforehand: two random halves of the clients, each planned with the other's reports.

The halves are drawn before the reports. Each is a market of its own, whose prior is learned from the reports of the
other half. So a client's report moves its own half's contract as in every market, and the other half's prior; it moves
neither its own prior nor what its own half competes for (docs/manipulation.md, "A prior learned from the other half").
One market over everybody with two learned priors would not do: a report would move the others' virtual costs there, and
through them its own contract.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from jsam.errors import InputError, NotSupportedError
from jsam.mechanism._arrays import FloatArray, IntArray
from jsam.mechanism.budget.loss_weight import loss_weight_for_budget
from jsam.mechanism.contract import Contract
from jsam.mechanism.families.base import RangeMechanism, Responses
from jsam.mechanism.market import Market
from jsam.mechanism.priors import EmpiricalPrior, Prior
from jsam.mechanism.solver.payments import Progress
from jsam.mechanism.solver.profiles import Profiles

HALVES = "halves"  # as a prior is written
FEWEST = 5  # reports that a prior is learned from
Learner = Callable[[FloatArray], Prior]


def members_of_halves(names: Sequence[str], seed: int) -> tuple[IntArray, IntArray]:
    """The positions of two halves, in the order of a hash of seed and name: no report and no file order sways it."""
    keys = [hashlib.sha256(f"{seed}:{name}".encode()).digest() for name in names]
    order = np.array(sorted(range(len(keys)), key=keys.__getitem__))
    half = (len(order) + 1) // 2
    return np.sort(order[:half]), np.sort(order[half:])


def smooth_prior(reports: FloatArray) -> Prior:
    """The prior that is learned where nothing else is asked for."""
    return EmpiricalPrior(reports=reports)


def learned_priors(
    reports: FloatArray, names: Sequence[str], seed: int, learn: Learner = smooth_prior
) -> tuple[Prior, ...]:
    """Each client's prior, learned from the reports of the half to which it does not belong."""
    if len(reports) < 2 * FEWEST:
        raise InputError(
            f"prior {HALVES} learns from the reports of each half: at least {2 * FEWEST} clients are needed, there are"
            f" {len(reports)}"
        )
    first, second = members_of_halves(names, seed)
    of_first, of_second = learn(reports[second]), learn(reports[first])
    in_first = set(first.tolist())
    return tuple(of_first if client in in_first else of_second for client in range(len(reports)))


@dataclass(frozen=True, kw_only=True)
class Half:
    """One half of a market: its members, the share of all draws and of the budget that it has, and its own rules."""

    members: IntArray
    share: float
    market: Market
    mechanism: RangeMechanism


@dataclass(frozen=True, kw_only=True, eq=False)
class ByHalves(RangeMechanism):
    """A mechanism that plans two halves of the clients apart, each under the prior that its members have.

    A half has the share of the draws, the loss weight and the budget that its members' data are of all data. If the two
    halves are alike, each minimises half of the objective of the whole. The weights are those of the whole market.
    """

    minimises_another_loss: ClassVar[bool] = True  # two objectives, and not that of the contract of both

    inner: RangeMechanism
    seed: int = 0
    found_for: tuple[float, float] | None = None  # the loss weights of the halves, where a budget gave them

    @classmethod
    def of(cls, inner: RangeMechanism, seed: int) -> ByHalves:
        """The mechanism `inner` by halves that this seed draws."""
        if inner.spends_budget or any(not need.in_market for need in inner.needs):
            raise NotSupportedError(f"{inner.name} cannot be planned by halves; take jsam-even, jsam, usbm or fsbm-M")
        return cls(inner=inner, seed=seed, tolerance=inner.tolerance, **vars(inner.weights))

    def __post_init__(self) -> None:
        super().__post_init__()
        for said in ("truthful", "bias_rule", "knows_sensitivities"):
            object.__setattr__(self, said, getattr(self.inner, said))

    @property
    def name(self) -> str:
        return f"{self.inner.name} by halves"

    def profiles(self, num_clients: int) -> Profiles:
        raise InputError(f"{self.name} plans two markets and has no range of its own; it needs the clients themselves")

    def check_unequal_data(self) -> None:
        """As the mechanism of each half does."""
        self.inner.check_unequal_data()

    def with_loss_weight(self, loss_weight: float) -> Self:
        return replace(self, loss_weight=loss_weight, inner=self.inner.with_loss_weight(loss_weight), found_for=None)

    def within(self, budget: float, market: Market) -> Self:
        """The same with loss weights that keep each half within its share of the budget, in expectation.

        Each half's loss weight follows from its own prior, which the other half's reports gave.
        """
        found = [
            loss_weight_for_budget(
                half.mechanism,
                budget * half.share,
                prior=half.market.prior,
                num_clients=half.market.num_clients,
                losses=half.market.losses,
                samples=half.market.samples,
                seed=self.seed,
            ).loss_weight
            for half in self.halves(market)
        ]
        return replace(self, loss_weight=sum(found), found_for=(found[0], found[1]))

    def halves(self, market: Market) -> tuple[Half, Half]:
        """The two halves of a market, which follow from seed and ids alone."""
        names = [market.name_of(client) for client in range(market.num_clients)]
        first, second = (
            self._half(market, members, i) for i, members in enumerate(members_of_halves(names, self.seed))
        )
        return first, second

    def _half(self, market: Market, members: IntArray, number: int) -> Half:
        if len(members) == 0:
            raise InputError("a market of one client has no halves; at least two are needed")
        shares = market.data_shares
        share = len(members) / market.num_clients if shares is None else float(shares[members].sum())

        def some(values: Any) -> Any:
            return None if values is None else [values[client] for client in members]

        prior: Any = market.prior
        own = Market(
            sensitivities=market.sensitivities[members],
            prior=some(prior) if isinstance(prior, tuple) else prior,
            ids=some(market.ids),
            samples=some(market.samples),
            losses=None if market.losses is None else market.losses[members],
        )
        mechanism = _for_a_half(self.inner, share)
        if self.found_for is not None:
            mechanism = mechanism.with_loss_weight(self.found_for[number])
        return Half(members=members, share=share, market=own, mechanism=mechanism)

    def plan(self, market: Market, *, payments: bool = True, progress: Progress | None = None) -> Contract:
        halves = self.halves(market)
        contracts = [half.mechanism.plan(half.market, payments=payments, progress=progress) for half in halves]

        def joined(of: Callable[[Half, Contract], FloatArray]) -> FloatArray:
            values = np.empty(market.num_clients)
            for half, contract in zip(halves, contracts, strict=True):
                values[half.members] = of(half, contract)
            return values

        errors = [contract.payment_error_bound for contract in contracts]
        return Contract(
            mechanism=self.name,
            truthful=self.truthful,
            names=None if market.ids is None else tuple(market.ids),
            sensitivities=market.sensitivities,
            virtual_costs=joined(lambda half, contract: contract.virtual_costs),
            selection_probs=joined(lambda half, contract: half.share * contract.selection_probs),
            epsilons=joined(lambda half, contract: contract.epsilons),
            payments=joined(lambda half, contract: np.asarray(contract.payments)) if payments else None,
            data_shares=market.data_shares,
            bias_rule=self.bias_rule,
            weights=replace(self.inner.weights_for(market), loss_weight=self.loss_weight),
            ironed=market.ironed,
            payment_error_bound=max((error for error in errors if error is not None), default=None),
        )

    def respond(self, market: Market, client: int, reports: FloatArray, *, payments: bool = True) -> Responses:
        half = next(half for half in self.halves(market) if client in half.members)
        position = int(np.flatnonzero(half.members == client)[0])
        return half.mechanism.respond(half.market, position, reports, payments=payments)


def _for_a_half(mechanism: RangeMechanism, share: float) -> RangeMechanism:
    """The rules of a half, such that two halves that are alike have together the loss and the cost of the whole.

    The whole's noise Σp²/ε² is the share of a half's, and its squared bias too where it is that of a sample. Caps and
    floors on p and numbers of clients are those of the whole.
    """
    weights = mechanism.weights
    cap, floor, least = weights.max_selection_prob, weights.min_selection_prob, weights.min_clients
    changed: dict[str, Any] = {
        "loss_weight": weights.loss_weight * share,
        "noise_weight": weights.noise_weight * share,
        "bias_weight": weights.bias_weight * (math.sqrt(share) if mechanism.bias_rule == "sample" else 1.0),
        "max_selection_prob": None if cap is None or cap >= share else cap / share,
        "min_selection_prob": None if floor is None else min(floor / share, 1.0),
        "min_clients": None if least is None else math.ceil(least * share),
    }
    if (num_selected := getattr(mechanism, "num_selected", None)) is not None:
        changed["num_selected"] = max(1, round(num_selected * share))
    return replace(mechanism, **changed)


def plan_by_halves(
    mechanism: RangeMechanism,
    sensitivities: Sequence[float] | FloatArray,
    *,
    ids: Sequence[str] | None = None,
    samples: Sequence[int] | None = None,
    losses: FloatArray | None = None,
    seed: int = 0,
    learn: Learner = smooth_prior,
) -> Contract:
    """The contract of reports without a prior: each half's is learned from the other half.

    >>> from jsam.mechanism.families import EvenJSAM
    >>> reports = [0.1, 0.2, 0.25, 0.3, 0.4, 0.45, 0.5, 0.6, 0.7, 0.9]
    >>> plan_by_halves(EvenJSAM(loss_weight=5.0), reports).mechanism
    'jsam-even by halves'
    """
    reports = np.asarray(sensitivities, dtype=np.float64)
    names = [str(client) for client in range(len(reports))] if ids is None else [str(name) for name in ids]
    prior = learned_priors(reports, names, seed, learn)
    market = Market(sensitivities=reports, prior=prior, ids=ids, samples=samples, losses=losses)
    return ByHalves.of(mechanism, seed).plan(market)
