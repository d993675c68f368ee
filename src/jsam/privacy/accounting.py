"""What the recorded releases cost each client, by two accountants, held against what the client sold (docs/theory.md).

The ledger says what happened; this says what it means. The first accountant is exact for Gaussian releases and rounds
up; the second, dp-accounting's privacy loss distributions, shares no formula with it.
"""

from __future__ import annotations

import importlib
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jsam.errors import InputError, NotSupportedError, install_hint
from jsam.privacy.adjacency import Adjacency
from jsam.privacy.gaussian import checked_delta, epsilon_of, gdp_mu
from jsam.privacy.releases import Client, Query, Release

Epsilons = Mapping[int, float] | Mapping[str, float] | Mapping[Client, float] | Sequence[float] | NDArray[np.float64]

# dp-accounting cuts tails off at 1e-15, so a smaller δ would drown in them.
SMALLEST_PLD_DELTA = 1e-12
# Its sums of e^(−loss) lose their digits near here and give infinity or a coarse bound further up.
LARGEST_PLD_EPSILON = 650.0
_PLD_CELL = 2e-3  # width of a cell, as a share of μ
# What that coarseness amounts to, as a relative error of μ: about 1e-6, and up to 4e-4 for the smallest δ.
PLD_TOLERANCE = 1e-3


def spent_mus(releases: Iterable[Release]) -> dict[Client, float]:
    """Each client's μ: Gaussian releases compose to μ² = Σ (sensitivity/std)², exactly; infinite where noise was 0."""
    return {client: math.hypot(*ratios) for client, ratios in _ratios(releases).items()}


def spent_epsilons(releases: Iterable[Release], delta: float) -> dict[Client, float]:
    """Each client's spent ε at δ by the exact accountant, never under-reported."""
    mus = spent_mus(releases)
    values = epsilon_of(np.array(list(mus.values()), dtype=np.float64), delta)
    return dict(zip(mus, values.tolist(), strict=True))


def spent_epsilons_pld(releases: Iterable[Release], delta: float) -> dict[Client, float]:
    """The same by dp-accounting's privacy loss distributions, a pessimistic estimate; equal histories computed once.

    Above `LARGEST_PLD_EPSILON`, where those overflow, by dp-accounting's own curve of the composed Gaussian.
    """
    checked_delta(delta)
    if delta < SMALLEST_PLD_DELTA:
        raise NotSupportedError(f"delta is {delta:g}; dp-accounting's PLD needs at least {SMALLEST_PLD_DELTA:g}")
    known: dict[tuple[tuple[float, int], ...], float] = {}
    spent: dict[Client, float] = {}
    for client, ratios in _ratios(releases).items():
        history = tuple(sorted(Counter(ratios).items()))
        if history not in known:
            known[history] = _pld_epsilon(history, delta)
        spent[client] = known[history]
    return spent


def _pld_epsilon(history: tuple[tuple[float, int], ...], delta: float) -> float:
    try:
        dp_accounting = importlib.import_module("dp_accounting")
    except ImportError as error:
        raise NotSupportedError(f"the second accountant needs dp-accounting; {install_hint('train')}") from error
    mu = math.hypot(*(ratio * math.sqrt(count) for ratio, count in history))
    if mu in (0.0, math.inf):
        return mu
    with np.errstate(divide="ignore"):
        closed_form = float(dp_accounting.get_epsilon_gaussian(1 / mu, delta))
    if closed_form > LARGEST_PLD_EPSILON:
        return closed_form
    # The recorded sensitivity has the adjacency in it already, so the plain mechanism is the right event for either.
    accountant = dp_accounting.pld.PLDAccountant(
        dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=mu * _PLD_CELL
    )
    for ratio, count in history:
        if ratio > 0:
            accountant.compose(dp_accounting.GaussianDpEvent(1 / ratio), count)
    return float(accountant.get_epsilon(delta))


def _ratios(releases: Iterable[Release]) -> dict[Client, list[float]]:
    ratios: defaultdict[Client, list[float]] = defaultdict(list)
    seen: Adjacency | None = None
    for release in releases:
        if seen is not None and release.adjacency is not seen:
            raise InputError(
                f"the ledger has releases for adjacency {seen} and for {release.adjacency}; it must have one"
            )
        seen = release.adjacency
        ratios[release.client].append(release.sensitivity / release.noise_std if release.noise_std > 0 else math.inf)
    return dict(ratios)


@dataclass(frozen=True, kw_only=True)
class ClientSpending:
    """One client's side of the contract. `second_opinion` is None where it was not asked for.

    `over`: by the exact accountant, with no tolerance; or by the second, beyond its own coarseness; or for having taken
    part without having sold anything.
    """

    client: Client
    bought: float
    spent: float
    second_opinion: float | None
    releases: int
    participations: int
    over: bool


@dataclass(frozen=True, kw_only=True)
class ContractReport:
    """Every client of the contract and of the ledger, in the contract's order; strangers to the contract come last."""

    delta: float
    adjacency: Adjacency | None
    clients: tuple[ClientSpending, ...]

    @property
    def violations(self) -> tuple[ClientSpending, ...]:
        return tuple(entry for entry in self.clients if entry.over)

    @property
    def kept(self) -> bool:
        return not self.violations

    def lines(self) -> list[str]:
        """The verdict in words, then one line for each client over its contract."""
        about = f"δ = {self.delta:g}" + (f", {self.adjacency.words}" if self.adjacency is not None else "")
        if self.kept:
            sellers = sum(entry.bought > 0 for entry in self.clients)
            return [
                f"no contract was overspent: {sellers} client{'' if sellers == 1 else 's'} under contract ({about})"
            ]
        head = f"{len(self.violations)} of {len(self.clients)} clients are OVER their contract ({about})"
        return [head, *(_over_line(entry) for entry in self.violations)]


def _over_line(entry: ClientSpending) -> str:
    second = "" if entry.second_opinion is None else f", second accountant {entry.second_opinion:.6g}"
    return (
        f"client {entry.client}: sold ε = {entry.bought:.6g}, spent {entry.spent:.6g}{second}, "
        f"in {entry.releases} releases of {entry.participations} draws"
    )


def check_contract(
    releases: Iterable[Release],
    epsilons_bought: Epsilons,
    delta: float,
    *,
    accountant: Accountant | None = None,
    second_opinion: bool = False,
) -> ContractReport:
    """Hold the ledger against the ε each client sold, by client name or, for a sequence, by index.

    The accountant is the one of the noise that was released; for Gaussian noise it need not be given. A client in the
    ledger but not in the contract sold nothing, so it is over by taking part.
    """
    recorded = tuple(releases)
    accountant = accountant or GAUSSIAN
    exact = accountant.spent(recorded, delta)
    second = accountant.second_opinion(recorded, delta) if second_opinion else {}
    bought = _bought(epsilons_bought)
    clients: list[Client] = list(dict.fromkeys([*bought, *exact]))
    limits = accountant.second_limits([bought.get(client, 0.0) for client in clients], delta)
    counts: Counter[Client] = Counter()
    draws: Counter[Client] = Counter()
    for release in recorded:
        counts[release.client] += 1
        draws[release.client] += release.multiplicity if release.query is Query.GRADIENT else 0
    entries = []
    for client, limit in zip(clients, limits, strict=True):
        sold, spent, other = bought.get(client, 0.0), exact.get(client, 0.0), second.get(client, 0.0)
        entries.append(
            ClientSpending(
                client=client,
                bought=sold,
                spent=spent,
                second_opinion=other if second_opinion else None,
                releases=counts[client],
                participations=draws[client],
                over=spent > sold or other > limit or (sold == 0 and counts[client] > 0),
            )
        )
    return ContractReport(delta=delta, adjacency=recorded[0].adjacency if recorded else None, clients=tuple(entries))


def _bought(epsilons: Epsilons) -> dict[Client, float]:
    pairs = epsilons.items() if isinstance(epsilons, Mapping) else enumerate(epsilons)
    bought: dict[Client, float] = {client: float(value) for client, value in pairs}
    for client, value in bought.items():
        if not value >= 0:
            raise InputError(f"epsilon bought from client {client} is {value:g}; it must be at least 0")
    return bought


def _second_limits(bought: Sequence[float], delta: float) -> list[float]:
    eps = np.array(bought, dtype=np.float64)
    limits = np.full(eps.shape, np.inf)
    some = np.isfinite(eps)
    limits[some] = epsilon_of(gdp_mu(eps[some], delta) * (1 + PLD_TOLERANCE), delta)
    return [float(limit) for limit in limits]


@dataclass(frozen=True, kw_only=True)
class Accountant:
    """What releases of one kind of noise cost each client, by two ways that share no formula."""

    spent: Callable[[Iterable[Release], float], dict[Client, float]]  # ε at δ, never under-reported
    second_opinion: Callable[[Iterable[Release], float], dict[Client, float]]
    second_limits: Callable[[Sequence[float], float], list[float]]  # the sold ε, widened by the second one's coarseness


GAUSSIAN = Accountant(spent=spent_epsilons, second_opinion=spent_epsilons_pld, second_limits=_second_limits)
