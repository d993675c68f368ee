"""Book-keeping clipping: a whole batch at the cost of about one training step (docs/theory.md).

A chunk goes forward and backward once; then, block by block, small enough for the cache, every layer's per-example
norms are computed, the clipping factors follow, and the weighted gradient is added up. On the CPU each core works on
chunks of its own: many small operations wait less for each other than the threads inside them would.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

import torch
from torch import Tensor, nn

from jsam.training.clipping.capture import Capture, PerSampleLoss
from jsam.training.clipping.chunk_worker import Worker
from jsam.training.clipping.chunking import Footprint, memory_of, samples_a_chunk, spans
from jsam.training.clipping.clipped_sum import ClippedSum
from jsam.training.clipping.gpu import cuda_rules, runs_kernels
from jsam.training.clipping.gpu.forward import merged
from jsam.training.clipping.layers import RULES, Call
from jsam.training.clipping.precision import Precision, arithmetic, denormals_flushed, forward_precision
from jsam.training.clipping.sums import RunningSum
from jsam.training.clipping.unfailing import Trace

_FEWEST_SAMPLES_A_WORKER = 16


class FusedClipping:
    """Clipped sums of a model whose trainable parameters all belong to modules with a rule."""

    def __init__(
        self,
        model: nn.Module,
        owners: Mapping[str, nn.Module],
        *,
        loss: PerSampleLoss,
        channels_last: bool,
        workers: int,
        precision: Precision = "fp32",
    ) -> None:
        self._model, self._loss, self._channels_last = model, loss, channels_last
        self._names = {module: name for name, module in owners.items()}
        kernels = runs_kernels(next(model.parameters()).device)
        rules = cuda_rules(precision) if kernels else RULES
        self._forward = merged(model, precision) if kernels else None
        self._arithmetic: Precision = precision if self._forward is None else forward_precision(precision)
        self._workers = [Worker(owners, rules) for _ in range(workers)]
        self._pool: tuple[int, ThreadPoolExecutor] | None = None
        self._footprint: Footprint | None = None

    def clipped_sum(
        self,
        inputs: Tensor,
        targets: Tensor,
        weights: Tensor,
        *,
        clip_norm: float,
        chunk_size: int | None = None,
        parallel: bool = True,
    ) -> ClippedSum:
        """Σ_i w_i min(1, C/‖g_i‖) g_i, with no more than `chunk_size` examples in flight if it is given.

        Raises CannotFuseError where a layer is used in a way that its rule does not cover.
        """
        n = inputs.shape[0]
        most = max(1, min(n // _FEWEST_SAMPLES_A_WORKER, n if chunk_size is None else chunk_size)) if parallel else 1
        workers = self._workers[:most]
        for worker in workers:
            worker.reset()
        norms, losses = torch.empty_like(weights), torch.empty_like(weights)
        with Capture(self._model, self._names, self._loss, self._forward) as capture:
            share = self._share(capture, inputs, targets)
            if chunk_size is not None:
                share = min(share, chunk_size // len(workers))
            chunks = list(spans(n, max(1, share), len(workers)))

            def work(index: int) -> None:
                with denormals_flushed(inputs.device):
                    for start, stop in chunks[index :: len(workers)]:
                        losses[start:stop], calls = self._run(capture, inputs[start:stop], targets[start:stop])
                        with arithmetic("fp32", inputs.device):
                            norms[start:stop] = workers[index].add_chunk(calls, weights[start:stop], clip_norm)
                        # Or the next chunk would be captured while this one is still held.
                        del calls

            if len(workers) == 1:
                work(0)
            else:
                self._in_parallel(work, len(workers))
        return ClippedSum(gradient=self._gradient(workers), norms=norms, losses=losses, clip_norm=clip_norm)

    def traced(self, trace: Trace, inputs: Tensor, targets: Tensor) -> None:
        """Shows a trace the forward and backward pass of these examples."""
        with Capture(self._model, self._names, trace.loss, self._forward) as capture, trace:
            self._run(capture, inputs, targets)

    def _run(self, capture: Capture, inputs: Tensor, targets: Tensor) -> tuple[Tensor, dict[str, list[Call]]]:
        if self._channels_last and inputs.dim() == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        with arithmetic(self._arithmetic, inputs.device):
            return capture.run(inputs, targets)

    def _in_parallel(self, work: Callable[[int], None], count: int) -> None:
        if self._pool is None or self._pool[0] != os.getpid():
            # A forked process inherits the pool without its threads.
            self._pool = os.getpid(), ThreadPoolExecutor(len(self._workers), thread_name_prefix="jsam-clip")
        pool, threads = self._pool[1], torch.get_num_threads()

        def alone(index: int) -> None:
            torch.set_num_threads(1)
            work(index)

        futures = [pool.submit(alone, index) for index in range(count)]
        try:
            wait(futures)
        finally:
            # Also when interrupted: the workers' sums must not change under the next call.
            wait(futures)
            torch.set_num_threads(threads)
        for future in futures:
            future.result()

    def _share(self, capture: Capture, inputs: Tensor, targets: Tensor) -> int:
        """Examples that one worker best takes at a time."""
        if self._footprint is None:
            probe = min(2, inputs.shape[0])
            with torch.random.fork_rng(devices=[inputs.device] if inputs.is_cuda else []):
                _, calls = self._run(capture, inputs[:probe], targets[:probe])
            floats = sum(
                c.inputs[0].numel() + c.grad_outputs[0].numel() for of_module in calls.values() for c in of_module
            )
            self._footprint = Footprint(captured=max(1, floats), kept=self._workers[0].kept_floats(calls))
        return samples_a_chunk(self._footprint, inputs.device.type, memory_of(inputs.device))

    def _gradient(self, workers: Sequence[Worker]) -> Tensor:
        names = [name for name, value in self._model.named_parameters() if value.requires_grad]
        whole = RunningSum(0, next(self._model.parameters()).device)
        for worker in workers:
            gradients = worker.gradients()
            whole.join(torch.cat([gradients[name].reshape(-1) for name in names]))
        return whole.value()
