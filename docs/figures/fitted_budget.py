"""Draw docs/figures/fitted-budget.png: what one client sells as its own report rises, under two ways to keep a budget.

Run it from the project's root: .venv/bin/python docs/figures/fitted_budget.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import jsam
from jsam.mechanism.budget.loss_weight import loss_weight_for_budget
from jsam.report.figures import plot_fitted_budget

SEED, NUM_CLIENTS, CLIENT, BUDGET = 123, 10, 0, 1.0


def fitted(virtual_costs: NDArray[np.float64], budget: float) -> NDArray[np.float64]:
    """Every client's ε when the loss bound is made as small as the budget allows for exactly these reports."""
    order = np.argsort(virtual_costs)
    v, N = virtual_costs[order], len(virtual_costs)
    kept = np.arange(1, N + 1)
    first = (N - kept + 1) / N
    shares = (v / N) ** (2 / 3)
    S = np.cumsum(shares) - shares[0] + (v[0] * first) ** (2 / 3)
    d = 2 * (N - kept) / N
    best = int(np.argmin(d + np.sqrt(d**2 + S**3 / budget**2)))
    p = np.zeros(N)
    p[order[: best + 1]] = 1 / N
    p[order[0]] = first[best]
    return np.asarray(p ** (2 / 3) * budget / (S[best] * np.cbrt(virtual_costs)))


def main() -> None:
    prior = jsam.parse_prior("uniform:0,1")
    market = jsam.Market(
        sensitivities=np.random.default_rng(SEED).uniform(0, 1, NUM_CLIENTS),
        prior=prior,
    )
    reports = np.linspace(0.1, 1.0, 901)
    markets = (market.with_report(CLIENT, float(z)) for z in reports)
    rising = [fitted(changed.virtual_costs, BUDGET)[CLIENT] for changed in markets]
    before = loss_weight_for_budget(jsam.JSAM(loss_weight=1.0), BUDGET, prior=prior, num_clients=NUM_CLIENTS)
    falling = jsam.JSAM(loss_weight=before.loss_weight).respond(market, CLIENT, reports).epsilons
    plot_fitted_budget(
        [
            {"title": f"Budget {BUDGET:g} fitted to the reports", "reports": reports, "epsilons": rising},
            {"title": f"Budget {BUDGET:g} turned into η beforehand", "reports": reports, "epsilons": falling},
        ],
        Path(__file__).with_name("fitted-budget.png"),
    )


if __name__ == "__main__":
    main()
