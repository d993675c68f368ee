"""Before the first round: who is drawn when, how much noise each release carries, and whether that makes sense."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jsam.errors import InputError, TrainingWarning
from jsam.mechanism.contract import Contract
from jsam.privacy import Release, Round, Schedule, noise_multiplier
from jsam.runs.settings import TrainingSettings

# Rounds add up: the signal like T, the noise like √T. This is a ratio of the two if every clipped gradient pointed the
# same way all along; from about here on MNIST's accuracy was seen to stay within a few points of guessing.
HOPELESS_NOISE = 2.0


@dataclass(frozen=True, kw_only=True, eq=False)
class NoisePlan:
    """Schedule first, then T_k, then σ_k (docs/theory.md): nothing here looks at data or at a model's weights."""

    contract: Contract
    settings: TrainingSettings
    sizes: tuple[int, ...]
    schedule: Schedule
    noise_multipliers: NDArray[np.float64]

    @classmethod
    def of(
        cls,
        contract: Contract,
        settings: TrainingSettings,
        sizes: tuple[int, ...],
        schedule: Schedule | None = None,
    ) -> NoisePlan:
        """`schedule` is given when a stored run goes on; a new run draws its own."""
        if contract.num_clients != len(sizes):
            raise InputError(f"the contract has {contract.num_clients} clients and the partition {len(sizes)}")
        if schedule is None:
            schedule = Schedule.draw(
                contract.selection_probs, rounds=settings.rounds, per_round=settings.per_round, seed=settings.seed
            )
        multipliers = noise_multiplier(
            np.asarray(contract.epsilons, dtype=np.float64),
            settings.delta,
            schedule.participations,
            noise=settings.noise,
            c2=settings.c2,
            adjacency=settings.adjacency,
        )
        return cls(contract=contract, settings=settings, sizes=sizes, schedule=schedule, noise_multipliers=multipliers)

    def releases(self, drawn: Round) -> tuple[Release, ...]:
        """What goes into the ledger for one round, each distinct client once."""
        settings = self.settings
        return tuple(
            Release.of_draws(
                round=drawn.index,
                client=self.contract.ids[k],
                multiplicity=int(m),
                noise_multiplier=float(self.noise_multipliers[k]),
                clip_norm=settings.clip_norm,
                samples=self.sizes[k],
                adjacency=settings.adjacency,
                delta=settings.delta,
            )
            for k, m in zip(drawn.clients.tolist(), drawn.multiplicities.tolist(), strict=True)
        )

    def update_weights(self, drawn: Round) -> list[float]:
        """The server's weights on the clients' updates; 1 unless the contract compensates for biased selection."""
        weights = self.contract.update_weights
        return [1.0] * len(drawn.clients) if weights is None else [float(weights[k]) for k in drawn.clients]

    def typical_noise(self) -> float:
        """Root mean square over rounds of the noise std on one coordinate of the mean update."""
        settings = self.settings
        sigma = self.noise_multipliers * settings.clip_norm / np.array(self.sizes)
        if self.contract.update_weights is not None:
            sigma = sigma * self.contract.update_weights
        total = float((self.schedule.participations * sigma**2).sum())
        return math.sqrt(total / settings.rounds) / settings.per_round

    def noise_ratio(self, dimension: int) -> float:
        """Norm of all noise added over the run ÷ the most that clipped gradients could add up to."""
        settings = self.settings
        return self.typical_noise() * math.sqrt(dimension) / (settings.clip_norm * math.sqrt(settings.rounds))

    def warn(self, dimension: int) -> None:
        """Say what will work but probably not as hoped."""
        settings = self.settings
        largest = max(size for size, times in zip(self.sizes, self.schedule.participations, strict=True) if times)
        ratio, doubts = self.noise_ratio(dimension), []
        if settings.delta >= 1 / largest:
            doubts.append(
                f"delta is {settings.delta:g}, not below 1/{largest}, one over a client's samples: such a guarantee "
                "allows publishing a whole record; take it much smaller"
            )
        if ratio > HOPELESS_NOISE:
            doubts.append(
                f"the budget is too small to train on: over {settings.rounds} rounds the noise adds up to {ratio:.3g} "
                "times the most that clipped gradients can add up to; expect little better than guessing (a larger "
                "budget, fewer rounds or a smaller model would help)"
            )
        for doubt in doubts:
            warnings.warn(doubt, TrainingWarning, stacklevel=3)
