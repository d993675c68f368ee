"""Book-keeping clipping: a whole batch at the cost of about one training step (docs/theory.md §8).

A chunk goes forward and backward once; then, block by block, small enough for the cache, every layer's per-example
norms are computed, the clipping factors follow, and the weighted gradient is added up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from jsam.training.clipping.capture import PerSampleLoss, capture
from jsam.training.clipping.layers import RULES, Call, CannotFuseError, LayerRule
from jsam.training.clipping.result import ClippedSum, clip_factors
from jsam.training.clipping.workspace import Workspace

# Chunks and blocks are chosen by rule, not by timing, so that a run is bit-identical when repeated.
_CHUNK_BYTES = {"cpu": 20 << 20, "cuda": 8 << 30}
_BLOCK_BYTES = {"cpu": 8 << 20, "cuda": 1 << 30}
_SMALLEST_BLOCK = 8


class FusedClipping:
    """Clipped sums of a model whose trainable parameters all belong to modules with a rule."""

    def __init__(
        self,
        model: nn.Module,
        owners: Mapping[str, nn.Module],
        *,
        loss: PerSampleLoss,
        channels_last: bool,
    ) -> None:
        self._model, self._loss, self._channels_last = model, loss, channels_last
        self._workspace = Workspace()
        self._names = {module: name for name, module in owners.items()}
        self._rules: dict[str, LayerRule] = {
            name: RULES[type(module)](name, module, self._workspace) for name, module in owners.items()
        }
        self._floats_per_sample: int | None = None

    def clipped_sum(
        self, inputs: Tensor, targets: Tensor, weights: Tensor, clip_norm: float, chunk_size: int | None
    ) -> ClippedSum:
        """Σ_i w_i min(1, C/‖g_i‖) g_i; `chunk_size` None lets the rule choose. Raises CannotFuseError."""
        for rule in self._rules.values():
            rule.reset()
        norms, losses = [], []
        size = chunk_size or self._chunk_size(inputs, targets)
        for start, stop in spans(inputs.shape[0], size):
            chunk_norms, chunk_losses = self._chunk(
                inputs[start:stop], targets[start:stop], weights[start:stop], clip_norm
            )
            norms.append(chunk_norms)
            losses.append(chunk_losses)
        return ClippedSum(
            gradient=self._gradient(), norms=torch.cat(norms), losses=torch.cat(losses), clip_norm=clip_norm
        )

    def _chunk(self, inputs: Tensor, targets: Tensor, weights: Tensor, clip_norm: float) -> tuple[Tensor, Tensor]:
        losses, calls = self._capture(inputs, targets)
        n = inputs.shape[0]
        active = [(self._rules[name], found) for name, found in calls.items()]
        columns = [rule.columns(found) for rule, found in active]
        parts = weights.new_empty((sum(columns), n))
        for (rule, found), part in zip(active, torch.split(parts, columns), strict=True):
            rule.open(found, part)
        block = self._block_size(active, weights.device.type) or n
        norms, factors = torch.empty_like(weights), torch.empty_like(weights)
        for start in range(0, n, block):
            stop = min(start + block, n)
            for rule, _ in active:
                rule.fill_norms(start, stop)
            block_norms, block_factors = norms[start:stop], factors[start:stop]
            torch.linalg.vector_norm(parts[:, start:stop], dim=0, out=block_norms)
            clip_factors(block_norms, clip_norm, out=block_factors).mul_(weights[start:stop])
            for rule, _ in active:
                rule.add(start, stop, block_factors)
        for rule, _ in active:
            rule.finish(factors)
        return norms, losses

    def _capture(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, dict[str, list[Call]]]:
        if self._channels_last and inputs.dim() == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        losses, calls = capture(self._model, self._names, inputs, targets, self._loss)
        n = inputs.shape[0]
        for name, found in calls.items():
            for call in found:
                if call.inputs.shape[0] != n or call.grad_outputs.shape[0] != n:
                    raise CannotFuseError(
                        f"{name} sees inputs of shape {tuple(call.inputs.shape)}, not one row for each of {n} examples"
                    )
        return losses, calls

    def _chunk_size(self, inputs: Tensor, targets: Tensor) -> int:
        if self._floats_per_sample is None:
            probe = min(2, inputs.shape[0])
            with torch.random.fork_rng(devices=[inputs.device] if inputs.is_cuda else []):
                _, calls = self._capture(inputs[:probe], targets[:probe])
            floats = sum(c.inputs[0].numel() + c.grad_outputs[0].numel() for found in calls.values() for c in found)
            self._floats_per_sample = max(1, floats)
        budget = _CHUNK_BYTES.get(inputs.device.type, _CHUNK_BYTES["cuda"])
        return max(1, budget // (4 * self._floats_per_sample))

    def _block_size(self, active: Sequence[tuple[LayerRule, Sequence[Call]]], device: str) -> int | None:
        needs = [rule.block_floats(found) for rule, found in active]
        floats = sum(need.kept for need in needs) + max((need.scratch for need in needs), default=0)
        budget = _BLOCK_BYTES.get(device, _BLOCK_BYTES["cuda"])
        return max(_SMALLEST_BLOCK, budget // (4 * floats)) if floats else None

    def _gradient(self) -> Tensor:
        found = {
            f"{name}.{key}" if name else key: value
            for name, rule in self._rules.items()
            for key, value in rule.gradients().items()
        }
        wanted = [name for name, value in self._model.named_parameters() if value.requires_grad]
        return torch.cat([found[name].reshape(-1) for name in wanted])


def spans(n: int, size: int) -> Iterator[tuple[int, int]]:
    """Even pieces of range(n), none longer than `size`: a short last piece would waste a pass."""
    count = -(-n // size)
    for i in range(count):
        yield n * i // count, n * (i + 1) // count
