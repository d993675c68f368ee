"""`python -m benchmarks.misreports [--markets N] [--seconds S] [--json FILE]`: the best lie that an aimed search finds.

Random markets under priors that are hard to price: histograms with narrow spikes, with gaps and with many bins, learned
priors, mixtures that are known only point by point, families of scipy.stats with shapes over decades, one prior a
client, virtual costs over twelve decades; with and without caps, and under mechanisms that can drop nobody. A lie is
judged by planning the whole market again with it. The payments of the truth are compared with an integration that knows
nothing of the planner's, and the difference with the stated `payment_error_bound`. What is no refusal but an error
counts as crashed. `--seed` may be repeated, and `--jobs` changes only how long it takes.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats

import jsam
from benchmarks.output import machine
from jsam.errors import InputError
from jsam.mechanism._arrays import FloatArray
from jsam.mechanism.families import RangeMechanism
from jsam.mechanism.families.usbm import CompensatedUSBM
from tests.oracles import dense_payment

GAIN_BAR = 1e-6
LIES, JUDGED, CLIENTS = 160, 3, 2
BATCH = 50  # markets between two looks at the clock
ORACLE = 1e-10  # relative accuracy asked of the independent integration
MOST_ASKED = 200_000  # reports about which that may ask
MARGIN = 3e-10  # relative, what it may miss beyond the error that it estimates


class SpikedMixture:
    """Uniform stretches and smooth parts, offered as functions alone: where it steps nobody is told."""

    def __init__(self, parts: list[Any], weights: FloatArray) -> None:
        self.parts, self.weights = parts, weights / weights.sum()

    def support(self) -> tuple[float, float]:
        ends = [part.support() for part in self.parts]
        return float(min(a for a, _ in ends)), float(max(b for _, b in ends))

    def _mean(self, name: str, x: Any) -> FloatArray:
        values = [w * getattr(part, name)(x) for w, part in zip(self.weights, self.parts, strict=True)]
        return np.asarray(np.sum(values, axis=0))

    def pdf(self, x: Any) -> Any:
        return self._mean("pdf", x)

    def cdf(self, x: Any) -> Any:
        return self._mean("cdf", x)

    def logpdf(self, x: Any) -> Any:
        with np.errstate(divide="ignore"):
            return np.log(self.pdf(x))

    def logcdf(self, x: Any) -> Any:
        with np.errstate(divide="ignore"):
            return np.log(self.cdf(x))

    def sf(self, x: Any) -> Any:
        return self._mean("sf", x)

    def ppf(self, q: Any) -> Any:
        bottom, top = self.support()
        low, high = np.full(np.shape(q), bottom), np.full(np.shape(q), top)
        for _ in range(80):
            middle = low + (high - low) / 2
            reached = self.cdf(middle) >= q
            low, high = np.where(reached, low, middle), np.where(reached, middle, high)
        return high[()]

    def isf(self, q: Any) -> Any:
        return self.ppf(1 - np.asarray(q))

    def rvs(self, size: Any = 1, random_state: Any = None) -> Any:
        rng = np.random.default_rng(random_state)
        return self.ppf(rng.uniform(0, 1, size))


@dataclass(frozen=True, kw_only=True)
class Hard:
    """A prior with the places where a lie is likeliest to pay."""

    kind: str
    prior: Any
    places: FloatArray


def _histogram(kind: str, masses: FloatArray, edges: FloatArray, scale: float) -> Hard:
    edges = edges * scale
    with np.errstate(divide="ignore"):
        prior = scipy.stats.rv_histogram((masses, edges), density=False)
    heavy = np.argsort(-masses / np.diff(edges))[:20]
    few = edges if len(edges) <= 64 else np.concatenate([edges[heavy], edges[heavy + 1]])
    return Hard(kind=kind, prior=prior, places=np.concatenate([few, (edges[heavy] + edges[heavy + 1]) / 2]))


def _spiky(rng: np.random.Generator, scale: float) -> Hard:
    edges, masses, at = [0.0], [], 0.0
    for start in np.sort(rng.uniform(0.02, 0.98, rng.integers(1, 4))):
        if start <= at:
            continue
        width = 10.0 ** rng.uniform(-8, -5)
        masses += [start - at, 10.0 ** rng.uniform(-7, -2.2)]
        edges += [start, start + width]
        at = start + width
    return _histogram("spiky", np.array([*masses, 1 - at]), np.array([*edges, 1.0]), scale)


def _gapped(rng: np.random.Generator, scale: float) -> Hard:
    n = int(rng.integers(3, 40))
    edges = np.concatenate([[rng.choice([0.0, 0.1])], 0.1 + np.cumsum(10.0 ** rng.uniform(-5, 0, n))])
    masses = 10.0 ** rng.uniform(-4, 0, n) * (rng.random(n) > 0.3)
    masses[rng.integers(n)] = 1.0
    return _histogram("gapped", masses, edges, scale)


def _fine(rng: np.random.Generator, scale: float) -> Hard:
    sample = rng.beta(2, 5, int(rng.choice([300, 20_000])))
    masses, edges = np.histogram(sample, bins=int(rng.choice([15, 200, 1000])))
    return _histogram("histogram", masses.astype(np.float64), edges, scale)


def _decades(rng: np.random.Generator, scale: float) -> Hard:
    edges = np.concatenate([[0.0], 10.0 ** np.linspace(-6, 6, int(rng.integers(4, 30)))])
    return _histogram("twelve decades", 10.0 ** rng.uniform(-3, 0, len(edges) - 1), edges, scale)


def _learned(rng: np.random.Generator, scale: float) -> Hard:
    past = scale * np.exp(rng.choice([-1.0, 0.5, 2.0], 60) + rng.uniform(0.05, 0.5) * rng.standard_normal(60))
    return Hard(kind="empirical", prior=jsam.EmpiricalPrior(reports=past), places=past[:20])


def _mixed(rng: np.random.Generator, scale: float) -> Hard:
    start, width = scale * rng.uniform(0.1, 0.8), scale * 10.0 ** rng.uniform(-9, -2)
    parts = [
        scipy.stats.uniform(0, scale) if rng.random() < 0.5 else scipy.stats.beta(2, 4, scale=scale),
        scipy.stats.uniform(start, width),
        scipy.stats.uniform(scale * 0.9, scale * 0.6),
    ]
    weights = np.array([1.0, 10.0 ** rng.uniform(-7, -0.5), rng.choice([0.0, 0.3])])
    kept = [part for part, w in zip(parts, weights, strict=True) if w > 0]
    places = np.array([start, start + width / 2, start + width, scale * 0.9, scale])
    return Hard(kind="mixed", prior=SpikedMixture(kept, weights[weights > 0]), places=places)


def _smooth(rng: np.random.Generator, scale: float) -> Hard:
    priors = (
        scipy.stats.uniform(0, scale),
        scipy.stats.beta(2, 5, scale=scale),
        scipy.stats.lognorm(s=0.8, scale=scale),
        scipy.stats.beta(0.6, 0.7, scale=scale),
        scipy.stats.triang(0.3, scale=scale),
        scipy.stats.truncnorm(-2, 2, loc=2.5 * scale, scale=scale),
    )
    return Hard(kind="smooth", prior=priors[rng.integers(len(priors))], places=scale * rng.uniform(0, 1, 4))


# Families of scipy.stats whose distribution function takes no quadrature; their shapes are positive numbers.
# fmt: off
ORDINARY = (
    "alpha", "anglit", "arcsine", "argus", "beta", "betaprime", "bradford", "burr", "burr12", "chi", "chi2", "cosine",
    "erlang", "expon", "exponpow", "exponweib", "f", "fatiguelife", "fisk", "foldnorm", "gamma", "gengamma",
    "gompertz", "halfgennorm", "halflogistic", "halfnorm", "invgamma", "invgauss", "invweibull", "johnsonsb",
    "kappa3", "levy", "lognorm", "loguniform", "lomax", "maxwell", "mielke", "nakagami", "pareto", "powerlaw",
    "powerlognorm", "rayleigh", "recipinvgauss", "semicircular", "triang", "truncexpon", "truncnorm", "vonmises_line",
    "wald", "weibull_min",
)
# fmt: on


def _ordinary(rng: np.random.Generator, scale: float) -> Hard:
    """A family with random shapes: some densities underflow far below the top, and some far above the bottom."""
    while True:
        name = str(rng.choice(ORDINARY))
        family = getattr(scipy.stats, name)
        shapes = 10.0 ** rng.uniform(-1, 2.5, family.numargs)
        if name == "triang":
            shapes = rng.uniform(0, 1, 1)
        elif name in ("truncnorm", "loguniform"):
            shapes = np.sort(rng.uniform(-40, 60, 2) if name == "truncnorm" else shapes)
        elif name == "erlang":
            shapes = np.ceil(shapes)
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            bottom = float(family(*shapes).support()[0])
            shift = scale * (max(-bottom, 0.0) + float(rng.choice([0.0, 0.0, 0.3])))
            prior = family(*shapes, loc=shift, scale=scale)
            low, middle, high = (float(x) for x in prior.ppf([1e-6, 0.5, 1 - 1e-6]))
        if 0 < low < middle < high < math.inf and math.isfinite(bottom):
            break
    far = np.array([high, (high + prior.support()[1]) / 2, prior.support()[1]])
    return Hard(kind=name, prior=prior, places=np.append(far[np.isfinite(far)], [low, middle]))


KINDS = (_spiky, _gapped, _fine, _decades, _learned, _mixed, _smooth, _ordinary, _ordinary)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A market, a mechanism, and for each client where to look for lies."""

    kind: str
    market: jsam.Market
    mechanism: RangeMechanism
    places: list[FloatArray]


def random_case(rng: np.random.Generator, *, caps: bool) -> Case:
    """One market of the search; every fourth has a prior for each client, with scales over twelve decades."""
    N = int(rng.choice([1, 2, 3, 5, 8, 20, 50], p=[0.05, 0.15, 0.15, 0.25, 0.2, 0.15, 0.05]))
    each = rng.random() < 0.25
    make = [KINDS[rng.integers(len(KINDS))] for _ in range(min(N, 8) if each else 1)]
    scale = 10.0 ** rng.uniform(-6, 6)
    hard = [one(rng, scale * 10.0 ** rng.uniform(-6, 6) if each else scale) for one in make]
    of = [hard[k % len(hard)] for k in range(N)]
    c = np.array([_drawn(h, rng) for h in of])
    # So that neither all nor none are kept: the loss weight in units of what one ε costs.
    eta = float(np.median(c) * 10.0 ** rng.uniform(-2, 3))
    settings: dict[str, Any] = {
        "loss_weight": eta,
        "noise_weight": 10.0 ** rng.uniform(-2, 2),
        "tolerance": 10.0 ** rng.uniform(-9, -3),
    }
    if caps and rng.random() < 0.4:
        settings["max_epsilon"] = 10.0 ** rng.uniform(-9, 3)
    if caps and rng.random() < 0.4:
        settings["max_selection_prob"] = float(rng.uniform(1 / N, 1))
    losses = rng.uniform(1, 2, N)
    pick = rng.random()
    mechanism: RangeMechanism
    if rng.random() < 0.25:
        mechanism = _of_whom_nobody_is_dropped(rng, N, settings)
    elif pick < 0.15:
        settings.pop("max_selection_prob", None)
        mechanism = jsam.FSBM(num_selected=int(rng.integers(1, N + 1)), **settings)
    elif pick < 0.2:
        settings.pop("max_selection_prob", None)
        mechanism = jsam.USBM(**settings)
    else:
        mechanism = jsam.JSAM(**settings)
    prior: Any = [h.prior for h in of] if each else hard[0].prior
    market = jsam.Market(sensitivities=c, prior=prior, losses=losses)
    return Case(
        kind="each" if each else hard[0].kind, market=market, mechanism=mechanism, places=[h.places for h in of]
    )


def _of_whom_nobody_is_dropped(rng: np.random.Generator, N: int, settings: dict[str, Any]) -> RangeMechanism:
    """A mechanism that keeps everybody, whatever they report: payments then count the whole tail of the prior."""
    settings = {**settings, "max_selection_prob": None}
    p = rng.uniform(1, 3, N)
    made: list[RangeMechanism] = [
        jsam.USBM(**settings),
        CompensatedUSBM(selection_probs=p / p.sum(), **settings),
        jsam.FSBM(num_selected=N, **settings),
        jsam.BBM(num_selected=N, **settings),
        jsam.JSAM(**{**settings, "max_selection_prob": float(rng.uniform(1 / N, 1 / max(N - 1, 1)))}),
    ]
    return made[rng.integers(len(made))]


def _drawn(hard: Hard, rng: np.random.Generator) -> float:
    bottom, top = hard.prior.support()
    if rng.random() < 0.3:  # a truth on or beside a place of interest
        z = float(rng.choice(hard.places)) * (1 + float(rng.choice([0, 1e-12, 1e-6, -1e-6, -1e-2])))
    else:
        z = float(np.ravel(hard.prior.ppf(rng.uniform(1e-6, 1 - 1e-6)))[0])
    inside = min(max(z, bottom), top)
    return inside if inside > 0 and math.isfinite(inside) else float(np.ravel(hard.prior.ppf(0.5))[0])


@dataclass(kw_only=True)
class Found:
    """The worst of a search."""

    markets: int = 0
    refused: int = 0
    crashed: int = 0
    crashed_at: str = ""
    lies_judged: int = 0
    payments_checked: int = 0
    payments_unsettled: int = 0  # too rough for the independent integration
    largest_gain: float = -math.inf
    largest_gain_at: str = ""
    largest_bound_ratio: float = 0.0
    largest_bound_ratio_at: str = ""
    over_bar: int = 0
    over_bound: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    mechanisms: Counter[str] = field(default_factory=Counter)

    def joined(self, other: Found) -> Found:
        """Both searches together."""
        found = Found(**{
            name: mine + vars(other)[name] if isinstance(mine, int | Counter) else mine
            for name, mine in vars(self).items()
        })  # fmt: skip
        for worst in ("largest_gain", "largest_bound_ratio", "crashed"):
            if vars(other)[worst] > vars(self)[worst] or (worst == "crashed" and not self.crashed):
                setattr(found, f"{worst}_at", vars(other)[f"{worst}_at"])
                if worst != "crashed":
                    setattr(found, worst, vars(other)[worst])
        return found


def lies(case: Case, client: int, rng: np.random.Generator) -> FloatArray:
    """Where a lie may pay: beside breakpoints, spikes and others' reports, at the falls of ε, and anywhere."""
    market = case.market
    truth, cost = float(market.sensitivities[client]), market.cost_of(client)
    prior: Any = market.prior[client] if isinstance(market.prior, tuple) else market.prior
    near: FloatArray = np.concatenate([case.places[client], market.sensitivities, [truth]])
    beside = (near[:, None] * (1 + np.array([0, 1e-15, -1e-15, 1e-9, -1e-9, 1e-4, -1e-4, 0.1, -0.1]))).ravel()
    anywhere = np.asarray(prior.ppf(rng.uniform(0, 1, 40)))
    z = np.concatenate([rng.permutation(beside)[: LIES - 40], case.places[client], anywhere])
    z = np.unique(z[(z >= cost.bottom) & (z <= cost.top) & (z > 0) & (z != truth) & np.isfinite(z)])
    eps = case.mechanism.respond(market, client, z, payments=False).epsilons
    steps = np.argsort(np.diff(eps))[:4] if len(z) > 1 else np.zeros(0, dtype=np.int64)
    falls = []
    for i in steps:
        low, high, middle_eps = z[i], z[i + 1], (eps[i] + eps[i + 1]) / 2
        for _ in range(30):
            middle = low + (high - low) / 2
            above = case.mechanism.respond(market, client, np.array([middle]), payments=False).epsilons[0] > middle_eps
            low, high = (middle, high) if above else (low, middle)
        falls += [low, high]
    return np.unique(np.concatenate([z, falls]))


def search(case: Case, rng: np.random.Generator, found: Found, *, integrate: bool = True) -> None:
    """Look for a client that gains, and for a payment off by more than the stated bound."""
    market, mechanism = case.market, case.mechanism
    try:
        truth = mechanism.plan(market)
    except InputError:
        found.refused += 1
        return
    assert truth.payments is not None
    found.markets += 1
    found.kinds[case.kind] += 1
    found.mechanisms[mechanism.name.partition("-")[0]] += 1
    c, floor = market.sensitivities, 1e-9 * float(truth.payments.sum())
    for client in rng.permutation(market.num_clients)[:CLIENTS].tolist():
        honest = float(truth.payments[client] - c[client] * truth.epsilons[client])
        z = lies(case, client, rng)
        if len(z) == 0:
            continue
        try:
            said = mechanism.respond(market, client, z)
            gains = said.payments - c[client] * said.epsilons - honest
            order = np.argsort(-np.where(np.isnan(gains), np.inf, gains))
        except InputError:  # one of these reports is refused; each is planned on its own
            order = rng.permutation(len(z))
        for lie in [*z[order[: JUDGED - 1]].tolist(), float(rng.choice(z))]:
            try:
                told = mechanism.plan(market.with_report(client, lie))
            except InputError:
                continue  # who is refused earns nothing
            assert told.payments is not None
            found.lies_judged += 1
            paid = float(told.payments[client])
            scale = max(float(truth.payments[client]), paid, floor, np.finfo(np.float64).tiny)
            gain = (paid - c[client] * float(told.epsilons[client]) - honest) / scale
            # A payment known to within a tolerance lets a lie gain as much.
            stated = ((truth.payment_error_bound or 0.0) + (told.payment_error_bound or 0.0)) / scale
            if mechanism.tolerance > GAIN_BAR / 4 and gain <= stated:
                continue
            gain = math.inf if math.isnan(gain) else gain
            if gain > found.largest_gain:
                found.largest_gain, found.largest_gain_at = float(gain), _described(case, client, lie)
            found.over_bar += int(gain > GAIN_BAR)
        if integrate and truth.epsilons[client] > 0:
            _check_payment(case, truth, client, found)


def _check_payment(case: Case, truth: jsam.Contract, client: int, found: Found) -> None:
    cost = case.mechanism.price(case.market.cost_of(client))

    asked = 0

    def epsilon(z: FloatArray) -> FloatArray:
        nonlocal asked
        asked += len(z)
        if asked > MOST_ASKED:
            raise RuntimeError("too rough")
        return case.mechanism.respond(case.market, client, z, payments=False).epsilons

    assert truth.payments is not None
    try:
        exact, error = dense_payment(
            epsilon, float(case.market.sensitivities[client]), cost.far_report(), rel_tol=ORACLE, jump_width=1e-13
        )
    except (RuntimeError, ValueError, ZeroDivisionError):  # too rough, or nothing above the report
        found.payments_unsettled += 1
        return
    found.payments_checked += 1
    paid = float(truth.payments[client])
    over = max(abs(paid - exact) - 2 * error - MARGIN * paid, 0.0) if math.isfinite(paid) else math.inf
    bound = truth.payment_error_bound or 0.0
    ratio = over / bound if bound > 0 else (math.inf if over > 0 else 0.0)
    found.over_bound += int(ratio > 1)
    if ratio > found.largest_bound_ratio:
        found.largest_bound_ratio, found.largest_bound_ratio_at = float(ratio), _described(case, client, paid)


def _described(case: Case, client: int, number: float) -> str:
    return f"{_named(case)}, client {client}, {number!r}"


def _named(case: Case) -> str:
    prior: Any = case.market.prior
    what = "" if isinstance(prior, tuple) or not hasattr(prior, "kwds") else f" {prior.args} {prior.kwds}"
    return f"{case.kind}{what}, {case.mechanism!r}, c = {case.market.sensitivities.tolist()}"


def searched(seed: int, number: int, *, caps: bool, integrate: bool) -> Found:
    """What the market of this number brings; an error that is no refusal is a finding too."""
    rng, found = np.random.default_rng([seed, number]), Found()
    case = None
    try:
        case = random_case(rng, caps=caps)
        search(case, rng, found, integrate=integrate)
    except InputError as error:
        # Some shapes of some families give no numbers; only a market that was taken must be served.
        found.refused, found.crashed = int(case is None), int(case is not None)
        found.crashed_at = "" if case is None else f"seed {seed}, market {number}: {error}; {_named(case)}"
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what is searched for
        what = "its market" if case is None else _named(case)
        found.crashed, found.crashed_at = 1, f"seed {seed}, market {number}: {type(error).__name__}: {error}; {what}"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.misreports", description=__doc__)
    parser.add_argument("--markets", type=int, default=2000, help="how many markets to try at most, for each seed")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after so long")
    parser.add_argument("--seed", type=int, action="append", help="default 0; repeat for more")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--no-caps", action="store_true", help="leave out caps on ε and p")
    parser.add_argument("--no-integration", action="store_true", help="leave out the check of the stated error bound")
    parser.add_argument("--json", type=Path, metavar="FILE", help="store what was found")
    options = parser.parse_args()
    found, begun = Found(), time.monotonic()
    one = partial(searched, caps=not options.no_caps, integrate=not options.no_integration)
    tasks = [(seed, number) for number in range(options.markets) for seed in options.seed or [0]]
    with ProcessPoolExecutor(options.jobs) as pool:
        for done in range(0, len(tasks), BATCH):
            if time.monotonic() - begun > options.seconds:
                break
            for other in pool.map(one, *zip(*tasks[done : done + BATCH], strict=True)):
                found = found.joined(other)
            text = f"… {found.markets}: gain {found.largest_gain:.2e}, error over bound {found.largest_bound_ratio:.2g}"
            print(f"{text}, crashed {found.crashed} {found.crashed_at}", file=sys.stderr, flush=True)
    content = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python", "-m", "benchmarks.misreports", *sys.argv[1:]]),
        **machine(("numpy", "scipy", "jsam")),
        "seconds": round(time.monotonic() - begun),
        "gain_bar": GAIN_BAR,
        **asdict(found),
        "kinds": dict(sorted(found.kinds.items())),
        "mechanisms": dict(sorted(found.mechanisms.items())),
    }
    text = json.dumps(content, indent=2, ensure_ascii=False)
    print(text)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
