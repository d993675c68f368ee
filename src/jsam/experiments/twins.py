"""Runs that need not be made, because a stored one came of the same contract.

Q and η reach a run through its contract alone. A mechanism with fixed draws that has an η of its own for its cost comes
to the same contract whatever Q is; JSAM does not, but for costs at which it keeps everybody.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from jsam.experiments.config import RunConfig
from jsam.experiments.planning import Plans
from jsam.experiments.store import Record
from jsam.mechanism.contract import Contract

SAME = 1e-7  # relative, in ε: η is searched for to about that


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
        twin = next((other for other in others if _same(contract, self._plans.contract(other.config))), None)
        return None if twin is None else (twin, contract)


def twin_record(config: RunConfig, twin: Record, numbers: Mapping[str, float | int | None]) -> Record:
    """What the twin came to, with the contract's own numbers; it says whose run it is."""
    return Record(config=config, result={**twin.result, **numbers, "same_as": twin.result.get("same_as", twin.key)})


def _without_weight(config: RunConfig) -> str:
    return replace(config, noise_weight=1.0).key


def _same(one: Contract, other: Contract) -> bool:
    return np.array_equal(one.selection_probs, other.selection_probs) and np.allclose(
        one.epsilons, other.epsilons, rtol=SAME, atol=0.0
    )
