"""Rounds that are computed at once, one after the other, on any device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from jsam.privacy import Round, derived_seed
from jsam.runs.noise_plan import NoisePlan
from jsam.runs.noise_source import NoiseSource
from jsam.training.clipping import ClippedSum
from jsam.training.loaded_task import LoadedTask
from jsam.training.round_inputs import combined_std, round_noise, rows_and_weights
from jsam.training.round_loop import Announce, Block, Snapshot


class EagerRounds:
    """Changes the loaded model in place; a round is over before the next one is begun."""

    ahead = 0

    def __init__(
        self, plan: NoisePlan, task: LoadedTask, noise: NoiseSource, *, velocity: Tensor | None = None
    ) -> None:
        self.plan, self._task, self._noise, self._velocity = plan, task, noise, velocity

    def blocks(self, done: int) -> Iterator[range]:
        return (range(index, index + 1) for index in range(done, self.plan.settings.rounds))

    def launch(self, block: range, announce: Announce, *, evaluate: bool, snapshot: bool) -> Callable[[], Block]:
        drawn = self.plan.schedule.round(block.start)
        clipped = self._clipped_sum(drawn)
        loss, signal, noise_norm = float(clipped.losses.mean()), clipped.signal, math.nan
        finite = math.isfinite(loss) and math.isfinite(signal)
        if finite:
            noise_norm = self._release(drawn, clipped, announce)
        made = Block(
            measures=[(loss, clipped.share_clipped, float(clipped.norms.mean()), signal, noise_norm)],
            evaluation=self._task.evaluation() if finite and evaluate else None,
            snapshot=Snapshot(weights=self._task.model.state_dict(), velocity=self._velocity) if snapshot else None,
        )
        return lambda: made

    def wait(self) -> None:
        """Nothing is ever under way."""

    def _clipped_sum(self, drawn: Round) -> ClippedSum:
        device, data = self._task.device, self._task.data
        rows, weights = rows_and_weights(self.plan, self._task.partition, drawn)
        taken = torch.from_numpy(rows).to(device)
        # Layers that draw at random (Dropout) must draw the same when a round is repeated after a kill.
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(derived_seed(self.plan.settings.seed, "layers", round=drawn.index))
            return self._task.engine.clipped_sum(data.inputs[taken], data.targets[taken], weights.to(device))

    def _release(self, drawn: Round, clipped: ClippedSum, announce: Announce) -> float:
        """Announce what the round releases, then change the model by it; the norm of its noise."""
        plan, settings = self.plan, self.plan.settings
        releases = plan.releases(drawn)
        std = combined_std(releases, plan.update_weights(drawn), settings.per_round)
        size = self._task.engine.parameter_count
        noise = round_noise(std, size, source=self._noise, index=drawn.index, device=self._task.device)
        noise_norm = float(torch.linalg.vector_norm(noise, dtype=torch.float64))
        announce(releases)
        # Rounded only now: what is done to the noisy sum shows nothing more, what is done to the bare one might.
        self._apply((clipped.gradient + noise).to(torch.float32), settings.learning_rate_at(drawn.index))
        return noise_norm

    @torch.no_grad()
    def _apply(self, gradient: Tensor, step: float) -> None:
        momentum = self.plan.settings.momentum
        if momentum:
            if self._velocity is None:
                self._velocity = torch.zeros_like(gradient)
            gradient = self._velocity.mul_(momentum).add_(gradient)
        parameters = dict(self._task.model.named_parameters())
        for name, piece in self._task.engine.unflatten(gradient).items():
            parameters[name].add_(piece, alpha=-step)
