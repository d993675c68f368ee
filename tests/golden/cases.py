"""The stored inputs: what `plan`, `audit`, `compare` and `calibrate` are asked, and one seeded training run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Case:
    """One call of the command line. `CLIENTS` among the arguments stands for a file with these lines."""

    name: str
    arguments: tuple[str, ...]
    clients: str = ""


def _clients(seed: int, count: int, *, low: float = 0.05, high: float = 0.95, losses: bool = False) -> str:
    rng = np.random.default_rng(seed)
    rows = [f"h{k},{c:.4f}" for k, c in enumerate(rng.uniform(low, high, count))]
    if losses:
        rows = [f"{row},{loss:.3f}" for row, loss in zip(rows, rng.uniform(1, 3, count), strict=True)]
    return "\n".join(["id,sensitivity,loss" if losses else "id,sensitivity", *rows]) + "\n"


_FEW, _SOME, _MANY = _clients(1, 5), _clients(2, 20), _clients(3, 100)
_LOSSES = _clients(4, 12, losses=True)
_UNIFORM = "--prior uniform:0,1"
_OWN = 'id,sensitivity,prior\na,0.2,\nb,0.3,"uniform:0,2"\nc,0.7,"beta:2,5"\nd,0.9,\n'

_PLANS = (
    (_FEW, f"{_UNIFORM} --loss-weight 5"),
    (_FEW, f"{_UNIFORM} --loss-weight 5 --mechanism usbm"),
    (_FEW, f"{_UNIFORM} --loss-weight 5 --mechanism fsbm-2"),
    (_FEW, f"{_UNIFORM} --loss-weight 5 --mechanism jsam-ci"),
    (_FEW, f"{_UNIFORM} --loss-weight 50 --max-epsilon 2"),
    (_FEW, f"{_UNIFORM} --loss-weight 50 --max-selection-prob 0.4"),
    (_FEW, f"{_UNIFORM} --loss-weight 50 --max-selection-prob 0.4 --max-epsilon 3"),
    (_FEW, f"{_UNIFORM} --budget 2"),
    (_SOME, f"{_UNIFORM} --loss-weight 100 --noise-weight 9"),
    (_SOME, f"{_UNIFORM} --loss-weight 100 --bias-weight 0.2"),
    (_SOME, f"{_UNIFORM} --loss-weight 0.001"),
    (_SOME, f"{_UNIFORM} --budget 10 --mechanism usbm"),
    (_SOME, "--prior beta:2,5 --loss-weight 20"),
    (_SOME, "--prior lognorm:s=0.5,scale=0.3 --loss-weight 20"),
    (_SOME, "--prior truncnorm:a=-2,b=2,loc=0.5,scale=0.25 --loss-weight 20"),
    (_SOME, "--prior beta:0.6,0.7 --loss-weight 20"),
    (_SOME, "--prior beta:2,5 --loss-weight 20 --mechanism fsbm-10"),
    (_LOSSES, f"{_UNIFORM} --loss-weight 8 --mechanism bbm-4"),
    (_MANY, f"{_UNIFORM} --loss-weight 5"),
    (_MANY, f"{_UNIFORM} --budget 10"),
    (_MANY, f"{_UNIFORM} --budget 10 --noise-weight 9 --max-selection-prob 0.05"),
    (_MANY, f"{_UNIFORM} --budget 10 --budget-probability 0.9"),
    (_OWN, f"{_UNIFORM} --loss-weight 30"),
    (_OWN, f"{_UNIFORM} --loss-weight 30 --max-selection-prob 0.5"),
)
_AUDITS = (
    (_FEW, f"{_UNIFORM} --loss-weight 5"),
    (_FEW, f"{_UNIFORM} --loss-weight 5 --mechanism usbm"),
    (_FEW, f"{_UNIFORM} --loss-weight 5 --mechanism fsbm-3"),
    (_FEW, f"{_UNIFORM} --loss-weight 5 --mechanism jsam-ci"),
    (_FEW, f"{_UNIFORM} --loss-weight 50 --max-epsilon 2"),
    (_SOME, f"{_UNIFORM} --budget 5"),
    (_SOME, "--prior beta:2,5 --loss-weight 20"),
)
_COMPARISONS = (
    (_FEW, f"{_UNIFORM} --loss-weight 5"),
    (_SOME, f"{_UNIFORM} --loss-weight 100 --noise-weight 9"),
    (_SOME, "--prior beta:2,5 --budget 3"),
    (_SOME, f"{_UNIFORM} --loss-weight 40 --max-epsilon 5"),
    (_LOSSES, f"{_UNIFORM} --loss-weight 8"),
    (_MANY, f"{_UNIFORM} --loss-weight 5"),
    (_MANY, f"{_UNIFORM} --budget 10"),
)
_CALIBRATIONS = (
    "--epsilon 1 --delta 1e-5 --participations 100",
    "--epsilon 1 --delta 1e-5 --participations 1",
    "--epsilon 0.1 --delta 1e-6 --participations 1000",
    "--epsilon 8 --delta 1e-5 --participations 30",
    "--epsilon 50 --delta 1e-5 --participations 10",
    "--epsilon 1 --delta 1e-5 --participations 100 --adjacency replace",
    "--epsilon 1 --delta 1e-5 --participations 100 --noise lemma1 --c2 2",
    "--epsilon 0.5 --delta 1e-5 --participations 1000 --noise lemma1 --c2 2",
    "--epsilon 3 --delta 1e-9 --participations 7 --adjacency replace",
    "--epsilon 2 --delta 1e-3 --participations 12",
    "--epsilon 0.01 --delta 1e-5 --participations 50",
    "--epsilon 5 --delta 1e-7 --participations 500",
)

TRAINING = (
    "simulate --dataset digits --clients 5 --rounds 12 --per-round 3 --mechanism jsam --prior uniform:0,1 --budget 20 "
    "--learning-rate 0.1 --seed 3 --noise-seed 4 --threads 1 --noise-weight 1 --bias-weight 1 --max-epsilon none"
)


def _named(command: str, options: str) -> tuple[str, ...]:
    """The mechanism that was the default when the answers were stored."""
    return ("--mechanism", "jsam") if command != "compare" and "--mechanism" not in options else ()


def cases() -> Iterator[Case]:
    for command, questions in (("plan", _PLANS), ("audit", _AUDITS), ("compare", _COMPARISONS)):
        for number, (clients, options) in enumerate(questions, 1):
            arguments = (command, "CLIENTS", *options.split(), *_named(command, options), "--format", "json")
            yield Case(name=f"{command}-{number}", arguments=arguments, clients=clients)
    for number, options in enumerate(_CALIBRATIONS, 1):
        yield Case(name=f"calibrate-{number}", arguments=("calibrate", *options.split(), "--format", "json"))
