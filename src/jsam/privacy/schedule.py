"""Who is drawn in which round, decided before training so that each client's number of draws is known."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from jsam.errors import InputError
from jsam.files import write_atomically
from jsam.mechanism._arrays import IntArray
from jsam.privacy.gaussian import checked
from jsam.privacy.randomness import generator

_FORMAT = 1
_SUM_TOLERANCE = 1e-6


@dataclass(frozen=True, kw_only=True)
class Round:
    """The distinct clients of one round, in increasing order, and how often each was drawn."""

    index: int
    clients: IntArray
    multiplicities: IntArray


@dataclass(frozen=True, kw_only=True, eq=False)
class Schedule:
    """`draws[t, i]` is the client in slot i of round t; a client may fill several slots of a round."""

    num_clients: int
    draws: IntArray

    def __post_init__(self) -> None:
        draws = np.array(self.draws)
        if draws.ndim != 2 or draws.size == 0:
            raise InputError(f"draws has shape {draws.shape}; it must be rounds x per_round, both at least 1")
        if draws.dtype.kind not in "iu":
            raise InputError(f"draws holds {draws.dtype} values; it must hold whole numbers")
        draws = draws.astype(np.int64)
        if draws.min() < 0 or draws.max() >= self.num_clients:
            raise InputError(
                f"draws holds clients {draws.min()} to {draws.max()}; they must lie in 0 to {self.num_clients - 1}"
            )
        draws.flags.writeable = False
        object.__setattr__(self, "draws", draws)

    @classmethod
    def draw(cls, selection_probs: ArrayLike, *, rounds: int, per_round: int, seed: int) -> Schedule:
        """`rounds` × `per_round` independent draws with replacement, client k with its selection probability."""
        p = checked("selection_probs", selection_probs, low=0.0)
        if p.ndim != 1 or p.size == 0:
            raise InputError(f"selection_probs has shape {p.shape}; it must be one probability a client")
        if abs(p.sum() - 1) > _SUM_TOLERANCE:
            raise InputError(f"selection_probs sums to {p.sum():.9g}; it must sum to 1")
        for name, count in (("rounds", rounds), ("per_round", per_round)):
            if count < 1:
                raise InputError(f"{name} is {count}; it must be at least 1")
        upper = np.cumsum(p)
        # "right" with numbers below 1: a client of probability 0 spans no numbers, not even a boundary.
        points = generator(seed, "schedule").random((rounds, per_round))
        return cls(num_clients=p.size, draws=np.searchsorted(upper / upper[-1], points, side="right"))

    @property
    def rounds(self) -> int:
        return int(self.draws.shape[0])

    @property
    def per_round(self) -> int:
        return int(self.draws.shape[1])

    @property
    def participations(self) -> IntArray:
        """T_k: how often each client is drawn over the whole training, several draws in one round counted each."""
        return np.bincount(self.draws.ravel(), minlength=self.num_clients).astype(np.int64)

    def round(self, index: int) -> Round:
        if not 0 <= index < self.rounds:
            raise InputError(f"round is {index}; it must lie in 0 to {self.rounds - 1}")
        clients, counts = np.unique(self.draws[index], return_counts=True)
        return Round(index=index, clients=clients, multiplicities=counts.astype(np.int64))

    def __iter__(self) -> Iterator[Round]:
        return (self.round(index) for index in range(self.rounds))

    def save(self, path: Path | str) -> None:
        """One line about the whole, then one line a round; the same schedule gives the same bytes."""
        head = {
            "jsam_schedule": _FORMAT,
            "num_clients": self.num_clients,
            "rounds": self.rounds,
            "per_round": self.per_round,
        }
        lines = [head, *self.draws.tolist()]
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        write_atomically(Path(path), text.encode())

    @classmethod
    def load(cls, path: Path | str) -> Schedule:
        path = Path(path)
        try:
            head, *draws = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
            if head["jsam_schedule"] != _FORMAT:
                raise InputError(f"format {head['jsam_schedule']}; this version reads {_FORMAT}")
            schedule = cls(num_clients=head["num_clients"], draws=np.array(draws))
            if schedule.draws.shape != (head["rounds"], head["per_round"]):
                raise InputError(f"shape {schedule.draws.shape}; its first line says otherwise")
        except OSError as error:
            raise InputError(f"schedule {path} cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path} is not a whole schedule file that jsam saved: {error}") from error
        return schedule
