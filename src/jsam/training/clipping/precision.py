"""In which arithmetic a model runs on CUDA: full fp32, tf32 products, or tf32 forward and bf16 back.

Precision is a matter of the forward pass and of the gradients it gives. Norms are taken of the very numbers that are
summed, and sums are fp64 always; so a record's part in the sum keeps its bound.

bf16 is for the way back through convolutions: there the gradients are bf16 and so are the operands of products with
them. Forward, and in all other layers, it is tf32, since a forward pass in bf16 lets max-pools choose other values
(docs/decisions/0012). That holds for chains of torch's own modules with a convolution and its activation in them, where
Triton is installed; any other model computes under torch's autocast to bf16, forward and back.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any, Literal, get_args

import torch

from jsam.errors import InputError

Precision = Literal["fp32", "tf32", "bf16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)

Capability = tuple[int, int]
# The first compute capability whose tensor cores know tf32 and bf16; Triton supports none below it either.
AMPERE: Capability = (8, 0)


def checked_precision(name: str, device: torch.device | str) -> Precision:
    """The precision of that name, if the device has it."""
    return precision_for(name, torch.device(device).type, capability_of(device))


def precision_for(name: str, kind: str, capability: Capability | None) -> Precision:
    """The same for a kind of device and, where it is known, a card's compute capability."""
    for precision in PRECISIONS:
        if name == precision:
            if precision != "fp32" and kind != "cuda":
                raise InputError(f"precision is {name!r}; the CPU computes in fp32 only, use device cuda for {name}")
            if precision != "fp32" and capability is not None and capability < AMPERE:
                # torch would quietly compute tf32 in fp32, and bf16 by slow emulation.
                raise InputError(
                    f"precision is {name!r}; this card's compute capability is {_words(capability)} and {name} needs "
                    f"{_words(AMPERE)} (Ampere) or later, use fp32"
                )
            return precision
    raise InputError(f"precision is {name!r}; it must be one of: {', '.join(PRECISIONS)}")


def capability_of(device: torch.device | str) -> Capability | None:
    """None where there is no such card to ask."""
    if torch.device(device).type != "cuda" or not torch.cuda.is_available():
        return None
    return torch.cuda.get_device_capability(device)


def _words(capability: Capability) -> str:
    return ".".join(map(str, capability))


def forward_precision(precision: Precision) -> Precision:
    """Of a chain with merged stages, whose way back sees to its own precision."""
    return "tf32" if precision == "bf16" else precision


@contextlib.contextmanager
def arithmetic(precision: Precision, device: torch.device) -> Iterator[None]:
    """The forward and backward pass inside compute in this precision, with kernels that repeat bit for bit.

    bf16 here is torch's autocast. In fp32 matrix products are in the precision of their operands, as sums need them.
    """
    if device.type != "cuda":
        yield
        return
    with (
        torch.cuda.device(device),
        _switches(tf32=precision != "fp32"),
        torch.autocast("cuda", dtype=torch.bfloat16, enabled=precision == "bf16", cache_enabled=False),
    ):
        yield


@contextlib.contextmanager
def denormals_flushed(device: torch.device) -> Iterator[None]:
    """Numbers too small for full precision count as 0 in this thread, on a CPU.

    They take up to a hundred times as long to compute with. Parameters can be chosen so that they arise at some records
    only, whose presence would then show in the time that a reply takes.
    """
    if device.type != "cpu":
        yield
        return
    # torch cannot be asked whether this is on, so a product shows it. It is set for each thread apart.
    before = sys.float_info.min / 2 == 0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


@contextlib.contextmanager
def _switches(*, tf32: bool) -> Iterator[None]:
    cudnn = torch.backends.cudnn
    wanted: list[tuple[Any, str, object]] = [(cudnn, "deterministic", True), (cudnn, "benchmark", False), *_tf32(tf32)]
    before = [getattr(owner, name) for owner, name, _ in wanted]
    for owner, name, value in wanted:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for (owner, name, _), value in zip(wanted, before, strict=True):
            setattr(owner, name, value)


def _tf32(on: bool) -> list[tuple[Any, str, object]]:
    """torch has two names for this switch, and refuses the old one where the new one has been used."""
    cudnn: Any = torch.backends.cudnn
    matmul = torch.backends.cuda.matmul
    try:
        _ = cudnn.allow_tf32, matmul.allow_tf32
    except RuntimeError:
        return [(owner, "fp32_precision", "tf32" if on else "ieee") for owner in (matmul, cudnn.conv, cudnn.rnn)]
    return [(cudnn, "allow_tf32", on), (matmul, "allow_tf32", on)]
