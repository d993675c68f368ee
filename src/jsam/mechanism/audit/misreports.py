"""What one client could report instead of the truth, and what that would bring it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from jsam.mechanism._arrays import BoolArray, FloatArray
from jsam.mechanism.audit.virtual_costs import spikes
from jsam.mechanism.contract import Contract
from jsam.mechanism.families.base import Mechanism
from jsam.mechanism.market import SMALLEST, Market

# Reports asked about in one call: enough to share work, few enough that a mechanism which bounds a whole batch at once
# does not have to span the support.
BATCH = 16
EDGE = 1e-6  # quantile at which an open end of the support is cut for a grid of lies
TAILS = 10.0 ** -np.array([7.1, 8.0, 9.0, 12.0, 15.0])  # quantiles beyond it at which lies are tried one by one
BESIDE = 1e-9  # how far beside another's report, relatively: ranks switch there
NEIGHBOURS = 8
STEPS = 6  # of the largest falls of ε whose two sides are asked about
ZOOM = 12
LARGEST = 640.0  # of log F − log f: beyond, a virtual cost is near the largest double or infinite


@dataclass(frozen=True, kw_only=True, eq=False)
class Probe:
    """One client's ε at many reports, its utility at some of them, and the best lie among those."""

    client: int
    truth: float
    epsilon: float
    payment: float
    scale: float  # what a gain is measured against where payments are tiny
    scan: FloatArray = field(repr=False)  # reports at which only ε is known
    scan_epsilons: FloatArray = field(repr=False)
    reports: FloatArray = field(repr=False)
    epsilons: FloatArray = field(repr=False)
    payments: FloatArray = field(repr=False)

    @property
    def utility(self) -> float:
        return self.payment - self.truth * self.epsilon

    @property
    def gains(self) -> FloatArray:
        return np.asarray(self.payments - self.truth * self.epsilons - self.utility)

    @property
    def relative_gains(self) -> FloatArray:
        """Gains over the larger of the truthful and the lying payment."""
        return np.asarray(self.gains / np.maximum(np.maximum(self.payment, self.payments), self.scale))

    @property
    def worst(self) -> int:
        """Index of the lie that brings most; the truth itself is none."""
        gains = self.relative_gains
        return int(np.argmax(np.where((self.reports == self.truth) | np.isnan(gains), -math.inf, gains)))

    @property
    def worst_report(self) -> float:
        return float(self.reports[self.worst])

    @property
    def gain(self) -> float:
        """What the best lie brings, in money; negative where every lie loses."""
        return float(self.gains[self.worst])

    @property
    def relative_gain(self) -> float:
        return float(self.relative_gains[self.worst])

    @property
    def rise(self) -> tuple[float, float, float]:
        """The largest relative rise of ε between neighbouring reports, and those two reports."""
        low, high = self.scan_epsilons[:-1], self.scan_epsilons[1:]
        rises = (high - low) / np.maximum(np.maximum(low, high), np.finfo(np.float64).tiny)
        i = int(np.argmax(np.where(np.isnan(rises), -math.inf, rises)))
        return float(rises[i]), float(self.scan[i]), float(self.scan[i + 1])

    @property
    def senseless(self) -> float | None:
        """A report that is answered with something other than numbers of 0 or more, if there is one."""
        good = np.isfinite(self.epsilons) & (self.epsilons >= 0) & np.isfinite(self.payments)
        if not good.all():
            return float(self.reports[~good][0])
        fine = np.isfinite(self.scan_epsilons) & (self.scan_epsilons >= 0)
        return None if fine.all() else float(self.scan[~fine][0])


def prior_of(market: Market, client: int) -> Any:
    return market.prior[client] if isinstance(market.prior, tuple) else market.prior


def by_prior(market: Market) -> list[tuple[Any, list[int]]]:
    """Each distinct prior with the clients it belongs to."""
    members: dict[int, list[int]] = {}
    for client in range(market.num_clients):
        members.setdefault(id(prior_of(market, client)), []).append(client)
    return [(prior_of(market, clients[0]), clients) for clients in members.values()]


def support_for_lies(prior: Any, truth: float) -> tuple[float, float]:
    """The lowest and highest report to try: an end of the support where v is finite there, else a far quantile."""
    bottom, top = (float(x) for x in prior.support())
    low = bottom if bottom > 0 else float(prior.ppf(EDGE))
    closed = math.isfinite(top) and bool(priced(prior, np.array([top]))[0])
    high = top if closed else float(prior.isf(EDGE))
    return min(low, truth), max(high, truth)


def priced(prior: Any, z: FloatArray) -> BoolArray:
    """Where a virtual cost is a number; elsewhere the density has vanished, and no report can be answered."""
    with np.errstate(all="ignore"):
        log_pdf = np.asarray(prior.logpdf(z), dtype=np.float64)
        return np.isfinite(log_pdf) & ~(np.asarray(prior.logcdf(z)) - log_pdf > LARGEST)


def probe(
    market: Market,
    mechanism: Mechanism,
    contract: Contract,
    client: int,
    *,
    grid: int,
    dense: int,
    rng: np.random.Generator,
) -> Probe:
    """Try lies of one client against the contract that the truth gets it: a coarse grid, then around the best.

    ε alone is asked for at `dense` more reports, which lie elsewhere for every client.
    """
    assert contract.payments is not None
    truth = float(market.sensitivities[client])
    scan = _scan_points(market, client, grid, dense, rng)
    eps = ask(mechanism, market, client, scan, payments=False)[0]
    asked = _points_to_price(market, client, grid, scan, eps)
    sold, paid = ask(mechanism, market, client, asked)
    first = Probe(
        client=client,
        truth=truth,
        epsilon=float(contract.epsilons[client]),
        payment=float(contract.payments[client]),
        scale=max(1e-9 * float(contract.payments.sum()), float(np.finfo(np.float64).tiny)),
        scan=scan,
        scan_epsilons=eps,
        reports=asked,
        epsilons=sold,
        payments=paid,
    )
    return refined(first, market, mechanism)


def refined(tried: Probe, market: Market, mechanism: Mechanism) -> Probe:
    """The same with more reports between the neighbours of the best lie."""
    i, z = tried.worst, tried.reports
    low, high = z[max(i - 1, 0)], z[min(i + 1, len(z) - 1)]
    new = np.setdiff1d(np.linspace(low, high, ZOOM + 2)[1:-1], z)
    if len(new) == 0:
        return tried
    eps, paid = ask(mechanism, market, tried.client, new)
    order = np.argsort(np.concatenate([z, new]), kind="stable")
    return replace(
        tried,
        reports=np.concatenate([z, new])[order],
        epsilons=np.concatenate([tried.epsilons, eps])[order],
        payments=np.concatenate([tried.payments, paid])[order],
    )


def ask(
    mechanism: Mechanism, market: Market, client: int, reports: FloatArray, *, payments: bool = True
) -> tuple[FloatArray, FloatArray]:
    """ε and payment for each report (in rising order); without payments all are asked about at once."""
    step = BATCH if payments else max(len(reports), 1)
    answers = [
        mechanism.respond(market, client, reports[start : start + step], payments=payments)
        for start in range(0, len(reports), step)
    ]
    return (
        np.concatenate([np.asarray(answer.epsilons, dtype=np.float64) for answer in answers]),
        np.concatenate([np.asarray(answer.payments, dtype=np.float64) for answer in answers]),
    )


def _inside(points: FloatArray, low: float, high: float) -> FloatArray:
    return np.unique(points[(points >= low) & (points <= high)])


def _quantiles(prior: Any, count: int) -> FloatArray:
    tails = np.array([1e-6, 1e-4, 1e-2])
    levels = np.concatenate([tails, (np.arange(count) + 0.5) / count, 1 - tails])
    return np.asarray(prior.ppf(levels), dtype=np.float64)


def _around(truth: float, finest: int) -> FloatArray:
    scales = 10.0 ** -np.arange(1, finest + 1)
    return truth * np.concatenate([1 - scales, [1.0], 1 + scales])


def _beside(reports: FloatArray) -> FloatArray:
    return np.concatenate([reports * (1 - BESIDE), reports * (1 + BESIDE)])


def _others(market: Market, client: int, near: int) -> FloatArray:
    """The reports whose order with this client's matters most: the nearest on both sides and the two cheapest."""
    others = np.sort(np.delete(market.sensitivities, client))
    place = int(np.searchsorted(others, market.sensitivities[client]))
    return np.unique(np.concatenate([others[:2], others[max(place - near, 0) : place + near]]))


def _far_out(market: Market, client: int) -> FloatArray:
    """Reports closer to the ends of the support than any grid comes, where a rule of its own could hide."""
    prior = prior_of(market, client)
    low, high = support_for_lies(prior, float(market.sensitivities[client]))
    points = np.concatenate([high * (1 - TAILS), low * (1 + TAILS), prior.isf(TAILS), prior.ppf(TAILS)])
    possible = priced(prior, points) & (points >= SMALLEST) & np.isfinite(points)
    return np.unique(points[possible])


def _shifted(low: float, high: float, count: int, rng: np.random.Generator) -> FloatArray:
    """`count` reports in equal steps with a random start: over many clients they leave no wide gap."""
    return np.asarray(low + (high - low) * (np.arange(count) + rng.random()) / max(count, 1))


def round_numbers(low: float, high: float) -> FloatArray:
    """Reports that a person would call round: 1 to 9 times a power of ten, and the halves between."""
    powers = 10.0 ** np.arange(math.floor(math.log10(high)) - 2, math.floor(math.log10(high)) + 1)
    return _inside(np.outer(powers, np.arange(2, 20) / 2).ravel(), low, high)


def _scan_points(market: Market, client: int, grid: int, dense: int, rng: np.random.Generator) -> FloatArray:
    prior, truth = prior_of(market, client), float(market.sensitivities[client])
    low, high = support_for_lies(prior, truth)
    others = np.delete(market.sensitivities, client)
    some = rng.choice(others, size=min(len(others), NEIGHBOURS), replace=False)
    points = [
        np.array([low, high]),
        _quantiles(prior, 2 * grid),
        np.linspace(low, high, grid),
        np.geomspace(low, high, grid),
        _around(truth, 9),
        _beside(np.concatenate([some, _others(market, client, NEIGHBOURS)])),
        _shifted(low, high, dense, rng),
        np.asarray(prior.ppf(_shifted(0.0, 1.0, dense // 2, rng)), dtype=np.float64),
        spikes(prior),
    ]
    return np.union1d(_inside(np.concatenate(points), low, high), _far_out(market, client))


def _points_to_price(market: Market, client: int, grid: int, scan: FloatArray, eps: FloatArray) -> FloatArray:
    """Where payments are asked for too; they cost more than ε alone."""
    prior, truth = prior_of(market, client), float(market.sensitivities[client])
    falls = np.argsort(np.diff(eps))[:STEPS]
    points = [
        np.array([scan[0], scan[-1]]),
        _quantiles(prior, grid // 2),
        _around(truth, 6),
        _beside(_others(market, client, 2)),
        scan[falls],
        scan[falls + 1],
        spikes(prior),
    ]
    asked = _inside(np.concatenate(points), scan[0], scan[-1])
    # Beyond exclusion nothing is sold: the first and the last such report stand for all.
    dropped = np.flatnonzero(np.interp(asked, scan, eps) == 0)
    # At the bottom ε is looked at alone: payments over many decades take long.
    far = _far_out(market, client)
    return np.union1d(np.delete(asked, dropped[1:-1]), far[far > truth])
