"""Slow, readable twins of the planner, and of clipping; they share no code with what they check."""

from __future__ import annotations

from .digits import DIGITS, exact_cost, exact_root
from .inner import best_epsilons, objective, values, values_capped
from .payments import dense_payment, exact_curve, trapezoid_payments_on_grid
from .published import Published, published_algorithm_1, true_objective
from .search import brute_force, brute_force_joint
from .selections import best_even, best_even_by_tangents, best_receiver
from .simplex import least_over_simplex

__all__ = [
    "DIGITS",
    "Published",
    "best_epsilons",
    "best_even",
    "best_even_by_tangents",
    "best_receiver",
    "brute_force",
    "brute_force_joint",
    "dense_payment",
    "exact_cost",
    "exact_curve",
    "exact_root",
    "least_over_simplex",
    "objective",
    "published_algorithm_1",
    "trapezoid_payments_on_grid",
    "true_objective",
    "values",
    "values_capped",
]
