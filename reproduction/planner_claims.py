"""Claims that need no training: Observations 5 and 6, the cost columns, who costs most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import binom

from reproduction import paper_numbers as published
from reproduction.results import Results
from reproduction.verdicts import FAILS, HOLDS, NOISE, NOT_RUN, Claim

_FLAT = 1e-3  # of the steepest slope; stored numbers have six digits


def planner_claims(results: Results) -> list[Claim]:
    return [_convexity(results), *_selected(results), *_cost_columns(results), _dearest(results)]


def _convexity(results: Results) -> Claim:
    """By the second differences over a tenth of the grid: clients that come in one by one make small waves."""
    stored = results.planner("cost-against-eta")
    source, statement = "Observation 5", "Cost grows convexly with η"
    if stored is None:
        return Claim(source=source, statement=statement, verdict=NOT_RUN, numbers="")
    shapes = {name: _shape(stored["etas"], stored["curves"][name]) for name in ("jsam", "usbm")}
    numbers = "; ".join(f"{name.upper()}'s mean cost is {shape}" for name, (_, shape) in shapes.items())
    weight = stored["settings_used"]["noise_weight"]
    verdict = HOLDS if all(convex for convex, _ in shapes.values()) else FAILS
    return Claim(source=source, statement=statement, verdict=verdict, numbers=f"Q = {weight:g}: {numbers}")


def _shape(etas: Sequence[float], curve: Mapping[str, Any]) -> tuple[bool, str]:
    """Whether the curve is convex on the whole grid, and how it bends in words."""
    step = max(1, len(etas) // 10)
    grid, mean = np.array(etas)[step - 1 :: step], np.array(curve["mean"])[step - 1 :: step]
    slope = np.diff(mean) / np.diff(grid)
    bends = np.diff(slope)
    tolerance = _FLAT * float(np.abs(slope).max())
    down, up = int((bends < -tolerance).sum()), int((bends > tolerance).sum())
    counted = f"{down} of {len(bends)} second differences below 0"
    if not down:
        return True, f"convex on the whole grid ({counted})"
    if not up:
        roots = mean / np.sqrt(grid)
        like = "√η, concave" if np.allclose(roots, roots[0], rtol=1e-3) else "concave"
        return False, f"{like} ({counted})"
    turning = curve["convex_up_to"]
    where = "" if turning is None else f" up to η ≈ {turning:.3g}, cost ≈ {curve['cost_there']:.3g}"
    return False, f"convex only{where or ' in part'} ({counted})"


def _selected(results: Results) -> list[Claim]:
    stored = results.planner("selected-clients")
    statement = "JSAM keeps 27 clients at cost 1.32 and 41 at 3.45, inside the 95% band over draws, for one Q"
    if stored is None:
        return [Claim(source="Observation 6", statement=statement, verdict=NOT_RUN, numbers="")]
    used = stored["settings_used"]["noise_weight"]
    parts = [
        f"{p['mean']:.1f} (band {p['band'][0]:.0f}–{p['band'][2]:.0f}) at {p['cost']}" for p in stored["at_chosen"]
    ]
    inside = all(p["band"][0] <= p["paper"] <= p["band"][2] for p in stored["at_chosen"])
    both = stored["noise_weight_for_both"]
    some = "no Q serves both" if both is None else f"every Q from {both[0]:.1f} to {both[1]:.1f} serves both"
    mean = np.array(stored["curves"][f"{used:g}"]["mean"])
    slope = np.diff(mean) / np.diff(np.array(stored["costs"]))
    wide = np.add.reduceat(slope, range(0, len(slope), 6))  # clients come in one by one: look at six steps together
    rises = int((np.diff(wide) > 0).sum())
    return [
        Claim(
            source="Observation 6",
            statement=statement,
            verdict=HOLDS if inside else FAILS,
            numbers=f"Q = {used:g}: {', '.join(parts)}; {some}",
        ),
        Claim(
            source="Observation 6",
            statement="The number of clients that JSAM keeps grows concavely with the cost",
            verdict=FAILS if rises else HOLDS,
            numbers=f"mean over draws, {stored['costs'][0]:g} to {stored['costs'][-1]:g}: its slope rises at "
            f"{rises} of {len(wide) - 1} places; USBM, FSBM, BBM: constant",
        ),
    ]


def _cost_columns(results: Results) -> list[Claim]:
    stored = results.planner("cost-columns")
    if stored is None:
        statement = "The cost columns of the tables"
        return [Claim(source="Tables", statement=statement, verdict=NOT_RUN, numbers="")]
    return [
        Claim(
            source="Tables",
            statement=f"Cost of {pair.replace('/', ' over ')} inside the 95% band over draws",
            verdict=_ratio_verdict(pair, ratio),
            numbers=f"{_papers_ratio(pair, ratio)}; ours {ratio['mean']:.4f}, "
            f"band {ratio['band'][0]:.3f}–{ratio['band'][-1]:.3f}",
        )
        for pair, ratio in stored["ratios"].items()
    ]


def _papers_ratios(pair: str, ratio: Mapping[str, Any]) -> tuple[int, int]:
    """How many of the paper's ratios are inside the band, and how many there are: BBM has one in every column."""
    ratios = published.bbm_cost_ratios() if pair == "bbm-50/usbm" else [ratio["paper"]]
    low, *_, high = ratio["band"]
    return sum(published.cost_ratio_inside(ratio, low, high) for ratio in ratios), len(ratios)


def _ratio_verdict(pair: str, ratio: Mapping[str, Any]) -> str:
    inside, there = _papers_ratios(pair, ratio)
    if inside == there:
        return HOLDS
    # One draw in twenty lies outside its band by chance, so one or two of eight may.
    return NOISE if ratio["inside"] and binom.sf(there - inside - 1, there, 0.05) > 0.05 else FAILS


def _papers_ratio(pair: str, ratio: Mapping[str, Any]) -> str:
    inside, there = _papers_ratios(pair, ratio)
    return (
        f"paper {ratio['paper']:.4f}"
        if there == 1
        else (f"paper's mean {ratio['paper']:.4f}, {inside} of its {there} values in the band")
    )


def _dearest(results: Results) -> Claim:
    stored = results.planner("who-costs-most")
    statement = "The least sensitive client may cost the server most"
    if stored is None:
        return Claim(source="Abstract", statement=statement, verdict=NOT_RUN, numbers="")
    parts = [f"{row['least_sensitive_costs_most']:.0%} at cost {row['mean_cost']:.2g}" for row in stored["by_eta"]]
    often = max(row["least_sensitive_costs_most"] for row in stored["by_eta"])
    return Claim(
        source="Abstract",
        statement=statement,
        verdict=HOLDS if often > 0 else FAILS,
        numbers=f"it is the dearest in {', '.join(parts)} of the draws",
    )
