"""What a CUDA device gets beside the plain rules; without Triton the plain rules do its work too."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec

from torch import nn

from jsam.training.clipping.layers import RULES, RuleMaker
from jsam.training.clipping.precision import Precision


def has_triton() -> bool:
    return find_spec("triton") is not None


def cuda_rules(precision: Precision) -> dict[type[nn.Module], RuleMaker]:
    """Rules by module type; the convolution's computes gradients without patches in memory."""
    if not has_triton():
        return RULES
    from jsam.training.clipping.gpu.convolution import KernelConvRule

    return {**RULES, nn.Conv2d: partial(KernelConvRule, tf32=precision != "fp32")}
