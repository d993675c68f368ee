"""Conv2d: a sum of outer products of output gradients and unfolded input patches."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from jsam.training.clipping.conv_patches import Unfolder, prepare, unfolder
from jsam.training.clipping.conv_shape import ConvShape
from jsam.training.clipping.layers.layer_rule import Call
from jsam.training.clipping.layers.product import ProductRule
from jsam.training.clipping.workspace import Workspace


class ConvRule(ProductRule):
    """nn.Conv2d with any stride, dilation, padding and groups."""

    def __init__(self, name: str, module: nn.Conv2d, workspace: Workspace) -> None:
        super().__init__(name, module, workspace)
        self.shape = ConvShape.of(module)
        self.rows, self.groups = module.out_channels, module.groups
        self.width, self.steps = self.shape.columns, self.shape.steps
        self.transposed = not self.shape.channels_last

    def forget_views(self) -> None:
        super().forget_views()
        self._unfolders: dict[tuple[int, torch.Size], Unfolder] = {}

    def scratch_floats(self, call: Call) -> int:
        return self.shape.scratch(self._map(call))

    def left(self, call: Call) -> Tensor:
        flat = call.grad_outputs.flatten(2)
        return flat if self.groups == 1 else flat.reshape(-1, self.rows // self.groups, flat.shape[2])

    def source(self, call: Call) -> Tensor:
        return prepare(call.inputs, self.shape, self._map(call))

    def right(self, call: Call, source: Tensor, start: int, stop: int) -> Sequence[Tensor]:
        key = stop - start, call.inputs.shape[1:]
        unfolding = self._unfolders.get(key)
        if unfolding is None:
            unfolding = unfolder(self.shape, call.inputs, self._map(call), stop - start, self.workspace)
            self._unfolders[key] = unfolding
        unfolding.load(source, start)
        return unfolding.matrices

    def bias_gradient(self, call: Call) -> Tensor:
        return call.grad_outputs.sum(dim=(2, 3))

    def _map(self, call: Call) -> tuple[int, int]:
        height, width = call.grad_outputs.shape[2:]
        return height, width

    def _shaped(self, key: str, total: Tensor) -> Tensor:
        if key == "bias":
            return super()._shaped(key, total)
        if self.transposed:
            total = total.view(self.steps, self.groups, self.width, -1).transpose(2, 3)
        return self.shape.to_weight(total.reshape(self.steps, self.rows, self.width))
