"""Which clients of a market are audited: all of a small one; of a large one those where trouble is likeliest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jsam.errors import InputError
from jsam.mechanism._arrays import FloatArray, IntArray
from jsam.mechanism.contract import Contract
from jsam.mechanism.market import Market

ALL_CLIENTS_UP_TO = 128
FEWEST, MOST = 10, 32  # clients of a larger market, which cost more the larger it is
CLIENTS_TIMES_MARKET = 20_000
OUTLIERS = 2  # by each of two measures
SMALL_STEP = 1e-4  # squared steps in log v below which a deviation counts as it is


def audited_clients(
    market: Market, contract: Contract, clients: Sequence[int] | None, rng: np.random.Generator
) -> list[int]:
    """The positions asked for, or all, or of a large market those where trouble is likeliest and some at random."""
    N = market.num_clients
    if clients is not None:
        chosen = list(dict.fromkeys(int(k) for k in clients))
        if not chosen:
            raise InputError("clients is empty; at least one must be audited")
        for k in chosen:
            if not 0 <= k < N:
                raise InputError(f"clients holds {k}; positions 0 to {N - 1} are possible")
        return chosen
    if N <= ALL_CLIENTS_UP_TO:
        return list(range(N))
    assert contract.payments is not None
    order = np.argsort(contract.virtual_costs, kind="stable")
    kept = order[contract.epsilons[order] > 0]
    dropped = order[contract.epsilons[order] == 0]
    best_paid = int(np.argmax(contract.payments))
    edges = [order[0], kept[-1], *dropped[:1], order[1]]
    telling = [*edges, *_outliers(contract, kept, edges), best_paid, order[-1], *kept[-2:], *dropped[1:2]]
    count = max(FEWEST, min(MOST, CLIENTS_TIMES_MARKET // N))
    return list(dict.fromkeys(int(k) for k in [*telling, *rng.permutation(N)]))[:count]


def _outliers(contract: Contract, kept: IntArray, known: Sequence[int]) -> list[int]:
    """Clients whose ε or payment is out of line with that of their neighbours in the order of virtual cost.

    A rule that treats one client differently shows here in a market of any size. Nothing is judged by it: whoever
    stands out is audited like the others.
    """
    if len(kept) < 5:
        return []
    assert contract.payments is not None
    v, eps, p = contract.virtual_costs[kept], contract.epsilons[kept], contract.selection_probs[kept]
    outliers: list[int] = []
    with np.errstate(divide="ignore", invalid="ignore"):
        # The best ε for given p follow p^(2/3) v^(-1/3).
        for values in (np.log(eps) - 2 * np.log(p) / 3, np.log(contract.payments[kept])):
            off = np.zeros(len(kept))
            off[1:-1] = _bend(values, np.log(v))
            off[np.isin(kept, [*known, *outliers]) | np.isnan(off)] = -1.0
            outliers += [int(k) for k in kept[np.argsort(-off)[:OUTLIERS]]]
    return outliers


def _bend(values: FloatArray, at: FloatArray) -> FloatArray:
    """How far inner values lie off the line between the two beside them, where a smooth curve would give about 1."""
    width = at[2:] - at[:-2]
    share = np.divide(at[1:-1] - at[:-2], width, out=np.full(len(width), 0.5), where=width > 0)
    off = np.abs(values[1:-1] - (values[:-2] * (1 - share) + values[2:] * share))
    return np.asarray(off / (width**2 + SMALL_STEP))
