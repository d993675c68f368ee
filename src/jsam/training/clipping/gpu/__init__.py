"""What a CUDA device gets beside the plain rules; without Triton, or before Ampere, those do its work too."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec

import torch
from torch import nn

from jsam.training.clipping.layers import RULES, RuleMaker
from jsam.training.clipping.precision import AMPERE, Capability, Precision, capability_of


def has_triton() -> bool:
    return find_spec("triton") is not None


def runs_kernels(device: torch.device) -> bool:
    """Whether our kernels run there; if not, the plain rules do, in fp32, with the same bound on every gradient."""
    return device.type == "cuda" and fits_kernels(capability_of(device)) and has_triton()


def fits_kernels(capability: Capability | None) -> bool:
    return capability is not None and capability >= AMPERE


def cuda_rules(precision: Precision) -> dict[type[nn.Module], RuleMaker]:
    """Rules by module type; the convolution's computes gradients without patches in memory."""
    from jsam.training.clipping.gpu.conv_rule import KernelConvRule
    from jsam.training.clipping.gpu.linear_rule import KernelLinearRule

    return {**RULES, nn.Conv2d: partial(KernelConvRule, tf32=precision != "fp32"), nn.Linear: KernelLinearRule}
