"""Draw docs/figures/fitted-budget.png: what one client sells as its own report rises, under two ways to keep a budget.

Run it from the project's root: .venv/bin/python docs/figures/fitted_budget.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import jsam
from jsam.mechanism.budget.loss_weight import loss_weight_for_budget
from jsam.report.figures import BLUE, RED, SENSITIVITY, STYLE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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


def drawn(curves: Sequence[Mapping[str, Any]]) -> Figure:
    """A panel for each curve of `title`, `reports` and `epsilons`, with the largest rise of ε marked."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * len(curves), 4.2), layout="constrained")
    axes = figure.subplots(1, len(curves), squeeze=False, sharey=True)
    for axis, curve in zip(axes.flat, curves, strict=True):
        z, eps = np.asarray(curve["reports"]), np.asarray(curve["epsilons"])
        axis.plot(z, eps, color=BLUE, lw=1.8)
        jump = np.diff(eps)
        up = int(jump.argmax())
        if jump[up] > 1e-9 * eps.max():
            axis.plot(z[up : up + 2], eps[up : up + 2], color=RED, lw=3, solid_capstyle="butt")
            text = f"ε rises by {jump[up] / eps[up]:.0%}:\nasking for more sells more"
            axis.annotate(text, (z[up + 1], eps[up + 1]), color=RED, xytext=(14, 16), textcoords="offset points")
        else:
            text = "ε never rises: nobody gains by asking for more"
            axis.text(0.98, 0.95, text, transform=axis.transAxes, ha="right", va="top", color=BLUE)
        axis.set(title=curve["title"], xlabel="reported " + SENSITIVITY, ylim=(0, None))
    axes.flat[0].set_ylabel("ε bought from the client")
    return figure


def main() -> None:
    import matplotlib as mpl

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
    curves = [
        {"title": f"Budget {BUDGET:g} fitted to the reports", "reports": reports, "epsilons": rising},
        {"title": f"Budget {BUDGET:g} turned into η beforehand", "reports": reports, "epsilons": falling},
    ]
    with mpl.rc_context(STYLE):
        drawn(curves).savefig(Path(__file__).with_name("fitted-budget.png"))


if __name__ == "__main__":
    main()
