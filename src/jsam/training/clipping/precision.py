"""In which arithmetic a model runs on CUDA: full fp32, tf32 products, or bf16 activations.

Precision is a matter of the forward pass and of the gradients it gives. Norms, clipping factors and sums are fp32
always, and the norms are taken of the very numbers that are summed; so the clipped norm keeps its bound.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Literal, get_args

import torch

from jsam.errors import InputError

Precision = Literal["fp32", "tf32", "bf16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)


def checked_precision(name: str, device: torch.device | str) -> Precision:
    """The precision of that name, if the device has it."""
    for precision in PRECISIONS:
        if name == precision:
            if precision != "fp32" and torch.device(device).type != "cuda":
                raise InputError(f"precision is {name!r}; the CPU computes in fp32 only, use device cuda for {name}")
            return precision
    raise InputError(f"precision is {name!r}; it must be one of: {', '.join(PRECISIONS)}")


@contextlib.contextmanager
def arithmetic(precision: Precision, device: torch.device) -> Iterator[None]:
    """The forward and backward pass inside compute in this precision, with kernels that repeat bit for bit."""
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
def exact_sums(device: torch.device) -> Iterator[None]:
    """Matrix products inside are plain fp32."""
    if device.type != "cuda":
        yield
        return
    with torch.cuda.device(device), _switches(tf32=False), torch.autocast("cuda", enabled=False):
        yield


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
