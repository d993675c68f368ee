"""What a contract demands of every release, derived again and held against the ledger.

The accountants judge the noise that a ledger claims; whether it claims the noise that was due is judged here. Nothing
is shared with the calibration under check: its curve is Φ(−a) − e^ε Φ(−b) in logs, here the same δ is an integral
without a difference in it. With a = ε/μ − μ/2, ∂δ/∂μ = φ(a) (docs/theory.md), so

    δ(ε, μ) = ∫₀^μ φ(ε/x − x/2) dx = √(2ε) ∫_t^∞ φ(√(2ε) sinh u) e^(−u) du,   μ = √(2ε) e^(−t)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jsam.errors import InputError
from jsam.privacy.releases import Client, Query, Release

Draw = tuple[int, Client]
FloatArray = NDArray[np.float64]

# Noise may be above what is needed by what the calibration promises at most, and below it by rounding alone.
MOST_ABOVE = 1e-5
ROUNDING = 1e-9

_FARTHEST = 9.0  # Φ(−9) is 1e-19
_TAIL = 80.0  # e^(−80/2) of the integrand's first value is left out
_PANELS = 32
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(10)
_HALVINGS = 48
_AT_ONCE = 512


@dataclass(frozen=True, kw_only=True)
class Demands:
    """The contract's side: what was sold, who is drawn when, and how gradients are clipped and noised.

    `samples` is None where a run's files do not tell; then the ledger's own, which must not change, are taken.
    `applied` is how many rounds have changed the model: their releases must all be recorded. `label_epsilon` is what
    each client sold for its label counts before the first round; None where nobody was asked for them.
    """

    epsilons: Mapping[Client, float]
    draws: Mapping[Draw, int]
    delta: float
    adjacency: str
    clip_norm: float
    noise: str
    c2: float | None
    samples: Mapping[Client, int] | None = None
    applied: int = 0
    label_epsilon: float | None = None

    def multipliers(self) -> dict[Client, float]:
        """Each drawn client's noise std for a single draw, ÷ (C/M)."""
        times: dict[Client, int] = {}
        for (_, client), m in self.draws.items():
            times[client] = times.get(client, 0) + m
        drawn = [client for client in times if self.epsilons.get(client, 0.0) > 0]
        eps = np.array([self.epsilons[client] for client in drawn], dtype=np.float64)
        counts = np.array([times[client] for client in drawn], dtype=np.float64)
        if self.noise not in _MULTIPLIERS:
            raise InputError(f"noise is {self.noise!r}; what it demands cannot be told")
        return dict(zip(drawn, _MULTIPLIERS[self.noise](self, eps, counts).tolist(), strict=True))


def _exact(demands: Demands, eps: FloatArray, counts: FloatArray) -> FloatArray:
    return np.asarray(_moved(demands.adjacency) * np.sqrt(counts) / needed_mus(eps, demands.delta))


def _lemma1(demands: Demands, eps: FloatArray, counts: FloatArray) -> FloatArray:
    if demands.c2 is None:
        raise InputError("noise is 'lemma1' without c2; what it demands cannot be told")
    return np.asarray(demands.c2 * np.sqrt(counts * math.log(1 / demands.delta)) / eps)


# Written again for every noise rule: nothing is taken from the rules that are judged here.
_MULTIPLIERS: dict[str, Callable[[Demands, FloatArray, FloatArray], FloatArray]] = {
    "exact": _exact,
    "lemma1": _lemma1,
}


def differences(releases: Iterable[Release], demands: Demands) -> Iterator[str]:
    """A line for everything in the ledger that is not as demanded, draws first, release by release."""
    everything = tuple(releases)
    recorded = tuple(release for release in everything if release.query is Query.GRADIENT)
    yield from _label_counts([release for release in everything if release.query is Query.LABEL_COUNTS], demands)
    yield from _draws(recorded, demands)
    multipliers = demands.multipliers()
    held = dict(demands.samples or {})
    for release in recorded:
        where = f"client {release.client} in round {release.round}"
        m = demands.draws.get((release.round, release.client), release.multiplicity)
        samples = held.setdefault(release.client, release.samples)
        unit = demands.clip_norm / samples
        due: tuple[tuple[str, object, object], ...] = (
            ("clip_norm", release.clip_norm, demands.clip_norm),
            ("samples", release.samples, samples),
            ("delta", release.delta, demands.delta),
            ("adjacency", str(release.adjacency), demands.adjacency),
        )
        for name, recorded_as, wanted in due:
            if recorded_as != wanted:
                yield f"the ledger has {name} {recorded_as} for {where}; the contract's is {wanted}"
        sensitivity = _moved(demands.adjacency) * unit
        if not math.isclose(release.sensitivity, sensitivity, rel_tol=ROUNDING):
            yield f"the ledger has sensitivity {release.sensitivity:.9g} for {where}; it is {sensitivity:.9g}"
        if release.client in multipliers:  # whoever sold nothing is not in the schedule, or is over its contract
            std = multipliers[release.client] * unit / math.sqrt(m)
            if not std * (1 - ROUNDING) <= release.noise_std <= std * (1 + MOST_ABOVE):
                yield f"the ledger has noise std {release.noise_std:.9g} for {where}; the contract demands {std:.9g}"


def _draws(recorded: tuple[Release, ...], demands: Demands) -> Iterator[str]:
    """Releases that the schedule does not know, or knows and lacks; a last one not applied may be cut by a kill."""
    drawn = {(release.round, release.client): release.multiplicity for release in recorded}
    last = max((index for index, _ in drawn), default=-1)
    for (index, client), m in drawn.items():
        expected = demands.draws.get((index, client), 0)
        if expected != m:
            yield f"the ledger has client {client} in round {index} drawn {m} times; in the schedule it is {expected}"
    for index, client in demands.draws:
        if index < max(last, demands.applied) and (index, client) not in drawn:
            yield f"the ledger lacks the release of client {client} in round {index}"


def _label_counts(recorded: Sequence[Release], demands: Demands) -> Iterator[str]:
    """The charges for label counts: one for each client if they were asked for, none if not."""
    charged = {release.client: release for release in recorded}
    asked = demands.epsilons if demands.label_epsilon is not None else {}
    for client in charged:
        if client not in asked:
            yield f"the ledger has label counts of client {client}, which this run did not ask for"
    if demands.label_epsilon is None:
        return
    moved = math.sqrt(2) if demands.adjacency == "replace" else 1.0
    std = moved / float(needed_mus(np.array([demands.label_epsilon]), demands.delta)[0])
    for client in asked:
        release = charged.get(client)
        if release is None:
            yield f"the ledger lacks the charge for the label counts of client {client}"
            continue
        due: tuple[tuple[str, object, object], ...] = (
            ("multiplicity", release.multiplicity, 1),
            ("clip_norm", release.clip_norm, 1.0),
            ("samples", release.samples, (demands.samples or {}).get(client, release.samples)),
            ("delta", release.delta, demands.delta),
            ("adjacency", str(release.adjacency), demands.adjacency),
        )
        for name, recorded_as, wanted in due:
            if recorded_as != wanted:
                yield f"the ledger has {name} {recorded_as} for label counts of client {client}; it must be {wanted}"
        if not math.isclose(release.sensitivity, moved, rel_tol=ROUNDING):
            yield f"the ledger has sensitivity {release.sensitivity:.9g} for label counts of client {client}"
        if not std * (1 - ROUNDING) <= release.noise_std <= std * (1 + MOST_ABOVE):
            yield (
                f"the ledger has noise std {release.noise_std:.9g} for label counts of client {client}; what was sold"
                f" demands {std:.9g}"
            )


def _moved(adjacency: str) -> int:
    return 2 if adjacency == "replace" else 1


def needed_mus(epsilons: FloatArray, delta: float) -> FloatArray:
    """The μ at which a Gaussian mechanism spends each ε (above 0) at δ, by halving, with no margin to either side."""
    parts = [_mus(epsilons[start : start + _AT_ONCE], delta) for start in range(0, epsilons.size, _AT_ONCE)]
    return np.concatenate(parts) if parts else np.zeros(0)


def _mus(eps: FloatArray, delta: float) -> FloatArray:
    scale = np.sqrt(2 * eps)
    # δ falls as t rises; beyond these ends it is 1 or, since δ ≤ Φ(−a), below the smallest float.
    low, high = np.arcsinh(-_FARTHEST / scale), np.arcsinh(40 / scale)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        above = _delta(scale, middle) > delta
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return np.asarray(scale * np.exp(-(low + high) / 2), dtype=np.float64)


def _delta(scale: FloatArray, t: FloatArray) -> FloatArray:
    begin = scale * np.sinh(t)
    end = np.arcsinh(np.sqrt(np.maximum(begin, 0.0) ** 2 + _TAIL) / scale)
    step = (end - t)[:, None] / _PANELS
    panels = np.arange(_PANELS)[:, None]
    u = t[:, None] + step * (panels + (1 + _NODES) / 2).ravel()
    density = np.exp(-0.5 * (scale[:, None] * np.sinh(u)) ** 2 - u) / math.sqrt(2 * math.pi)
    return np.asarray(scale * (density * np.tile(_WEIGHTS / 2, _PANELS) * step).sum(axis=1), dtype=np.float64)
