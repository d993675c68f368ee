"""What it costs at most that many clients' numbers of records are rounded before a selection is made by them.

The bound comes from selections that may keep a part of a client, by its true number of records: at each share of the
data the least sum of weights is then that of the clients with the least weight for a record, and no whole selection
can be below it. With many clients the parts matter little.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jsam.errors import UnequalDataError
from jsam.mechanism._arrays import FloatArray
from jsam.mechanism.contract import Contract
from jsam.mechanism.families.base import RangeMechanism
from jsam.mechanism.market import Market
from jsam.mechanism.solver.counted import TANGENT_STEP, CappedEvenStage, Sizes, Stage
from jsam.mechanism.solver.unequal import UnequalReport

# Between two ends of a piece the bound takes the better of both, so pieces are short.
POINTS = 200_000
# The least of the tangents that stand for a capped loss's root is above it by this much at most.
TANGENTS = float(np.cosh(np.log(TANGENT_STEP) / 2) - 1)


@dataclass(frozen=True, kw_only=True)
class Rounding:
    """Sizes were rounded to units of about so many records; the objective is above the least by `loss` at most."""

    records_per_unit: float
    loss: float

    def as_dict(self) -> dict[str, Any]:
        return dict(self.__dict__)


def rounding_of(mechanism: RangeMechanism, market: Market, contract: Contract) -> Rounding | None:
    """What the rounding of sizes costs the mechanism's plan for this market; None if nothing was rounded.

    Under a cap on p and under floors there is none either: the parts of clients know nothing of these.
    """
    weights = mechanism.weights
    if contract.data_shares is None or weights.max_selection_prob or weights.min_clients or weights.min_selection_prob:
        return None
    active = mechanism.active(market)
    v = market.counted(mechanism.price)[active]
    try:
        answers = mechanism.answers_by_size(market, active, v, None)
    except UnequalDataError:  # a user's own mechanism, which selects in its own way
        return None
    records = np.asarray(market.samples, dtype=np.int64)[active]
    if not isinstance(answers, UnequalReport) or np.ptp(records / answers.sizes.units) == 0:
        return None
    exact = Sizes(units=records, weights=weights)
    least = least_objective(replace(answers, sizes=exact).candidates[0], v)
    loss = max(contract.objective / least - 1, 0.0)
    return Rounding(records_per_unit=float(records.sum() / answers.sizes.total), loss=loss)


def least_objective(stages: Sequence[Stage], v: FloatArray) -> float:
    """A lower bound on the objective of every selection, from those that may keep parts of clients."""
    if not isinstance(stages[0], CappedEvenStage):
        return min(_least(stage, v) for stage in stages)
    rough = [(stage.least(v), stage) for stage in stages if isinstance(stage, CappedEvenStage)]
    least, pieces = np.inf, max(2, POINTS // len(v))
    for bound, stage in sorted(rough, key=lambda pair: pair[0]):
        if bound < least:
            least = min(least, stage.least(v, pieces))
    return float(least / (1 + TANGENTS))


def _least(stage: Stage, v: FloatArray) -> float:
    """The same for one stage, whose value falls with the share of data that is kept and rises with the weights."""
    sizes, weights = stage.sizes, stage.weight(v)
    others = np.flatnonzero((np.arange(len(sizes)) != stage.skipped) & np.isfinite(weights))
    order = others[np.argsort(weights[others] / sizes.units[others])]
    ends = np.concatenate([[0.0], np.cumsum(sizes.units[order])])
    least = np.concatenate([[0.0], np.cumsum(weights[order])])
    pieces = max(2, POINTS // len(ends))
    inner = ends[:-1, None] + np.diff(ends)[:, None] * (np.arange(pieces) / pieces)
    units = np.append(inner.ravel(), ends[-1])
    low = np.interp(units, ends, least)[:-1]
    if stage.skipped < 0:
        low = np.maximum(low, weights[others].min())  # somebody is kept
    objective, _ = stage.value(units[1:], low)
    return float(np.nanmin(objective))
