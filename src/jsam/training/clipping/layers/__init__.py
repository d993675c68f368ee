"""Book-keeping rules: per-example gradient norms and weighted gradient sums, one module a layer type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from jsam.training.clipping.layers.conv import ConvRule
from jsam.training.clipping.layers.embedding import EmbeddingRule
from jsam.training.clipping.layers.layer_rule import Call, CannotFuseError, LayerRule
from jsam.training.clipping.layers.linear import LinearRule
from jsam.training.clipping.layers.norm import GroupNormRule, LayerNormRule
from jsam.training.clipping.workspace import Workspace

RuleMaker = Callable[[str, Any, Workspace], LayerRule]

RULES: dict[type[nn.Module], RuleMaker] = {
    nn.Linear: LinearRule,
    nn.Conv2d: ConvRule,
    nn.GroupNorm: GroupNormRule,
    nn.LayerNorm: LayerNormRule,
    nn.Embedding: EmbeddingRule,
}

__all__ = ["RULES", "Call", "CannotFuseError", "LayerRule", "RuleMaker"]
