"""The closed form in fifty digits, from the very doubles that are given."""

from __future__ import annotations

from decimal import Decimal

DIGITS = 50


def exact_root(a: Decimal) -> Decimal:
    """The root r ≥ 1 of r³ − r = a to 50 digits, by Newton's method from above."""
    r = 1 + a if a < 1 else 2 * a ** (Decimal(1) / 3)
    for _ in range(200):
        step = (r**3 - r - a) / (3 * r * r - 1)
        r -= step
        if abs(step) < Decimal(10) ** (5 - DIGITS) * r:
            break
    return r


def exact_cost(
    d: float | Decimal, e2: float | Decimal, root_kappa: float | Decimal, eta: float
) -> tuple[Decimal, Decimal]:
    """Minimum over B of η(d + sqrt(e² + κ/B²)) + B and its B."""
    weight, root = Decimal(eta), Decimal(root_kappa)
    r = exact_root(Decimal(e2) * weight / root)
    B = (weight * root / r).sqrt()
    return weight * Decimal(d) + B * (1 + r * r), B
