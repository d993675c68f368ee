"""What one thread does with a chunk: norms block by block, clipping factors, weighted sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from jsam.training.clipping.clipped_sum import GROUP
from jsam.training.clipping.layers import RULES, Call, LayerRule, RuleMaker
from jsam.training.clipping.sums import Factors
from jsam.training.clipping.workspace import Workspace

_BLOCK_BYTES = {"cpu": 4 << 20, "cuda": 1 << 30}
_SMALLEST_BLOCK = 4


class Worker:
    """The rules of all layers with their own scratch memory and their own sums."""

    def __init__(self, owners: Mapping[str, nn.Module], rules: Mapping[type[nn.Module], RuleMaker] = RULES) -> None:
        workspace = Workspace()
        self._rules: dict[str, LayerRule] = {
            name: rules[type(module)](name, module, workspace) for name, module in owners.items()
        }

    def reset(self) -> None:
        for rule in self._rules.values():
            rule.reset()

    def kept_floats(self, calls: Mapping[str, Sequence[Call]]) -> int:
        """What an example of a chunk with such calls holds until the chunk is done."""
        return sum(self._rules[name].kept_floats(of_module) for name, of_module in calls.items())

    def add_chunk(self, calls: Mapping[str, Sequence[Call]], weights: Tensor, clip_norm: float) -> Tensor:
        """Adds the weighted clipped gradients of a chunk to the sums; returns their norms before clipping.

        An example whose gradient is not finite has an infinite norm and counts as nothing, by the same work as others.
        """
        n = weights.shape[0]
        active = [
            (self._rules[name], _prepared(self._rules[name], of_module, weights)) for name, of_module in calls.items()
        ]
        columns = [rule.columns(of_module) for rule, of_module in active]
        parts = weights.new_empty((sum(columns), n))
        for (rule, of_module), part in zip(active, torch.split(parts, columns), strict=True):
            rule.open(of_module, part)
        norms, weights = weights.new_empty(n, dtype=torch.float64), weights.double()
        block = _block_size(active, weights.device.type) or n
        for start in range(0, n, block):
            stop = min(start + block, n)
            for rule, _ in active:
                rule.fill_norms(start, stop)
            norms[start:stop] = torch.linalg.vector_norm(parts[:, start:stop], dim=0, dtype=torch.float64)
            factors = Factors.of(norms[start:stop], weights[start:stop], clip_norm)
            for rule, _ in active:
                rule.add(start, stop, factors)
        if block < n:
            factors = Factors.of(norms, weights, clip_norm)
        for rule, _ in active:
            rule.finish(factors)
        return torch.nan_to_num(norms, nan=torch.inf, posinf=torch.inf)

    def gradients(self) -> dict[str, Tensor]:
        """The sums, by the parameter's full name."""
        return {
            f"{name}.{key}" if name else key: value
            for name, rule in self._rules.items()
            for key, value in rule.gradients().items()
        }


def _prepared(rule: LayerRule, calls: Sequence[Call], like: Tensor) -> Sequence[Call]:
    if rule.low_precision:
        return calls
    return [Call(_widened(call.inputs, like), _widened(call.grad_outputs, like)) for call in calls]


def _widened(values: Tensor, like: Tensor) -> Tensor:
    return values.to(like.dtype) if values.is_floating_point() else values


def _block_size(active: Sequence[tuple[LayerRule, Sequence[Call]]], device: str) -> int | None:
    needs = [rule.block_floats(of_module) for rule, of_module in active]
    floats = sum(need.kept for need in needs) + max((need.scratch for need in needs), default=0)
    budget = _BLOCK_BYTES.get(device, _BLOCK_BYTES["cuda"])
    if not floats:
        return None
    size = max(_SMALLEST_BLOCK, budget // (4 * floats))
    return size if size < GROUP else size - size % GROUP
