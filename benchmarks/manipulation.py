"""`python -m benchmarks.manipulation [--markets N] [--json FILE]`: clients that lie together, and clients that leave.

100 clients, prices from U(0, 1), loss weight 5. Pairs: the two cheapest, the dearest client kept with the cheapest one
dropped, and two that are kept, at random. A pair may report any two prices of a grid around the true ones; its gain is
in shares of its own truthful utility, and of all that the server pays.

Clients that leave after the contract take their draws with them. Left are the others' draws, their ε and payments as
agreed, and a loss bound with the draws that remain. Beside it stands what planning again without them would give.

Lots of records make splitting worthless, but count the noise otherwise than the loss bound does. The last rows say how
much worse the objective is than the best for the same priors, where clients hold different amounts of data.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import jsam
from benchmarks.output import store_content
from jsam.mechanism._arrays import BoolArray, FloatArray
from jsam.mechanism.bound import loss_bound
from jsam.mechanism.families import RangeMechanism
from jsam.mechanism.families.even import EvenJSAM
from jsam.mechanism.lots import priors_by_lots

CLIENTS = 100
UNIFORM = jsam.parse_prior("uniform:0,1")
FACTORS = np.array([0.25, 0.4, 0.6, 0.8, 0.9, 1.0, 1.1, 1.25, 1.6, 2.5, 5.0])
PAIRS = ("two cheapest", "last kept and first dropped", "two kept at random")
LEAVERS = {"the most drawn": 0.0, "a tenth": 0.1, "a quarter": 0.25, "a half": 0.5}  # of those who sell something
SIZES = {
    "300 to 900": lambda rng: rng.uniform(300, 900, CLIENTS),
    "100 to 1,100": lambda rng: rng.uniform(100, 1100, CLIENTS),
    "log-normal, s = 1": lambda rng: 364 * np.exp(rng.standard_normal(CLIENTS)),
}


@dataclass(frozen=True, kw_only=True)
class JointLie:
    """What pairs of one kind gain together, over all markets."""

    mechanism: str
    pair: str
    markets: int
    median: float
    highest_decile: float
    largest: float
    largest_of_payments: float  # of all that falls due

    @property
    def text(self) -> str:
        return (
            f"{self.mechanism:10} {self.pair:28} gain {self.median:+.2%} in the median, {self.highest_decile:+.1%} in"
            f" one of ten, {self.largest:+.1%} at most; at most {self.largest_of_payments:.2%} of all payments"
        )


@dataclass(frozen=True, kw_only=True)
class Leaving:
    """What is left of contracts when clients leave, in means over all markets."""

    mechanism: str
    leaving: str
    markets: int
    draws_lost: float
    saved: float  # share of the payments that is not due
    loss_bound: float  # over that of the whole contract
    planned_again: float  # the same with a new plan for those who stay
    others_epsilon_moves: float  # the largest change of ε of those who stay, if it is planned again

    @property
    def text(self) -> str:
        return (
            f"{self.mechanism:10} {self.leaving:15} takes {self.draws_lost:.1%} of the draws and saves"
            f" {self.saved:.1%} of the payments; loss bound × {self.loss_bound:.3f}, planned again"
            f" × {self.planned_again:.3f} (ε of others then moves by up to {self.others_epsilon_moves:.0%})"
        )


def mechanisms() -> list[RangeMechanism]:
    return [
        EvenJSAM(loss_weight=5.0),
        jsam.JSAM(loss_weight=5.0),
        jsam.USBM(loss_weight=5.0),
        jsam.FSBM(num_selected=20, loss_weight=5.0),
    ]


def planned(mechanism: RangeMechanism, prices: FloatArray) -> jsam.Contract:
    return mechanism.plan(jsam.Market(sensitivities=prices, prior=UNIFORM))


def pair_of(kind: str, contract: jsam.Contract, rng: np.random.Generator) -> tuple[int, int] | None:
    """The pair of that kind; None where nobody is dropped."""
    order = np.argsort(contract.sensitivities)
    kept = order[contract.epsilons[order] > 0]
    if kind == "two cheapest":
        return int(order[0]), int(order[1])
    if kind == "two kept at random":
        first, second = rng.choice(kept, 2, replace=False)
        return int(first), int(second)
    dropped = order[contract.epsilons[order] == 0]
    return (int(kept[-1]), int(dropped[0])) if len(dropped) else None


def utility(contract: jsam.Contract, pair: Sequence[int], prices: FloatArray) -> float:
    """What both are paid, minus what their ε costs them."""
    assert contract.payments is not None
    both = list(pair)
    return float((contract.payments[both] - prices[both] * contract.epsilons[both]).sum())


def joint_lies(mechanism: RangeMechanism, kind: str, markets: int) -> JointLie | None:
    gains, shares = [], []
    for seed in range(markets):
        rng = np.random.default_rng([seed, 2])
        prices = rng.uniform(0, 1, CLIENTS)
        truth = planned(mechanism, prices)
        pair = pair_of(kind, truth, rng)
        if pair is None:
            continue
        honest, best = utility(truth, pair, prices), -np.inf
        for factors in itertools.product(FACTORS, repeat=2):
            changed = prices.copy()
            changed[list(pair)] = np.minimum(prices[list(pair)] * factors, 1.0)
            best = max(best, utility(planned(mechanism, changed), pair, prices))
        gains.append(best / honest - 1)
        shares.append((best - honest) / float(truth.total_payment or 0.0))
    if not gains:
        return None
    return JointLie(
        mechanism=mechanism.name,
        pair=kind,
        markets=len(gains),
        median=float(np.median(gains)),
        highest_decile=float(np.quantile(gains, 0.9)),
        largest=max(gains),
        largest_of_payments=max(shares),
    )


def leavers(kind: str, contract: jsam.Contract, rng: np.random.Generator) -> BoolArray:
    """Who leaves, of those who sell something; True for each."""
    gone = np.zeros(contract.num_clients, dtype=bool)
    sellers = np.flatnonzero(contract.epsilons > 0)
    if LEAVERS[kind] == 0:
        gone[int(np.argmax(contract.selection_probs))] = True
    else:
        gone[rng.choice(sellers, max(1, round(LEAVERS[kind] * len(sellers))), replace=False)] = True
    return gone


def bound_with(contract: jsam.Contract, p: FloatArray, epsilons: FloatArray) -> float:
    """The loss bound of these draws, against the data of all clients."""
    w = contract.weights
    return loss_bound(
        p / p.sum(), epsilons, noise_weight=w.noise_weight, bias_weight=w.bias_weight, bias_rule=contract.bias_rule
    )


def after_leaving(mechanism: RangeMechanism, kind: str, markets: int) -> Leaving:
    rows = []
    for seed in range(markets):
        rng = np.random.default_rng([seed, 3])
        prices = rng.uniform(0, 1, CLIENTS)
        contract = planned(mechanism, prices)
        assert contract.payments is not None
        gone = leavers(kind, contract, rng)
        left = np.where(gone, 0.0, contract.selection_probs)
        again = planned(mechanism, prices[~gone])
        p, eps = np.zeros(CLIENTS), np.zeros(CLIENTS)
        p[~gone], eps[~gone] = again.selection_probs, again.epsilons
        stay = (left > 0) & (eps > 0)
        rows.append([
            float(contract.selection_probs[gone].sum()),
            float(contract.payments[gone].sum() / contract.payments.sum()),
            bound_with(contract, left, contract.epsilons) / contract.loss_bound,
            bound_with(contract, p, eps) / contract.loss_bound,
            float(np.abs(eps[stay] / contract.epsilons[stay] - 1).max()),
        ])  # fmt: skip
    lost, saved, bound, new, moves = np.mean(rows, axis=0)
    return Leaving(
        mechanism=mechanism.name,
        leaving=kind,
        markets=markets,
        draws_lost=float(lost),
        saved=float(saved),
        loss_bound=float(bound),
        planned_again=float(new),
        others_epsilon_moves=float(moves),
    )


@dataclass(frozen=True, kw_only=True)
class CostOfLots:
    """How much worse the objective is if data are counted by lots, with the average size as the lot."""

    sizes: str
    markets: int
    mean: float
    largest: float

    @property
    def text(self) -> str:
        return (
            f"lots, sizes {self.sizes}: objective {self.mean:+.2%} in the mean, {self.largest:+.2%} at most,"
            " over the best for the same priors"
        )


def cost_of_lots(name: str, markets: int) -> CostOfLots:
    lost = []
    for seed in range(markets):
        rng = np.random.default_rng([seed, 4])
        samples = np.maximum(1, np.rint(SIZES[name](rng))).astype(int).tolist()
        lot = round(float(np.mean(samples)))
        prices = rng.uniform(0, 1, CLIENTS) * np.array(samples) / lot
        market = jsam.Market(sensitivities=prices, prior=priors_by_lots(UNIFORM, samples, lot), samples=samples)
        by_lots = EvenJSAM(loss_weight=5.0, lot=lot).plan(market, payments=False)
        best = EvenJSAM(**vars(by_lots.weights)).plan(market, payments=False)
        lost.append(by_lots.objective / best.objective - 1)
    return CostOfLots(sizes=name, markets=markets, mean=float(np.mean(lost)), largest=max(lost))


Row = JointLie | Leaving | CostOfLots


def run(markets: int) -> Iterator[Row]:
    for mechanism in mechanisms():
        for kind in PAIRS:
            row = joint_lies(mechanism, kind, markets)
            if row is not None:
                yield row
        for kind in LEAVERS:
            yield after_leaving(mechanism, kind, markets)
    for sizes in SIZES:
        yield cost_of_lots(sizes, markets)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.manipulation", description=__doc__)
    parser.add_argument("--markets", type=int, default=20)
    parser.add_argument("--json", type=Path, metavar="FILE", help="store the results with versions and machine")
    options = parser.parse_args()
    rows = []
    for row in run(options.markets):
        rows.append(row)
        print(row.text, flush=True)
    if options.json is not None:
        content: dict[str, Any] = {
            "joint_lies": [asdict(row) for row in rows if isinstance(row, JointLie)],
            "cost_of_lots": [asdict(row) for row in rows if isinstance(row, CostOfLots)],
            "leaving": [asdict(row) for row in rows if isinstance(row, Leaving)],
        }
        store_content(content, options.json, module="benchmarks.manipulation")


if __name__ == "__main__":
    main()
