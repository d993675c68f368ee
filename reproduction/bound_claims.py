"""Theorem 1 bounds the gradient norm: whether its bound ranks the runs as accuracy and the measured norm do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from scipy.stats import spearmanr

from reproduction.results import Results
from reproduction.tabulate import Cell
from reproduction.verdicts import FAILS, HOLDS, NAMES, NOT_RUN, TOO_FEW, Claim, so_far

MIN_RUNS = 20  # by chance alone fewer are often in one order
STRONG = 0.5


class Correlations(NamedTuple):
    """Spearman's ρ of the bound with accuracy and with the measured gradient norm, over so many runs."""

    accuracy: float
    gradient_norm: float
    runs: int

    @property
    def enough(self) -> bool:
        return self.runs >= MIN_RUNS


def rank_correlations(cells: Sequence[Cell]) -> dict[float, Correlations]:
    """By similarity, from 100 down, however few the runs are."""
    rows: dict[float, list[tuple[float, float, float]]] = {}
    for cell in cells:
        for record in cell.records:
            result = record.result
            if result.get("loss_bound") is not None and result.get("gradient_norm") is not None:
                rows.setdefault(cell.config.similarity, []).append(
                    (result["loss_bound"], result["accuracy"], result["gradient_norm"])
                )
    return {
        similarity: Correlations(_spearman(values, 1), _spearman(values, 2), len(values))
        for similarity, values in sorted(rows.items(), reverse=True)
    }


def _spearman(values: Sequence[tuple[float, float, float]], column: int) -> float:
    bounds, others = [row[0] for row in values], [row[column] for row in values]
    if len(set(bounds)) == 1 or len(set(others)) == 1:
        return 0.0  # nothing to rank
    return float(spearmanr(bounds, others).statistic)


def bound_claims(results: Results) -> list[Claim]:
    claims = []
    for dataset, name in NAMES.items():
        correlations = rank_correlations(results.cells(f"panels-{dataset}"))
        there, wanted = results.stored(f"panels-{dataset}")
        for what, asked, values in (
            ("a higher accuracy", "below −0.5", {s: -c.accuracy for s, c in correlations.items()}),
            ("a smaller gradient norm", "above +0.5", {s: c.gradient_norm for s, c in correlations.items()}),
        ):
            statement = f"{name}: a lower bound goes with {what} (rank correlation {asked} at every s)"
            if not correlations:
                claims.append(Claim(source="Theorem 1", statement=statement, verdict=NOT_RUN, numbers=""))
                continue
            counted = [value for s, value in values.items() if correlations[s].enough]
            verdict = TOO_FEW if not counted else HOLDS if min(counted) > STRONG else FAILS
            sign = -1 if "accuracy" in what else 1
            parts = [
                f"s = {s:g}: "
                + (f"{sign * value:+.2f}" if correlations[s].enough else f"too few runs ({correlations[s].runs})")
                for s, value in values.items()
            ]
            claims.append(
                Claim(
                    source="Theorem 1",
                    statement=statement,
                    verdict=so_far(verdict) if there < wanted else verdict,
                    numbers="; ".join(parts),
                )
            )
    return claims
