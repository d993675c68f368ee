"""Runs that need not be made, because a stored one came of the same contract.

Q and η reach a run through its contract alone. A mechanism with fixed draws that has an η of its own for its cost comes
to the same contract whatever Q is; JSAM does not, but for costs at which it keeps everybody.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from jsam.mechanism.contract import Contract
from reproduction.config import RunConfig
from reproduction.planning import Plans
from reproduction.store import Record
from reproduction.stored_numbers import contract_numbers

SAME = 1e-7  # relative, in ε: η is searched for to about that
RECORDED = ("monetary_cost", "num_selected", "largest_selection_prob", "epsilon_sold_max")
AS_RECORDED = 2e-5  # relative: both are rounded to six digits


class Twins:
    """The stored runs, to be found by all that a run depends on but its contract."""

    def __init__(self, records: Iterable[Record], plans: Plans) -> None:
        self._plans = plans
        self._alike: dict[str, list[Record]] = {}
        for record in records:
            self._alike.setdefault(_without_weight(record.config), []).append(record)

    def of(self, config: RunConfig) -> tuple[Record, Contract] | None:
        """A stored run with the contract of this one, and that contract with the numbers that are its own."""
        others = self._alike.get(_without_weight(config), [])
        if not others:
            return None
        contract = self._plans.contract(config)
        twin = next((other for other in others if self._has(other, contract)), None)
        return None if twin is None else (twin, contract)

    def _has(self, record: Record, contract: Contract) -> bool:
        """Whether the stored run has this contract, and had it when it was made."""
        now = self._plans.contract(record.config)
        return _same(contract, now) and _as_recorded(now, record)


def twin_record(config: RunConfig, twin: Record, contract: Contract) -> Record:
    """What the twin came to, with the contract's own numbers; it says whose run it is."""
    root = twin.result.get("same_as", twin.key)
    return Record(config=config, result={**twin.result, **contract_numbers(contract), "same_as": root})


def _without_weight(config: RunConfig) -> str:
    return config.changed(noise_weight=1.0).key


def _same(contract: Contract, other: Contract) -> bool:
    return np.array_equal(contract.selection_probs, other.selection_probs) and np.allclose(
        contract.epsilons, other.epsilons, rtol=SAME, atol=0.0
    )


def _as_recorded(contract: Contract, record: Record) -> bool:
    numbers = contract_numbers(contract)
    pairs = [(numbers[name], record.result.get(name)) for name in RECORDED]
    return all(a is not None and b is not None and math.isclose(a, b, rel_tol=AS_RECORDED) for a, b in pairs)
