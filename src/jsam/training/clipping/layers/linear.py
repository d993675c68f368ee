"""Linear layers: a rank-one gradient an example for plain vectors, a sum of outer products for sequences."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from jsam.training.clipping.layers.layer_rule import BlockFloats, Call, row_norms
from jsam.training.clipping.layers.product import ProductRule
from jsam.training.clipping.sums import Factors
from jsam.training.clipping.workspace import Workspace


class LinearRule(ProductRule):
    """nn.Linear on inputs (n, ..., features)."""

    _single: Call | None = None

    def __init__(self, name: str, module: nn.Linear, workspace: Workspace) -> None:
        super().__init__(name, module, workspace)
        self.rows, self.width = module.out_features, module.in_features

    def positions(self, call: Call) -> int:
        return call.inputs.numel() // (call.inputs.shape[0] * self.width)

    def left(self, call: Call) -> Tensor:
        return call.grad_outputs.reshape(call.grad_outputs.shape[0], -1, self.rows).transpose(1, 2)

    def source(self, call: Call) -> Tensor:
        return call.inputs.reshape(call.inputs.shape[0], -1, self.width)

    def right(self, call: Call, source: Tensor, start: int, stop: int) -> Sequence[Tensor]:
        return [source[start:stop]]

    def scratch_floats(self, call: Call) -> int:
        return 0

    def bias_gradient(self, call: Call) -> Tensor:
        return call.grad_outputs.reshape(call.grad_outputs.shape[0], -1, self.rows).sum(dim=1)

    def _is_single(self, calls: Sequence[Call]) -> bool:
        return len(calls) == 1 and self.positions(calls[0]) == 1

    def columns(self, calls: Sequence[Call]) -> int:
        return 1 if self._is_single(calls) else super().columns(calls)

    def block_floats(self, calls: Sequence[Call]) -> BlockFloats:
        return BlockFloats() if self._is_single(calls) else super().block_floats(calls)

    def open(self, calls: Sequence[Call], parts: Tensor) -> None:
        self._calls, self._single = (), None
        if not self._is_single(calls):
            super().open(calls, parts)
            return
        n = parts.shape[1]
        call = Call(calls[0].inputs.reshape(n, self.width), calls[0].grad_outputs.reshape(n, self.rows))
        self._write_norms(call, parts[0])
        self._single = call

    def finish(self, factors: Factors) -> None:
        if self._single is None:
            super().finish(factors)
            return
        self._add_outer(self._single, factors)
        self._single = None

    def _write_norms(self, call: Call, norms: Tensor) -> None:
        # ‖g aᵀ‖² + ‖g‖² = ‖g‖² (‖a‖² + 1). A single outer product cannot cancel, so it need not be formed.
        found = row_norms(call.grad_outputs)
        if self.trains("weight"):
            inputs = row_norms(call.inputs)
            found = found * (torch.hypot(inputs, torch.ones_like(inputs)) if self.trains("bias") else inputs)
        norms.copy_(found)

    def _add_outer(self, call: Call, factors: Factors) -> None:
        if self.trains("weight"):
            self._sum("weight").add_products(call.grad_outputs, call.inputs, factors, self.workspace)
        if self.trains("bias"):
            self._add_rows("bias", call.grad_outputs, factors)
