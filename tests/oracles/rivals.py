"""The rivals' rules once more, one client after the other, from the words of docs/rivals.md."""

from __future__ import annotations

import math
from collections.abc import Sequence

Sold = tuple[list[float], list[float]]  # ε and payment of each client


def fairquery(costs: Sequence[float], budget: float) -> Sold:
    N = len(costs)
    order = sorted(range(N), key=lambda i: costs[i])
    winners = 0
    for k in range(1, N):
        if costs[order[k - 1]] / (N - k) <= budget / k:
            winners = k
    eps, paid = [0.0] * N, [0.0] * N
    for i in order[:winners]:
        eps[i] = 1 / (N - winners)
        paid[i] = min(budget / winners, costs[order[winners]] / (N - winners))
    return eps, paid


def proportional_share(costs: Sequence[float], whole: Sequence[float], budget: float, top: float) -> Sold:
    order, winners, together = sorted(range(len(costs)), key=lambda i: costs[i]), [], 0.0
    for i in order:
        if costs[i] * (together + whole[i]) > budget:
            break
        together += whole[i]
        winners.append(i)
    eps, paid = [0.0] * len(costs), [0.0] * len(costs)
    following = costs[order[len(winners)]] if len(winners) < len(costs) else math.inf
    for i in winners:
        eps[i] = whole[i]
        paid[i] = whole[i] * min(budget / together, following, top)
    return eps, paid


def csra(costs: Sequence[float], whole: Sequence[float], budget: float) -> Sold:
    order = sorted(range(len(costs)), key=lambda i: costs[i])
    eps, paid = [0.0] * len(costs), [0.0] * len(costs)
    for k in range(len(costs) - 1, 0, -1):
        price = costs[order[k]]
        if price * sum(whole[i] for i in order[:k]) <= budget:
            for i in order[:k]:
                eps[i], paid[i] = whole[i], whole[i] * price
            break
    return eps, paid


def all_in(costs: Sequence[float], whole: Sequence[float], budget: float) -> Sold:
    winners, together = [], 0.0
    for i in sorted(range(len(costs)), key=lambda i: costs[i]):
        if costs[i] * (together + whole[i]) <= budget:
            together += whole[i]
            winners.append(i)
    sells = [i in winners for i in range(len(costs))]
    eps = [whole[i] if sells[i] else 0.0 for i in range(len(costs))]
    return eps, [e * budget / together if together else 0.0 for e in eps]


def pay_as_bid(costs: Sequence[float], whole: Sequence[float], budget: float) -> Sold:
    eps, left = [0.0] * len(costs), budget
    for i in sorted(range(len(costs)), key=lambda i: costs[i]):
        left -= costs[i] * whole[i]
        if left < 0:
            break
        eps[i] = whole[i]
    return eps, [c * e for c, e in zip(costs, eps, strict=True)]


def posted_price(costs: Sequence[float], whole: Sequence[float], budget: float, price: float) -> Sold:
    """The clients come in the order in which they are given."""
    eps, left = [0.0] * len(costs), budget
    for i, cost in enumerate(costs):
        if cost <= price:
            left -= price * whole[i]
            if left < -1e-9 * budget:
                break
            eps[i] = whole[i]
    return eps, [price * e for e in eps]
