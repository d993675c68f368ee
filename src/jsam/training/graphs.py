"""Rounds on CUDA as replayed graphs: the host only says which round comes next, and reads results a block later.

A round's kernels are recorded once for each batch size that occurs and replayed. What differs between rounds lies in
tables on the device that a counter walks through: rows, weights, noise scale, step. A block of rounds, an evaluation
after it and a copy of the weights are queued without waiting; their numbers are fetched when they are asked for.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from jsam.runs.noise_plan import NoisePlan
from jsam.runs.noise_source import NoiseSource
from jsam.runs.settings import TrainingSettings
from jsam.training.clipping import PerSampleLoss, cross_entropy
from jsam.training.clipping.example_weights import refuse_range
from jsam.training.clipping.model_checks import draws_at_random
from jsam.training.clipping.rowwise import is_rowwise
from jsam.training.clipping.sample_gradients import trainable
from jsam.training.loaded_task import LoadedTask
from jsam.training.partition import Partition
from jsam.training.round_inputs import RoundInputs, round_inputs
from jsam.training.round_loop import MEASURES, Announce, Block, Snapshot, blocks_between

_MOST_SIZES = 16


def batch_sizes(rows: Sequence[int]) -> tuple[int, ...]:
    """The sizes to record graphs for: those that occur, or few that cover them where they are many."""
    distinct = sorted(set(rows))
    if len(distinct) <= _MOST_SIZES:
        return tuple(distinct)
    return tuple(distinct[math.ceil(k * len(distinct) / _MOST_SIZES) - 1] for k in range(1, _MOST_SIZES + 1))


class GraphRounds:
    """The static memory of one run and the graphs that work on it; `load` begins another run in the same memory."""

    def __init__(self, task: LoadedTask, *, sizes: Sequence[int], block: int, momentum: float) -> None:
        self.model, self.engine, self.momentum = task.model, task.engine, momentum
        self._inputs, self._targets, self._evaluator = task.data.inputs, task.data.targets, task.evaluator
        self._sizes, self._block = tuple(sizes), block
        self._device, engine = task.device, task.engine
        self.stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        self.stream.wait_stream(torch.cuda.current_stream(self._device))
        self._generator = torch.Generator(self._device)
        most = max(sizes)
        with torch.cuda.stream(self.stream):
            self._rows = torch.zeros((block, most), dtype=torch.int64, device=self._device)
            self._weights = torch.zeros((block, most), device=self._device)
            self._scales = torch.zeros((block, 2), device=self._device)
            self._measures = torch.zeros((block, len(MEASURES)), device=self._device)
            self._noise = torch.zeros(engine.parameter_count, dtype=torch.float64, device=self._device)
            self._velocity = torch.zeros(engine.parameter_count, device=self._device) if momentum else None
            self._next = torch.zeros(1, dtype=torch.int64, device=self._device)
            self._sound = torch.ones((), dtype=torch.bool, device=self._device)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._evaluation_graph: torch.cuda.CUDAGraph | None = None
        self._pool = torch.cuda.graph_pool_handle()

    def load(self, weights: Mapping[str, Tensor], velocity: Tensor | None = None) -> None:
        """Begin at these weights."""
        with torch.cuda.stream(self.stream), torch.no_grad():
            for name, value in self.model.state_dict().items():
                value.copy_(weights[name])
            if self._velocity is not None:
                self._velocity.zero_() if velocity is None else self._velocity.copy_(velocity)
            self._sound.fill_(True)

    def launch(self, rounds: Sequence[RoundInputs], *, evaluate: bool, snapshot: bool) -> Callable[[], Block]:
        """Queue these rounds, at most a block of them; the function that is returned waits for them."""
        staged = self._stage(rounds)
        with torch.cuda.stream(self.stream):
            self._upload(staged, len(rounds))
            for single in rounds:
                self._generator.manual_seed(single.noise_seed)
                self._noise.normal_(generator=self._generator)
                self._graph(self._size(len(single.rows))).replay()
            measures = torch.empty((len(rounds), len(MEASURES)), pin_memory=True)
            measures.copy_(self._measures[: len(rounds)], non_blocking=True)
            evaluation = self._evaluate() if evaluate else None
            weights = self._snapshot() if snapshot else None
            made = torch.cuda.Event()  # type: ignore[no-untyped-call]
            made.record()

        held = [staged]

        def waited() -> Block:
            made.synchronize()
            held.clear()  # the device has read those tables
            return Block(
                measures=measures.tolist(),
                evaluation=None if evaluation is None else self._evaluator.read(evaluation),
                snapshot=weights,
            )

        return waited

    def wait(self) -> None:
        """Return when all that is queued is done: only then may its memory be handed back."""
        self.stream.synchronize()

    def _stage(self, rounds: Sequence[RoundInputs]) -> tuple[Tensor, Tensor, Tensor]:
        most = self._rows.shape[1]
        rows = torch.empty((len(rounds), most), dtype=torch.int64).pin_memory()
        weights = torch.zeros((len(rounds), most)).pin_memory()
        scales = torch.empty((len(rounds), 2)).pin_memory()
        for i, single in enumerate(rounds):
            refuse_range(single.weights)
            rows[i, : len(single.rows)] = torch.from_numpy(single.rows)
            # Missing rows repeat one of the round's own with weight 0: computed, and worth nothing. Another client's
            # would be touched in a round without it, and could stop the run by not being finite.
            rows[i, len(single.rows) :] = int(single.rows[0])
            weights[i, : len(single.rows)] = single.weights
            scales[i, 0], scales[i, 1] = single.noise_scale, single.step
        return rows, weights, scales

    def _upload(self, staged: tuple[Tensor, Tensor, Tensor], count: int) -> None:
        for target, source in zip((self._rows, self._weights, self._scales), staged, strict=True):
            target[:count].copy_(source, non_blocking=True)
        self._next.zero_()

    def _size(self, rows: int) -> int:
        return next(size for size in self._sizes if size >= rows)

    def _graph(self, size: int) -> torch.cuda.CUDAGraph:
        graph = self._graphs.get(size)
        if graph is None:
            # Every size before the first recording: scratch memory must not move once a graph knows its address, and a
            # smaller batch may need more of it, as one chunk where a larger one is cut in two. Then this size, so that
            # nothing is left to compile or to prepare while recording.
            for warm in (size,) if self._graphs else (*sorted(self._sizes, reverse=True), size):
                self._rehearse(warm)
            graph = self._record(lambda: self._round(size))
            self._graphs[size] = graph
        return graph

    def _rehearse(self, size: int) -> None:
        """A round whose effects are taken back."""
        kept = [*self.model.state_dict().values(), self._next, self._sound, self._measures]
        if self._velocity is not None:
            kept.append(self._velocity)
        before = [value.clone() for value in kept]
        self._round(size)
        for value, saved in zip(kept, before, strict=True):
            value.copy_(saved)

    def _record(self, run: Callable[[], None]) -> torch.cuda.CUDAGraph:
        # Not torch.cuda.graph(), which collects garbage and empties the allocator's cache each time.
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self._device)
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            run()
        finally:
            graph.capture_end()
        return graph

    @torch.no_grad()
    def _round(self, size: int) -> None:
        rows = self._rows.index_select(0, self._next)[0, :size]
        weights = self._weights.index_select(0, self._next)[0, :size]
        scale, step = self._scales.index_select(0, self._next)[0]
        with torch.enable_grad():
            clipped = self.engine.clipped_sum(
                self._inputs.index_select(0, rows), self._targets.index_select(0, rows), weights
            )
        noise = self._noise * scale
        real = weights > 0
        count = real.sum()
        norms = torch.where(real, clipped.norms, 0.0)
        # An example whose gradient is not finite counts as nothing; here it means that the run has diverged.
        finite = torch.isfinite(norms).all()
        signal = torch.where(finite, torch.linalg.vector_norm(clipped.gradient).float(), torch.inf)
        loss = torch.where(real, clipped.losses, 0.0).sum() / count
        self._sound.logical_and_(torch.isfinite(signal) & torch.isfinite(loss))
        # What is not finite is never applied, nor anything after it.
        update = torch.where(self._sound, clipped.gradient + noise, 0.0).float()
        if self._velocity is not None:
            update = self._velocity.mul_(self.momentum).add_(update)
        update = update * torch.where(self._sound, step, 0.0)
        parameters = trainable(self.model)
        for name, piece in self.engine.unflatten(update).items():
            parameters[name].sub_(piece)
        row = torch.stack(
            [
                loss,
                (norms > clipped.clip_norm).sum() / count,
                norms.sum() / count,
                signal,
                torch.linalg.vector_norm(noise, dtype=torch.float64).float(),
            ]
        )
        self._measures.index_copy_(0, self._next, row[None])
        self._next.add_(1)

    def _evaluate(self) -> Tensor:
        if self._evaluation_graph is None:
            self._evaluator.run(self.model)
            self._evaluation_graph = self._record(lambda: self._evaluator.run(self.model))
        self._evaluation_graph.replay()
        result = torch.empty_like(self._evaluator.result, device="cpu", pin_memory=True)
        result.copy_(self._evaluator.result, non_blocking=True)
        return result

    def _snapshot(self) -> Snapshot:
        return Snapshot(
            weights={name: value.clone() for name, value in self.model.state_dict().items()},
            velocity=None if self._velocity is None else self._velocity.clone(),
        )


class ReplayedRounds:
    """One run's rounds through such memory, queued block by block.

    A block's releases are announced before it is queued. Where a round is not finite the device skips it and all after
    it, so a ledger may then name releases that were not made, never the other way round.
    """

    ahead = 1

    def __init__(
        self,
        plan: NoisePlan,
        partition: Partition,
        noise: NoiseSource,
        graphs: GraphRounds,
        *,
        weights: Mapping[str, Tensor],
        velocity: Tensor | None = None,
    ) -> None:
        self.plan, self._partition, self._noise, self._graphs = plan, partition, noise, graphs
        graphs.load(weights, velocity)

    def blocks(self, done: int) -> Iterator[range]:
        return blocks_between(done, self.plan.settings)

    def launch(self, block: range, announce: Announce, *, evaluate: bool, snapshot: bool) -> Callable[[], Block]:
        drawn = [self.plan.schedule.round(index) for index in block]
        releases = [self.plan.releases(single) for single in drawn]
        announce(itertools.chain.from_iterable(releases))
        inputs = [
            round_inputs(self.plan, self._partition, *pair, self._noise) for pair in zip(drawn, releases, strict=True)
        ]
        return self._graphs.launch(inputs, evaluate=evaluate, snapshot=snapshot)

    def wait(self) -> None:
        self._graphs.wait()


def replayable(model: nn.Module, loss: PerSampleLoss, inputs: Tensor | NDArray[Any]) -> bool:
    """Whether a round can be recorded as a CUDA graph: the model is known for such inputs, and draws no numbers."""
    return loss is cross_entropy and is_rowwise(model, inputs.ndim) and not draws_at_random(model)


def longest_block(settings: TrainingSettings) -> int:
    return max(len(block) for block in blocks_between(0, settings))


def graphs_for(task: LoadedTask, plan: NoisePlan) -> GraphRounds:
    """The memory and graphs for the rounds of one run."""
    rows = [sum(plan.sizes[k] for k in drawn.clients) for drawn in plan.schedule]
    return GraphRounds(
        task, sizes=batch_sizes(rows), block=longest_block(plan.settings), momentum=plan.settings.momentum
    )
