"""`python -m benchmarks.several_ids [--draws N] [--json FILE]`: what an owner gains by taking part under several ids.

One owner and 99 others of 600 records each, prices drawn from the prior. The owner's price is drawn among those at
which it sells something under one id. It may put the same records under every id, split its records, or state more
records than it has. A record that stands under several ids loses the sum of their ε; of records that are split, each
loses what its own id sells. The owner's utility is what its ids are paid, minus c × the ε that a record loses, on
average over its records. Ids report alike: what the owner's price is for an id's share of its cost, or the best of a
grid around it; for two ids also the best pair of reports.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

import jsam
from benchmarks.output import store_content
from jsam.mechanism.families import RangeMechanism
from jsam.mechanism.families.even import EvenJSAM
from jsam.mechanism.lots import priors_by_lots
from jsam.mechanism.priors import Prior, UniformPrior
from jsam.mechanism.solver.closed_form import best_cost

OTHERS, RECORDS = 99, 600
GRID = np.exp(np.linspace(np.log(0.1), np.log(2.5), 12))
PAIRS = np.exp(np.linspace(np.log(0.3), np.log(1.8), 8))
BAR = 0.05
USUAL = {"loss_weight": 5.0}
BY_FORMULA = {"loss_weight": 100.0, "noise_weight": 8.0, "bias_weight": 0.4**0.5}
SETTINGS = {
    "U(0, 1), η = 5, Q = 1, ζ = 1": ("uniform:0,1", USUAL),
    "U(0, 1), η = 100, Q = 8, ζ² = 0.4": ("uniform:0,1", BY_FORMULA),
    "Beta(2, 5), η = 5, Q = 1, ζ = 1": ("beta:2,5", USUAL),
}


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A mechanism, and what it knows of sizes: nothing, what each id states, or prices and data by lots as well."""

    name: str
    mechanism: RangeMechanism
    prior: Prior
    sizes: str

    def plan(self, prices: Sequence[float], samples: Sequence[int]) -> jsam.Contract:
        if self.sizes == "by lots":
            priors = priors_by_lots(self.prior, samples, RECORDS)
            market = jsam.Market(sensitivities=np.array(prices), prior=priors, samples=samples)
        else:
            stated = samples if self.sizes == "stated" else None
            market = jsam.Market(sensitivities=np.array(prices), prior=self.prior, samples=stated)
        return self.mechanism.plan(market)


@dataclass(frozen=True, kw_only=True)
class Way:
    """How an owner shows itself: `ids` of so many records each, and what part of ε a record loses for each id's."""

    name: str
    ids: int
    records: int
    loses: float  # of every id's ε
    share: float = 1.0  # of the owner's cost that an id's ε causes: what it reports if it reports the truth


ALONE = Way(name="one id", ids=1, records=RECORDS, loses=1.0)
WAYS = (
    Way(name="two ids, the same records", ids=2, records=RECORDS, loses=1.0),
    Way(name="ten ids, the same records", ids=10, records=RECORDS, loses=1.0),
    Way(name="two ids, records split", ids=2, records=RECORDS // 2, loses=1 / 2, share=1 / 2),
    Way(name="ten ids, records split", ids=10, records=RECORDS // 10, loses=1 / 10, share=1 / 10),
    Way(name="one id, twice the records stated", ids=1, records=2 * RECORDS, loses=1.0),
    Way(name="one id, ten times the records stated", ids=1, records=10 * RECORDS, loses=1.0),
)


@dataclass(frozen=True, kw_only=True)
class Owner:
    """One owner among others."""

    price: float
    others: tuple[float, ...]

    def utility(self, rule: Rule, way: Way, reports: Sequence[float]) -> float:
        """What the owner's ids are paid, minus the cost of what its records lose; one report for each id."""
        samples = [way.records] * way.ids + [RECORDS] * OTHERS
        contract = rule.plan([*reports, *self.others], samples)
        assert contract.payments is not None
        lost = way.loses * float(contract.epsilons[: way.ids].sum())
        return float(contract.payments[: way.ids].sum()) - self.price * lost

    def best(self, rule: Rule, way: Way, factors: Iterator[tuple[float, ...]]) -> float:
        """The highest utility over reports that are so many times the true ones."""
        true = self.price * way.share
        # The highest report that the prior of an id of this size allows.
        top = way.records / RECORDS if rule.sizes == "by lots" else 1.0
        tried = [tuple(min(true * factor, top) for factor in some) for some in factors]
        return max(self.utility(rule, way, reports) for reports in dict.fromkeys(tried))

    def bound(self, rule: Rule, way: Way) -> float:
        """What ids that split the owner's records and report the truth are worth to it at most, under a uniform prior.

        Without an id the best is at most as dear as the selection at hand without it: each id that is kept earns at
        most half of what the objective F then rises by, since v = 2c. F takes the lots kept and the sum of lots × v^⅔.
        """
        true = self.price * way.share
        contract = rule.plan([*[true] * way.ids, *self.others], [way.records] * way.ids + [RECORDS] * OTHERS)
        lots = np.array([way.records] * way.ids + [RECORDS] * OTHERS) / RECORDS
        weights = lots * np.cbrt(contract.virtual_costs / lots) ** 2
        kept = contract.epsilons > 0
        U, W = float(lots[kept].sum()), float(weights[kept].sum())
        here = least_objective(rule.mechanism, U, W, lots.sum())
        rises = [
            least_objective(rule.mechanism, U - lots[i], W - weights[i], lots.sum()) - here
            for i in range(way.ids)
            if kept[i]
        ]
        return sum(rises) / 2


def least_objective(mechanism: RangeMechanism, lots: float, weight: float, all_lots: float) -> float:
    """The least objective of a selection that holds so many lots and has this sum of lots × v^(2/3)."""
    d = np.array(mechanism.bias_weight * np.sqrt(max(1 / lots - 1 / all_lots, 0.0)))
    S = np.array(weight / lots ** (2 / 3))
    value, _ = best_cost(d, d * d, np.sqrt(mechanism.noise_weight) * S**1.5, mechanism.loss_weight)
    return float(value)


@dataclass(frozen=True, kw_only=True)
class Row:
    """Gains in shares of the utility under one id, over all draws."""

    setting: str
    rule: str
    sizes: str
    way: str
    draws: int
    kept_alone: float  # clients kept while the owner has one id, the median
    true_median: float  # with true reports
    best_median: float  # with the best common report
    best_quartiles: tuple[float, float]
    best_largest: float
    best_over_bar: float  # share of draws in which the best gains more than the bar
    pair_median: float | None = None  # with the best pair of reports, for two ids of jsam-even whose records are split
    bound_median: float | None = None  # proved for true reports, by lots (docs/manipulation.md)

    @property
    def text(self) -> str:
        pair = "" if self.pair_median is None else f"; best pair {self.pair_median:+.1%}"
        bound = "" if self.bound_median is None else f"; proved bound {self.bound_median:+.1%}"
        return (
            f"{self.setting:33} {self.rule:10} sizes {self.sizes:8} {self.way:37} true {self.true_median:+9.1%}, best"
            f" {self.best_median:+9.1%} ({self.best_quartiles[0]:+.1%} to {self.best_quartiles[1]:+.1%}, most"
            f" {self.best_largest:+.0%}; over {BAR:.0%}: {self.best_over_bar:.0%}){pair}{bound}"
        )


def rules(prior: Prior, weights: dict[str, float]) -> list[Rule]:
    """Without sizes, with stated sizes, and `jsam-even` by lots; other mechanisms under the usual setting alone."""
    made: list[RangeMechanism] = [EvenJSAM(**weights)]
    if weights is USUAL and isinstance(prior, UniformPrior):
        made += [
            jsam.JSAM(**weights),
            jsam.USBM(selection_probs=None, **weights),
            jsam.FSBM(num_selected=20, **weights),
        ]
    plain = [
        Rule(name=some.name, mechanism=some, prior=prior, sizes=sizes) for sizes in ("none", "stated") for some in made
    ]
    return [*plain, Rule(name="jsam-even", mechanism=EvenJSAM(**weights, lot=RECORDS), prior=prior, sizes="by lots")]


def owner_who_sells(rule: Rule, rng: np.random.Generator) -> tuple[Owner, float, int]:
    """An owner, its utility under one id and how many clients are kept then; those who sell nothing are drawn again."""
    while True:
        price, *others = rule.prior.ppf(rng.uniform(0, 1, OTHERS + 1)).tolist()
        owner = Owner(price=price, others=tuple(others))
        contract = rule.plan([owner.price, *owner.others], [RECORDS] * (OTHERS + 1))
        if contract.epsilons[0] > 0:
            return owner, owner.utility(rule, ALONE, [owner.price]), contract.num_selected


def run(draws: int, names: Sequence[str]) -> Iterator[Row]:
    """Every mechanism and every way in turn."""
    for setting, (prior, weights) in SETTINGS.items():
        for rule in (
            rule
            for rule in rules(jsam.parse_prior(prior), weights)
            if f"{rule.name} {rule.sizes}" in names or not names
        ):
            drawn = [owner_who_sells(rule, np.random.default_rng(seed)) for seed in range(draws)]
            for way in WAYS:
                if rule.sizes == "none" and way.ids == 1:
                    continue  # nobody asks for the records
                true, best, pairs, bounds = [], [], [], []
                for owner, alone, _ in drawn:
                    true.append(owner.utility(rule, way, [owner.price * way.share] * way.ids) / alone - 1)
                    common = owner.best(rule, way, ((factor,) * way.ids for factor in GRID))
                    best.append(max(common / alone - 1, true[-1]))
                    if rule.sizes == "by lots" and way.share < 1 and isinstance(rule.prior, UniformPrior):
                        bounds.append(owner.bound(rule, way) / alone - 1)
                    if isinstance(rule.mechanism, EvenJSAM) and way.ids == 2 and way.share < 1:
                        pair = owner.best(rule, way, iter(itertools.combinations_with_replacement(PAIRS, 2)))
                        pairs.append(max(pair / alone - 1, best[-1]))
                low, high = np.quantile(best, [0.25, 0.75])
                yield Row(
                    setting=setting,
                    rule=rule.name,
                    sizes=rule.sizes,
                    way=way.name,
                    draws=draws,
                    kept_alone=float(np.median([kept for _, _, kept in drawn])),
                    true_median=float(np.median(true)),
                    best_median=float(np.median(best)),
                    best_quartiles=(float(low), float(high)),
                    best_largest=max(best),
                    best_over_bar=float(np.mean(np.array(best) > BAR)),
                    pair_median=float(np.median(pairs)) if pairs else None,
                    bound_median=float(np.median(bounds)) if bounds else None,
                )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.several_ids", description=__doc__)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--rule", action="append", help='such as "jsam-even by lots"; repeat for more')
    parser.add_argument("--json", type=Path, metavar="FILE", help="store the results with versions and machine")
    options = parser.parse_args()
    rows = []
    for row in run(options.draws, options.rule or []):
        rows.append(row)
        print(row.text, flush=True)
    if options.json is not None:
        content = {
            "rows": [asdict(row) for row in rows],
        }
        store_content(content, options.json, module="benchmarks.several_ids")


if __name__ == "__main__":
    main()
