"""The contract between the engine and a layer's rule.

For a chunk of examples the engine calls `open` once, then for each cache-sized block `fill_norms` and, when the
block's clipping factors are known, `add`; at the end of the chunk `finish`. A rule either keeps the block's per-example
gradients between `fill_norms` and `add` (no second pass over the data) or computes norms by formula and does one
weighted matrix product in `finish`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from jsam.training.clipping.result import LONGEST_FP32_SUM
from jsam.training.clipping.workspace import Workspace

# The square root of the largest fp32. An example with inputs or gradients beyond it counts as nothing: the products of
# fp32 with which they are weighted round by up to 2⁻¹⁵⁰, and times such inputs that would be no small number either.
LARGEST_NORM = 2.0**63.5


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
        self.name = name
        self.workspace = workspace
        self._sums: dict[str, Tensor] = {}
        self._trainable = {key: value for key, value in module.named_parameters(recurse=False) if value.requires_grad}

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """Trainable parameters by their name inside the module."""
        return self._trainable

    def trains(self, key: str) -> bool:
        return key in self._trainable

    @abstractmethod
    def columns(self, calls: Sequence[Call]) -> int:
        """How many `parts` columns calls of these shapes need."""

    @abstractmethod
    def block_floats(self, calls: Sequence[Call]) -> BlockFloats:
        """Memory for one example of a block."""

    def kept_floats(self, calls: Sequence[Call]) -> int:
        """Memory that each example of a chunk takes from `open` to `finish`, beside the calls themselves."""
        return 0

    @abstractmethod
    def open(self, calls: Sequence[Call], parts: Tensor) -> None:
        """Takes the chunk; `parts` are this rule's columns for all its examples."""

    @abstractmethod
    def fill_norms(self, start: int, stop: int) -> None:
        """Writes `parts[start:stop]`, where `open` has not done so already."""

    @abstractmethod
    def add(self, start: int, stop: int, factors: Tensor) -> None:
        """Adds the examples of the block just filled, each times its factor."""

    @abstractmethod
    def finish(self, factors: Tensor) -> None:
        """Adds what is still missing of the chunk, and lets go of its tensors."""

    def reset(self) -> None:
        """Forgets all sums, before a new round or after a failure."""
        self._sums.clear()

    def gradients(self) -> dict[str, Tensor]:
        """The weighted sums so far, by parameter, in the parameter's own shape."""
        return {
            key: self._shaped(key, self._sums[key]) if key in self._sums else torch.zeros_like(value)
            for key, value in self._trainable.items()
        }

    def _shaped(self, key: str, total: Tensor) -> Tensor:
        return total.view(self._trainable[key].shape)

    def _sum(self, key: str, size: int, like: Tensor) -> Tensor:
        total = self._sums.get(key)
        if total is None:
            total = torch.zeros(size, device=like.device, dtype=like.dtype)
            self._sums[key] = total
        return total


def add_weighted(total: Tensor, per_sample: Tensor, factors: Tensor) -> None:
    """total += Σ_i factors_i per_sample_i, reading the per-sample gradients once."""
    total.addmv_(per_sample.flatten(1).t(), factors)


def row_norms(rows: Tensor) -> Tensor:
    """Euclidean norms over all but the first dimension, as accurate as `SAFETY_MARGIN` takes them to be.

    On the CPU in fp64, short rows too: a norm is often a factor, and a server may make parameters up with gradients of
    1e-23 at a layer's output and inputs of 1e19. In fp32 the squares of the one are 0; the product of both is no small
    number. Norms beyond `LARGEST_NORM` are infinite.
    """
    flat = rows.flatten(1).contiguous()  # else a whole row may be one chain, not eight
    dtype = None if flat.is_cuda and flat.shape[1] <= LONGEST_FP32_SUM else torch.float64
    norms: Tensor = torch.linalg.vector_norm(flat, dim=1, dtype=dtype)
    return norms.masked_fill_(norms > LARGEST_NORM, torch.inf)
