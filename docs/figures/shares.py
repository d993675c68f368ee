"""Draw docs/figures/shares.png: who is drawn how often, and sells how much, under three mechanisms for one cost.

Run it from the project's root: .venv/bin/python docs/figures/shares.py
"""

from __future__ import annotations

from pathlib import Path

from jsam.mechanism.contract import Contract
from jsam.mechanism.rules import Rules
from jsam.report.figures import BLUE, GREEN, RED, SENSITIVITY, STYLE
from jsam.runs.drawn_sensitivities import draw_sensitivities

COST, CLIENTS, SEED = 10.0, 100, 1
# Similarity 50%, 600 records a client, a model of 26,010 parameters: jsam-even as commands that train run it, the
# paper's without a cap and with the Q at which MNIST was learned best.
MECHANISMS = (
    ("jsam-even", BLUE, {"noise_weight": 1.66, "heterogeneity": "similarity:50/600", "max_epsilon": 10.0}),
    ("jsam", RED, {"noise_weight": 5000.0}),
    ("usbm", GREEN, {"noise_weight": 5000.0}),
)


def contract(mechanism: str, weights: dict[str, object]) -> Contract:
    """The contract at an expected cost of `COST`."""
    rules = Rules.from_dict({"mechanism": mechanism, "prior": "uniform:0,1", "budget": COST, **weights})
    return rules.contract(rules.market(draw_sensitivities(rules.prior_of_all(), CLIENTS, SEED)))


def main() -> None:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(10.4, 4.2), layout="constrained")
        draws, sold = figure.subplots(1, 2)
        for name, colour, weights in MECHANISMS:
            plan = contract(name, dict(weights))
            order = plan.sensitivities.argsort()
            c, p, eps = plan.sensitivities[order], plan.selection_probs[order], plan.epsilons[order]
            kept = eps > 0
            label = f"{name}: {plan.num_selected} clients, largest ε {eps.max():.3g}"
            draws.plot(c[kept], 100 * p[kept], ".-", color=colour, label=label)
            sold.plot(c[kept], eps[kept], ".-", color=colour)
        draws.set(title="Who is drawn how often", xlabel=SENSITIVITY, ylabel="share of all draws, %", yscale="log")
        sold.set(title="Who sells how much", xlabel=SENSITIVITY, ylabel="ε sold", yscale="log")
        draws.legend()
        figure.savefig(Path(__file__).with_name("shares.png"), dpi=110)


if __name__ == "__main__":
    main()
