"""What even shares reach: against every m in hindsight, the paper's mechanism at its best Q, and the rivals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from reproduction.results import Results
from reproduction.store import Record
from reproduction.tabulate import Cell
from reproduction.verdicts import FAILS, HOLDS, NAMES, NOT_RUN, ONE_SEED, Claim, so_far

EVEN = "jsam-even"
OWN = {"mnist": "even-mnist", "cifar10": "even-cifar10"}  # the experiments with jsam-even
EVERY_M = {"mnist": "even-shares-mnist", "cifar10": "even-cifar10"}
RIVALS, CAP = "rivals-mnist", 10.0
TRUTHFUL = ("fairquery", "proportional-share", "csra", "posted-price", "vcg", "menu-4")
WRONG = (1 / 10, 1 / 3, 1.0, 3.0, 10.0)
UNCAPPED_HEAD = (
    "data set", "s", "cost", "`jsam-even`", "clients", "largest ε", "best m afterwards", "its accuracy",
    "`jsam`, best Q afterwards", "its largest ε",
)  # fmt: skip
CAPPED_HEAD = (
    "s", "cost", "`jsam-even`", "paid", "`jsam`, best Q afterwards", "paid", "best truthful rival", "", "paid",
    "`pay-as-bid`", "paid", "largest ε of all",
)  # fmt: skip
WRONG_HEAD = ("s", "Q/10", "Q/3", "Q", "3 Q", "10 Q")
SOURCE = "Even shares"
REGRET, EACH_REGRET = 1.2, 2.0  # points
AHEAD, ALONE = 10.0, 1.0


class Place(NamedTuple):
    """A degree of similarity and a cost."""

    similarity: float
    cost: float


def uncapped_rows(results: Results) -> list[list[str]]:
    """A row for each data set, similarity and cost."""
    rows = []
    for dataset, name in NAMES.items():
        for place, cell in _ours(results, dataset, cap=None).items():
            shares, paper = _shares(results, dataset, place), _paper(results, dataset, place, cap=None)
            best = _best(shares)
            rows.append(
                [
                    name, f"{place.similarity:g}", f"{place.cost:g}", _percent(cell),
                    " and ".join(f"{count:.0f}" for count in cell.values("num_selected")), _epsilon(cell),
                    "–" if best is None else _number(best), _percent(best), _percent(paper), _epsilon(paper),
                ]
            )  # fmt: skip
    return rows


def capped_rows(results: Results) -> list[list[str]]:
    """MNIST with nobody selling more than `CAP`: a row for each similarity and cost."""
    rows = []
    for place, cell in _ours(results, "mnist", cap=CAP).items():
        rivals = _at(results.cells(RIVALS), place)
        best = _best([rivals[name] for name in TRUTHFUL if name in rivals])
        name = "–" if best is None else f"`{best.config.mechanism}`"
        paper = _paper(results, "mnist", place, cap=CAP)
        bids = rivals.get("pay-as-bid")
        largest = max(c.largest("epsilon_sold_max") or 0.0 for c in (cell, paper, best, bids) if c is not None)
        rows.append(
            [
                f"{place.similarity:g}", f"{place.cost:g}", _percent(cell), _paid(cell), _percent(paper), _paid(paper),
                _percent(best), name, _paid(best), _percent(bids), _paid(bids), f"{largest:.3g}",
            ]
        )  # fmt: skip
    return rows


def wrong_rows(results: Results) -> list[list[str]]:
    """MNIST: the mean accuracy over costs at each similarity, with Q wrong by a factor; seed 0."""
    right = next(iter(_ours(results, "mnist", cap=None).values()), None)
    if right is None:
        return []
    found: dict[float, dict[float, list[float]]] = {}
    for cell in results.cells(OWN["mnist"]):
        c = cell.config
        factor = min(WRONG, key=lambda wrong: abs(math.log(c.noise_weight / right.config.noise_weight / wrong)))
        if c.mechanism == EVEN and c.max_epsilon is None and 0 in cell.accuracies:
            found.setdefault(c.similarity, {}).setdefault(factor, []).append(cell.accuracies[0])
    return [
        [f"{similarity:g}", *(f"{statistics.fmean(by[factor]):.1f}" if factor in by else "–" for factor in WRONG)]
        for similarity, by in sorted(found.items(), reverse=True)
    ]


def even_claims(results: Results) -> list[Claim]:
    """Whether it keeps about the right number of clients, and whom it is ahead of."""
    claims = [_regret(results, dataset) for dataset in NAMES]
    for cap in (None, CAP):
        claims += [_against_paper(results, 0.0, AHEAD, cap), _against_paper(results, 100.0, 0.0, cap)]
    return [*claims, _against_rivals(results, TRUTHFUL), _against_rivals(results, ("pay-as-bid",))]


def _regret(results: Results, dataset: str) -> Claim:
    """The best m has its accuracy over the same seeds; one that was best by chance counts as better all the same."""
    by_similarity: dict[float, list[float]] = {}
    for place, cell in _ours(results, dataset, cap=None).items():
        best = _best(_shares(results, dataset, place))
        if best is not None and cell.accuracy_mean is not None:
            seeds = cell.accuracies.keys() & best.accuracies.keys()
            lost = [best.accuracies[seed] - cell.accuracies[seed] for seed in seeds]
            by_similarity.setdefault(place.similarity, []).append(statistics.fmean(lost))
    statement = (
        f"{NAMES[dataset]}: the number of clients that jsam-even keeps is within {EACH_REGRET:g} points of the best "
        f"in hindsight at each s, on average over costs, and within {REGRET:g} over all"
    )
    if not by_similarity:
        return Claim(source=SOURCE, statement=statement, verdict=NOT_RUN, numbers="–")
    means = {similarity: statistics.fmean(lost) for similarity, lost in by_similarity.items()}
    whole = statistics.fmean([value for lost in by_similarity.values() for value in lost])
    held = whole <= REGRET and max(means.values()) <= EACH_REGRET
    numbers = ", ".join(f"{value:+.2f} at s = {similarity:g}" for similarity, value in means.items())
    most_seeds = max(len(cell.accuracies) for cell in _ours(results, dataset, cap=None).values())
    verdict = HOLDS if held else FAILS
    return Claim(
        source=SOURCE,
        statement=statement,
        verdict=so_far(verdict, ONE_SEED) if most_seeds == 1 else verdict,
        numbers=f"{numbers}; {whole:+.2f} over all",
    )


def _against_paper(results: Results, similarity: float, at_least: float, cap: float | None) -> Claim:
    ours = {place: cell for place, cell in _ours(results, "mnist", cap=cap).items() if place.similarity == similarity}
    pairs = [(cell.accuracy_mean, _paper(results, "mnist", place, cap=cap)) for place, cell in ours.items()]
    ahead = [
        mine - paper.accuracy_mean
        for mine, paper in pairs
        if mine is not None and paper is not None and paper.accuracy_mean is not None
    ]
    limit = "no cap" if cap is None else f"ε at most {cap:g} in both"
    more = f"at least {at_least:g} points above" if at_least else "not below"
    statement = f"MNIST, s = {similarity:g}, {limit}: jsam-even is {more} JSAM at its best Q, on average over costs"
    if not ahead:
        return Claim(source=SOURCE, statement=statement, verdict=NOT_RUN, numbers="–")
    mean = statistics.fmean(ahead)
    return Claim(
        source=SOURCE,
        statement=statement,
        verdict=HOLDS if mean >= at_least else FAILS,
        numbers=f"mean {mean:+.1f} points, {min(ahead):+.1f} to {max(ahead):+.1f} over {len(ahead)} costs",
    )


def _against_rivals(results: Results, names: Sequence[str]) -> Claim:
    who = "the best truthful rival" if names is TRUTHFUL else f"{names[0]} with honest bids"
    statement = (
        f"MNIST, ε at most {CAP:g}: at no cost and s jsam-even is below {who} by more than {ALONE:g} point or two "
        "standard errors"
    )
    ahead, below = [], []
    for place, cell in _ours(results, "mnist", cap=CAP).items():
        rivals = _at(results.cells(RIVALS), place)
        best = _best([rivals[name] for name in names if name in rivals])
        if best is None:
            continue
        pairs = [cell.accuracies[seed] - best.accuracies[seed] for seed in cell.accuracies if seed in best.accuracies]
        error = statistics.stdev(pairs) / math.sqrt(len(pairs)) if len(pairs) > 1 else 0.0
        ahead.append(statistics.fmean(pairs))
        if ahead[-1] < -max(ALONE, 2 * error):
            below.append(f"{ahead[-1]:+.1f} at s = {place.similarity:g}, cost {place.cost:g}")
    if not ahead:
        return Claim(source=SOURCE, statement=statement, verdict=NOT_RUN, numbers="–")
    numbers = (
        f"mean {statistics.fmean(ahead):+.1f} points, {min(ahead):+.1f} to {max(ahead):+.1f}, {len(ahead)} settings"
    )
    return Claim(
        source=SOURCE,
        statement=statement,
        verdict=FAILS if below else HOLDS,
        numbers="; ".join([numbers, *below]),
    )


def _ours(results: Results, dataset: str, *, cap: float | None) -> dict[Place, Cell]:
    """The cells of jsam-even with the weights that follow from what is public, where anything was run."""
    found: dict[Place, Cell] = {}
    for cell in results.cells(OWN[dataset]):
        c = cell.config
        if c.mechanism == EVEN and c.max_epsilon == cap and cell.records:
            found.setdefault(Place(c.similarity, c.cost), cell)  # the specification names the right weights first
    return dict(sorted(found.items(), key=lambda item: (-item[0].similarity, item[0].cost)))


def _shares(results: Results, dataset: str, place: Place) -> list[Cell]:
    """The m cheapest clients at the same cost, for every m that was run."""
    cells = _at(results.cells(EVERY_M[dataset]), place)
    return [cell for name, cell in cells.items() if name.startswith("fsbm") or name == "usbm"]


def _paper(results: Results, dataset: str, place: Place, *, cap: float | None) -> Cell | None:
    """The paper's mechanism at the Q, and the learning rate, that turned out best, if each seed was run."""
    seeds = {seed for cell in _ours(results, dataset, cap=cap).values() for seed in cell.accuracies}
    groups: dict[str, list[Record]] = {}
    for record in results.known.values():
        c = record.config
        same = (c.mechanism, c.dataset, c.noise, c.held_out) == ("jsam", dataset, "exact", False)
        bare = c.max_selection_prob is None and c.straggler_epsilon is None and c.heterogeneity is None
        if same and bare and c.max_epsilon == cap and Place(c.similarity, c.cost) == place and c.seed in seeds:
            groups.setdefault(c.changed(seed=0).key, []).append(record)
    return _best(
        [
            Cell(config=group[0].config, wanted=len(seeds), records=group)
            for group in groups.values()
            if {record.config.seed for record in group} == seeds
        ]
    )


def _at(cells: Sequence[Cell], place: Place) -> dict[str, Cell]:
    return {c.config.mechanism: c for c in cells if Place(c.config.similarity, c.config.cost) == place and c.records}


def _best(cells: Sequence[Cell]) -> Cell | None:
    return max((cell for cell in cells if cell.records), key=lambda cell: cell.accuracy_mean or 0.0, default=None)


def _number(cell: Cell) -> str:
    return "all" if cell.config.mechanism == "usbm" else cell.config.mechanism.removeprefix("fsbm-")


def _percent(cell: Cell | None) -> str:
    return "–" if cell is None or cell.accuracy_mean is None else f"{cell.accuracy_mean:.1f}"


def _paid(cell: Cell | None) -> str:
    """The mean of what was due over the seeds' clients."""
    paid = None if cell is None else cell.mean("total_payment")
    return "–" if paid is None else f"{paid:.3g}"


def _epsilon(cell: Cell | None) -> str:
    most = None if cell is None else cell.largest("epsilon_sold_max")
    return "–" if most is None else f"{most:.0f}"
