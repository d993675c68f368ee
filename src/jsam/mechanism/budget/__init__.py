"""The loss weight that a budget buys, found on markets drawn from the prior."""
