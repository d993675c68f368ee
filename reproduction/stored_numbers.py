"""The numbers of a contract as results hold them."""

from __future__ import annotations

import math

from jsam.mechanism.contract import Contract


def contract_numbers(contract: Contract) -> dict[str, float | int | None]:
    numbers = {
        "loss_weight": contract.loss_weight,
        "monetary_cost": contract.expected_cost,
        "total_payment": contract.total_payment,
        "num_selected": contract.num_selected,
        "loss_bound": contract.loss_bound,
        "largest_selection_prob": float(contract.selection_probs.max()),
        "epsilon_sold_max": float(contract.epsilons.max()),
    }
    return {name: rounded(value) for name, value in numbers.items()}


def rounded(value: float | None) -> float | None:
    # Six digits are more than any of this is good for, and keep the files small.
    if isinstance(value, int):
        return value
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")
