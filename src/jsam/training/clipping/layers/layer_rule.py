"""The contract between the engine and a layer's rule.

For a chunk of examples the engine calls `open` once, then for each cache-sized block `fill_norms` and, when the
block's clipping factors are known, `add`; at the end of the chunk `finish`. A rule forms every example's gradient by
itself, takes the norm of the numbers it has formed, and adds up those very numbers: so rounding inside an example is a
part of its own gradient. Only where the gradient is a single outer product, which cannot cancel, is it never formed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from jsam.training.clipping.sums import Factors, RunningSum
from jsam.training.clipping.workspace import Workspace


class CannotFuseError(Exception):
    """This use of a layer is outside its rule; the engine then takes per-sample gradients instead."""


class Call(NamedTuple):
    """One call of a module: what went in, and the gradient of the summed loss at what came out."""

    inputs: Tensor
    grad_outputs: Tensor


class BlockFloats(NamedTuple):
    """Floats an example of a block takes: kept until factors are known, and scratch that all rules share."""

    kept: int = 0
    scratch: int = 0


class LayerRule(ABC):
    """Per-example gradients of one module, summed over all its calls in a forward pass.

    `parts` (columns, n): the rule writes numbers whose joint Euclidean norm, example by example, is the norm of the
    layer's gradient: the norms of pieces of it. Sums of short sums are more accurate than one long one.
    """

    low_precision = False
    """Whether calls may come in a lower precision than the parameters."""

    def __init__(self, name: str, module: nn.Module, workspace: Workspace) -> None:
        self.name, self.workspace = name, workspace
        self.module: Any = module
        self._sums: dict[str, RunningSum] = {}
        self.parameters = {key: value for key, value in module.named_parameters(recurse=False) if value.requires_grad}
        """Trainable parameters by their name inside the module."""

    def trains(self, key: str) -> bool:
        return key in self.parameters

    @abstractmethod
    def columns(self, calls: Sequence[Call]) -> int:
        """How many `parts` columns calls of these shapes need."""

    def block_floats(self, calls: Sequence[Call]) -> BlockFloats:
        """Memory for one example of a block."""
        return BlockFloats()

    def kept_floats(self, calls: Sequence[Call]) -> int:
        """Memory that each example of a chunk takes from `open` to `finish`, beside the calls themselves."""
        return 0

    @abstractmethod
    def open(self, calls: Sequence[Call], parts: Tensor) -> None:
        """Takes the chunk; `parts` are this rule's columns for all its examples."""

    def fill_norms(self, start: int, stop: int) -> None:  # noqa: B027 - some rules have nothing to do by blocks
        """Writes `parts[start:stop]`, where `open` has not done so already."""

    def add(self, start: int, stop: int, factors: Factors) -> None:  # noqa: B027
        """Adds the examples of the block just filled, each times its factor, where `finish` does not."""

    @abstractmethod
    def finish(self, factors: Factors) -> None:
        """Adds what is still missing of the chunk, and lets go of its tensors."""

    def reset(self) -> None:
        """Forgets all sums, before a new round or after a failure."""
        self._sums.clear()

    def gradients(self) -> dict[str, Tensor]:
        """The weighted sums so far in fp64, by parameter, in the parameter's own shape."""
        return {
            key: self._shaped(key, self._sums[key].value())
            if key in self._sums
            else torch.zeros_like(value, dtype=torch.float64)
            for key, value in self.parameters.items()
        }

    def _shaped(self, key: str, total: Tensor) -> Tensor:
        return total.view(self.parameters[key].shape)

    def _sum(self, key: str) -> RunningSum:
        total = self._sums.get(key)
        if total is None:
            parameter = self.parameters[key]
            total = self._sums[key] = RunningSum(parameter.numel(), parameter.device)
        return total

    def _add_rows(self, key: str, rows: Tensor, factors: Factors) -> None:
        self._sum(key).add_rows(rows, factors, self.workspace)


def row_norms(rows: Tensor) -> Tensor:
    """Euclidean norms over all but the first dimension, in fp64.

    A norm is often a factor, and a server may make parameters up with gradients of 1e-23 at a layer's output and inputs
    of 1e19. In fp32 the squares of the one are 0; the product of both is no small number.
    """
    norms: Tensor = torch.linalg.vector_norm(rows.flatten(1), dim=1, dtype=torch.float64)
    return norms
