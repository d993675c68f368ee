"""Allocations and payments: the exact solver behind the mechanisms. Users do not import from here."""
