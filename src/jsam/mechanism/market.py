"""The clients who report and what is commonly known about them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from jsam.errors import InputError, ReportError
from jsam.mechanism._arrays import FloatArray, IntArray
from jsam.mechanism.pricing.virtual_cost import VirtualCost
from jsam.mechanism.priors import Prior, scipy_identity

# Products of smaller sensitivities with an ε or a probability leave the range of full precision.
SMALLEST = 1e-290


@dataclass(frozen=True, kw_only=True, eq=False)
class Market:
    """Reported sensitivities, the prior they were drawn from, and optionally names, data sizes and local losses.

    >>> import scipy.stats
    >>> market = Market(sensitivities=[0.2, 0.5], prior=scipy.stats.uniform(0, 1))
    >>> market.virtual_costs
    array([0.4, 1. ])
    """

    sensitivities: FloatArray
    prior: Prior | Sequence[Prior]
    ids: Sequence[str] | None = None
    samples: Sequence[int] | None = None
    losses: FloatArray | None = None

    def __post_init__(self) -> None:
        c = _numbers("sensitivities", self.sensitivities)
        c.flags.writeable = False
        object.__setattr__(self, "sensitivities", c)
        if len(c) == 0:
            raise InputError("there are no clients: at least one report is needed")
        if self.ids is not None:
            object.__setattr__(self, "ids", tuple(str(name) for name in self.ids))
            self._check_ids()
        bad = np.flatnonzero(~(np.isfinite(c) & (c > 0)))
        if len(bad):
            raise self._refused(int(bad[0]), "a sensitivity must be a positive, finite number")
        if c.min() < SMALLEST:
            raise self._refused(int(c.argmin()), f"a sensitivity below {SMALLEST:g} is too small to compute with")
        if isinstance(self.prior, Sequence | np.ndarray) and not isinstance(self.prior, str):
            if len(self.prior) != len(c):
                raise InputError(f"{len(self.prior)} priors for {len(c)} clients: give one for all, or one each")
            object.__setattr__(self, "prior", tuple(self.prior))
        self._check_samples()
        if self.losses is not None:
            losses = _numbers("losses", self.losses)
            if losses.shape != c.shape or not np.isfinite(losses).all():
                raise InputError(f"losses must be {len(c)} finite numbers, one for each client")
            object.__setattr__(self, "losses", losses)
        for cost, members in self.cost_groups:
            outside = (c[members] < cost.bottom) | (c[members] > cost.top)
            if outside.any():
                k = int(members[int(outside.argmax())])
                raise self._refused(k, f"it lies outside the prior's support [{cost.bottom:g}, {cost.top:g}]")

    def _refused(self, client: int, why: str) -> ReportError:
        return ReportError(client, f"client {self.name_of(client)!r} reports {self.sensitivities[client]:g}: {why}")

    def _check_ids(self) -> None:
        assert self.ids is not None
        if len(self.ids) != len(self.sensitivities):
            raise InputError(f"{len(self.ids)} ids for {len(self.sensitivities)} clients: one each is needed")
        seen: set[str] = set()
        for name in self.ids:
            if name in seen:
                raise InputError(f"id {name!r} stands twice: every client needs an id of its own")
            seen.add(name)

    def _check_samples(self) -> None:
        if self.samples is None:
            return
        sizes = np.asarray(self.samples)
        if sizes.shape != self.sensitivities.shape or not np.all(sizes >= 1):
            raise InputError(
                f"samples must be {len(self.sensitivities)} whole numbers of 1 or more, one for each client"
            )

    @cached_property
    def data_shares(self) -> FloatArray | None:
        """The share of all data that each client holds; None if all hold equally much."""
        if self.samples is None or np.ptp(np.asarray(self.samples)) == 0:
            return None
        return np.asarray(self.samples, dtype=np.float64) / float(np.sum(self.samples))

    @property
    def num_clients(self) -> int:
        return len(self.sensitivities)

    def name_of(self, client: int) -> str:
        """The client's id, or its position if there are no ids."""
        return str(client) if self.ids is None else self.ids[client]

    @cached_property
    def cost_groups(self) -> list[tuple[VirtualCost, IntArray]]:
        """Each distinct virtual cost function with the clients it belongs to."""
        if not isinstance(self.prior, tuple):
            return [(virtual_cost_of(self.prior), np.arange(self.num_clients))]
        members: dict[int, list[int]] = {}
        costs: dict[int, VirtualCost] = {}
        for client, prior in enumerate(self.prior):
            cost = virtual_cost_of(prior)
            costs[id(cost)] = cost
            members.setdefault(id(cost), []).append(client)
        return [(costs[key], np.array(clients)) for key, clients in members.items()]

    def cost_of(self, client: int) -> VirtualCost:
        """The virtual cost function of one client."""
        return virtual_cost_of(self.prior[client] if isinstance(self.prior, tuple) else self.prior)

    @cached_property
    def virtual_costs(self) -> FloatArray:
        return self.counted(lambda cost: cost)

    def counted(self, price: Callable[[VirtualCost], VirtualCost]) -> FloatArray:
        """What a unit of ε of each client counts as, where `price` takes the place of its virtual cost."""
        v = np.empty(self.num_clients)
        for cost, members in self.cost_groups:
            v[members] = price(cost)(self.sensitivities[members])
        return v

    @property
    def ironed(self) -> bool:
        """Whether some prior was irregular and had to be ironed."""
        return any(cost.ironed for cost, _ in self.cost_groups)

    @cached_property
    def tie_order(self) -> IntArray | None:
        """Who goes first among equal virtual costs: by a hash of the id, which no report and no file order can sway."""
        if self.ids is None:
            return None
        keys = [hashlib.sha256(name.encode()).digest() for name in self.ids]
        return np.array(sorted(range(len(keys)), key=keys.__getitem__))

    def with_report(self, client: int, sensitivity: float) -> Market:
        """The same market with one report changed."""
        c = self.sensitivities.copy()
        c[client] = sensitivity
        return replace(self, sensitivities=c)


_COSTS: dict[Any, VirtualCost] = {}


def virtual_cost_of(prior: Any) -> VirtualCost:
    """The prior's virtual cost; equal distributions share one, since looking for irregular stretches takes time."""
    key: Any = scipy_identity(prior) or id(prior)
    try:
        hash(key)
    except TypeError:  # parameters that are arrays
        key = id(prior)
    cost = _COSTS.get(key)
    if cost is None or (isinstance(key, int) and cost.prior is not prior):
        if len(_COSTS) > 4096:
            _COSTS.clear()
        cost = _COSTS[key] = VirtualCost.of(prior)
    return cost


def _numbers(name: str, values: Any) -> FloatArray:
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be numbers, one for each client") from None
    if array.ndim != 1:
        raise InputError(f"{name} must be a list of numbers, one for each client; got {array.ndim} dimensions")
    return array
